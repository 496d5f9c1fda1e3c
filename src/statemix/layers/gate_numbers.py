"""Checks of the numbers that layers with gates are given."""

import math
import numbers
import reprlib

import torch

from statemix.errors import OptionError
from statemix.layers.layer import at_least_float32, check_number


def check_finite_number(name: str, value: object, dtype: torch.dtype | None) -> None:
    """Check a number that parameters of a dtype are to hold, with room for random factors.

    Raises:
        OptionError: if it is not finite, or hardly.
    """
    value = check_number(name, value)
    most = torch.finfo(torch.get_default_dtype() if dtype is None else dtype).max / 100
    if not abs(_as_float(value)) <= most:
        raise OptionError(f"{name} must be finite, got {reprlib.repr(value)}")


def check_gate_temperature(value: object, dtype: torch.dtype | None) -> float:
    """Check a gate temperature for parameters of a dtype; return it as it will be stored.

    Raises:
        OptionError: if it is not positive and finite in that dtype, or float32 if that is narrower.
    """
    value = check_number("gate_temperature", value)
    dtype = at_least_float32(torch.get_default_dtype() if dtype is None else dtype)
    stored = torch.tensor(_as_float(value), dtype=dtype, device="cpu").item()
    if not 0 < stored < math.inf:
        shown = reprlib.repr(value)
        raise OptionError(f"gate_temperature must be positive and finite, got {shown}")
    return stored


def _as_float(value: numbers.Real) -> float:
    """Return a number as a float; integers beyond the range of floats are infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
