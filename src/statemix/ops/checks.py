"""Argument checks shared by the public functions."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from statemix.errors import OptionError, suggestion

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Supported dtypes of gates, values, states, coefficients and inputs."""

_KNOWN = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATING)


class BackendUnavailableError(RuntimeError):
    """The requested backend cannot run here; the message says what to install."""


def bind(sizes: dict[str, int], name: str, tensor: Tensor, axes: str) -> None:
    """Check ``tensor`` against named axes such as "B T H m", and add its sizes to ``sizes``.

    A name that ``sizes`` or ``axes`` has twice means equal sizes; "m+1" means one more than "m". m
    must be at least 1; other axes may be empty.
    """
    check_dense(name, tensor)
    names, shape = axes.split(), tensor.shape
    known = dict(sizes)
    if len(shape) == len(names) and _agree(known, names, shape):
        if known.get("m", 1) < 1:
            raise ValueError(f"{name} must have m of at least 1, got {tuple(shape)}")
        sizes.update(known)
        return
    wanted = []
    for axis in names:
        base = axis.removesuffix("+1")
        wanted.append(f"{axis}={sizes[base] + (axis != base)}" if base in sizes else axis)
    raise ValueError(f"{name} must have shape ({', '.join(wanted)}), got {tuple(shape)}")


def check_dense(name: str, tensor: object) -> None:
    """Check that an argument is a dense tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        form = (
            "nested" if tensor.is_nested else "quantised" if tensor.is_quantized else tensor.layout
        )
        raise TypeError(f"{name} must be a dense tensor, got one that is {form}")


def _agree(known: dict[str, int], names: Sequence[str], shape: Sequence[int]) -> bool:
    # A plain loop, because a decoding step checks six shapes.
    for axis, size in zip(names, shape, strict=True):
        if axis[-2:] == "+1":
            axis, size = axis[:-2], size - 1
        if known.setdefault(axis, size) != size:
            return False
    return True


def same_dtype_and_device(**tensors: Tensor) -> None:
    """Check that all tensors share one of :data:`FLOATING` and one device."""
    names = " and ".join(tensors)
    dtypes = [tensor.dtype for tensor in tensors.values()]
    if dtypes[0] not in FLOATING or any(dtype != dtypes[0] for dtype in dtypes):
        got = " and ".join(map(str, dtypes))
        raise TypeError(f"{names} must share one floating dtype of {_KNOWN}, got {got}")
    devices = [tensor.device for tensor in tensors.values()]
    if any(device != devices[0] for device in devices):
        got = " and ".join(map(str, devices))
        raise ValueError(f"{names} must be on one device, got {got}")


def check_floating(name: str, tensor: Tensor) -> None:
    """Check that a tensor has one of :data:`FLOATING`, which 8-bit dtypes are not."""
    if tensor.dtype not in FLOATING:
        raise TypeError(f"{name} must be floating ({_KNOWN}), got {tensor.dtype}")


def check_cu_seqlens(cu_seqlens: Tensor, like: Tensor) -> None:
    """Check the dtype, shape and device of ``cu_seqlens`` without reading its values."""
    check_dense("cu_seqlens", cu_seqlens)
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens must be int32 or int64, got {cu_seqlens.dtype}")
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1:
        raise ValueError(f"cu_seqlens must have shape (N+1,), got {tuple(cu_seqlens.shape)}")
    if like.shape[0] != 1:
        raise ValueError(f"cu_seqlens needs one packed row (B = 1), got B = {like.shape[0]}")
    if cu_seqlens.device != like.device:
        raise ValueError(f"cu_seqlens must be on {like.device}, got {cu_seqlens.device}")
    # Values are checked on the CPU alone, but that no sequence has steps shows without them.
    if not cu_seqlens.is_cpu and cu_seqlens.shape[0] == 1 and like.shape[1] > 0:
        raise ValueError(f"cu_seqlens must bound sequences of {like.shape[1]} steps, got none")


def check_cu_seqlens_values(cu_seqlens: Tensor, length: int) -> None:
    """Check that ``cu_seqlens`` starts at 0, never falls and ends at ``length``."""
    steps = cu_seqlens.tolist()
    rises = all(first <= second for first, second in pairwise(steps))
    if steps[0] != 0 or steps[-1] != length or not rises:
        raise ValueError(f"cu_seqlens must rise from 0 to the length {length}, got {steps}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Check that ``value`` is one of ``choices``."""
    # An array would compare entry by entry.
    if not isinstance(value, str) or value not in choices:
        advice = suggestion(value, choices)
        raise OptionError(f"{name} must be one of {list(choices)}, got {value!r}{advice}")
