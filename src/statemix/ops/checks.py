"""Checks of arguments of functions, and of options of constructors."""

import numbers
import reprlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from statemix.errors import OptionError, suggestion

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Supported dtypes of gates, values, states, coefficients and inputs."""

_KNOWN = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATING)
# Numbers that parameters hold, with room for random factors.
_LARGEST = torch.finfo(torch.float32).max / 100


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


def check_sizes(least: int = 1, /, **sizes: int) -> None:
    """Check that the sizes passed to a constructor are integers from ``least`` to 2^31 - 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise OptionError(f"{name} must be an int, got {size!r}")
        if size < least:
            raise OptionError(f"{name} must be at least {least}, got {size}")
        if size >= 2**31:
            raise OptionError(f"{name} must be below 2^31, got {size}")


def check_switches(**switches: object) -> None:
    """Check that options passed to a constructor are True or False: "no" and 0 are mistakes."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise OptionError(f"{name} must be True or False, got {value!r}")


def check_number(name: str, value: Any, must: str, fits: Callable[[Any], bool]) -> None:
    """Check that an option is a real number that ``fits``; ``must`` says so in words."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise OptionError(f"{name} must be a number, got {value!r}")
    if not fits(value):
        raise OptionError(f"{name} must be {must}, got {reprlib.repr(value)}")


def check_finite(**values: object) -> None:
    """Check numbers that parameters are to hold."""
    for name, value in values.items():
        check_number(name, value, "finite", lambda number: abs(number) <= _LARGEST)


def check_deviations(**values: object) -> None:
    """Check standard deviations."""
    for name, value in values.items():
        check_number(name, value, "at least 0 and finite", lambda std: 0 <= std <= _LARGEST)


def check_placement(device: Any, dtype: object) -> None:
    """Check the device and dtype of a constructor or of ``init_state``; None is a default."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype in FLOATING):
        known = ", ".join(map(str, FLOATING))
        raise TypeError(f"dtype must be one of {known} or None, got {dtype!r}")
    if device is None:
        return
    try:
        placed = torch.device(device)
        # The others always exist. Trying "meta" would slow down every step.
        if placed.type not in ("cpu", "meta") and not torch.compiler.is_compiling():
            torch.empty(0, device=placed)
    except (RuntimeError, TypeError, ValueError, AssertionError, ImportError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"device must exist, got {str(device)!r}: {reason}") from error
