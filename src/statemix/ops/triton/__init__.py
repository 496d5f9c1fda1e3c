"""Backend "triton": fused kernels for GPUs, forward and closed-form backward, gates included."""

import os
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from statemix.ops.backends import BACKENDS, Backend, Kernel, Step
from statemix.ops.triton.plan import most_maps

__all__ = ["TRITON", "in_chunks"]

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
def _forward(
    operator: str, chunk: int | None, *arguments: Any, keeps: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    from statemix.ops.triton import launch

    # Kernels run on the current device.
    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        maps = _maps(chunk, *arguments[1:3]) if keeps else None
        return *launch.forward(operator, *arguments, chunk=chunk, maps=maps), maps


def _backward(
    operator: str, chunk: int | None, *arguments: Any, maps: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    from statemix.ops.triton import launch

    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        return launch.backward(operator, *arguments, chunk=chunk, maps=maps)


def _maps(chunk: int | None, values: Tensor, initial_state: Tensor) -> Tensor:
    """Return room for the maps (maps, m+1, m, H) that ``forward`` keeps, or for more."""
    (B, T, H), m = values.shape[:3], initial_state.shape[-1]
    return initial_state.new_empty(B * most_maps(T, B * H, m, chunk), m + 1, m, H)


def _prepare_step(operator: str, *arguments: Any) -> Step:
    from statemix.ops.triton import launch

    return launch.prepare_step(operator, *arguments)


def _backend(name: str, chunk: int | None) -> Backend:
    return Backend(
        name,
        kernels={
            operator: Kernel(
                partial(_forward, operator, chunk),
                partial(_backward, operator, chunk),
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
        maps=partial(_maps, chunk),
    )


TRITON = _backend("triton", None)
"""Fused kernels for GPUs, to be asked for by name."""


def in_chunks(length: int) -> str:
    """Return the name of backend "triton" with time cut into chunks of one length.

    The backend is registered at the first call. As its name carries the choice, a backward pass
    cuts time as its forward did, wherever it runs.

    Args:
        length: steps of a chunk, whatever the rule of backend "triton" says; 0 means one chunk.

    Raises:
        TypeError: if it is not an int.
        ValueError: if it is negative.

    Example:
        >>> in_chunks(64)
        'triton_64'
        >>> BACKENDS.remove("triton_64")
    """
    if not isinstance(length, int) or isinstance(length, bool):
        raise TypeError(f"length must be an int, got {length!r}")
    if length < 0:
        raise ValueError(f"length must be at least 0, got {length}")
    name = f"{TRITON.name}_{length}"
    if name not in BACKENDS:
        BACKENDS.register(_backend(name, length))
    return name
