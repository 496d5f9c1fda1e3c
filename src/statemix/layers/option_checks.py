"""Checks of the options that constructors of layers are given."""

import numbers
import reprlib
from collections.abc import Callable
from typing import Any

import torch

from statemix.errors import OptionError
from statemix.ops.checks import FLOATING

# Numbers that parameters hold, with room for random factors.
_LARGEST = torch.finfo(torch.float32).max / 100


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
