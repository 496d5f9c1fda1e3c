"""Backend "triton": fused kernels for GPUs, forward and closed-form backward, gates included."""

import os
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from statemix.ops.backends import Backend, Kernel, Step

__all__ = ["TRITON"]

# Triton reads it when a kernel is defined.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _unavailable() -> str | None:
    """Return why the kernels cannot run here, or None."""
    if find_spec("triton") is None:
        return "backend 'triton' needs Triton: pip install 'statemix[gpu]'"
    if not _INTERPRETED and not torch.cuda.is_available():
        return "backend 'triton' needs a GPU, and PyTorch finds none"
    return None


def _detail() -> str:
    return "interpreter" if _INTERPRETED else torch.cuda.get_device_name()


# Triton is imported with the first call.
def _forward(operator: str, *arguments: Any) -> tuple[Tensor, Tensor]:
    from statemix.ops.triton import launch

    # Kernels run on the current device.
    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        return launch.forward(operator, *arguments)


def _backward(operator: str, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    from statemix.ops.triton import launch

    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        return launch.backward(operator, *arguments)


def _prepare_step(operator: str, *arguments: Any) -> Step:
    from statemix.ops.triton import launch

    return launch.prepare_step(operator, *arguments)


TRITON = Backend(
    "triton",
    kernels={
        operator: Kernel(
            partial(_forward, operator),
            partial(_backward, operator),
            partial(_prepare_step, operator),
        )
        for operator in ("block", "lag")
    },
    devices=("cuda", "cpu") if _INTERPRETED else ("cuda",),
    dtypes=(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    families=("softmax", "sigmoid", "relu", "signed", "tanh", "none", "householder"),
    unavailable=_unavailable,
    detail=_detail,
    # Not before a GPU has run them: so far they are tested in Triton's interpreter.
    automatic=False,
    # Chunks round otherwise than steps do.
    stepwise=False,
    narrow=True,
)
"""Fused kernels for GPUs, to be asked for by name."""
