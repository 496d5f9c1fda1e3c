"""Backend "triton": fused kernels for GPUs, forward and closed-form backward, gates included."""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from statemix.ops.backends import BACKENDS, Backend, Kernel, Results, Scan
from statemix.ops.layout import empty_innermost
from statemix.ops.registered import empty_state
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


def _empty(chunk: int | None, scan: Scan) -> Results:
    """Return room for states in the dtype of the values, and for the maps of chunks, or more."""
    values, initial_state = scan.inputs, scan.initial_state
    saved: tuple[Tensor, ...] = ()
    if scan.keep:
        (B, T, H), m = values.shape[:3], initial_state.shape[-1]
        most = B * most_maps(T, B * H, m, chunk)
        saved = (initial_state.new_empty(most, m + 1, m, H),)
    return empty_innermost(values.shape, values), empty_state(scan), saved


# Kernels run on the current device.
def _forward(chunk: int | None, scan: Scan) -> Results:
    results = _empty(chunk, scan)
    with torch.cuda.device_of(scan.inputs):  # type: ignore[no-untyped-call]
        later("launch", "forward")(chunk, scan, results)
    return results


def _backward(chunk: int | None, scan: Scan, *gradients: Any) -> tuple[Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(scan.inputs):  # type: ignore[no-untyped-call]
        found: tuple[Tensor, Tensor, Tensor] = later("launch", "backward")(chunk, scan, *gradients)
    return found


def later(module: str, function: str) -> Callable[..., Any]:
    """Return a function of a module here that is imported, and Triton, with the first call."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"statemix.ops.triton.{module}"), function)(*arguments)

    return call


def _backend(name: str, chunk: int | None) -> Backend:
    forward, backward = partial(_forward, chunk), partial(_backward, chunk)
    kernel = Kernel(forward, backward, partial(_empty, chunk), later("launch", "prepare_step"))
    return Backend(
        name,
        kernels={"block": kernel, "lag": kernel},
        devices=("cuda", "cpu") if _INTERPRETED else ("cuda",),
        dtypes=(torch.float32, torch.float64, torch.bfloat16, torch.float16),
        families=("softmax", "sigmoid", "relu", "signed", "tanh", "none", "householder"),
        unavailable=_unavailable,
        detail=lambda: "interpreter" if _INTERPRETED else torch.cuda.get_device_name(),
        automatic=chunk is None and not _INTERPRETED,
        distrust=later("selfcheck", "distrust"),
        # Chunks round otherwise than steps do.
        stepwise=False,
    )


TRITON = _backend("triton", None)
"""Fused kernels for GPUs. ``backend=None`` chooses them where they pass their self-check."""


def in_chunks(length: int) -> str:
    """Return the name of backend "triton" with time cut into chunks of one length.

    The backend is registered at the first call. As its name carries the choice, a backward pass
    cuts time as its forward did, wherever it runs.

    Args:
        length: steps of a chunk, whatever the rule of backend "triton" says; 0 means one chunk.

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
