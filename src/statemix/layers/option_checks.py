"""Checks of the options that constructors of layers are given."""

import math
import numbers
import reprlib
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch

from statemix.errors import OptionError
from statemix.ops.checks import FLOATING, check_choice
from statemix.ops.layout import at_least_float32

Selectivity = Literal[True, False, "pointwise"]
InitialState = Literal["zero", "learned", "unit"]
Memory = tuple[float, float]

REMEMBERING = ("softmax", "householder", "column_softmax")
"""Gate families whose input gates alone decide how fast a unit forgets, within any bounds."""


def check_sizes(**sizes: int) -> None:
    """Check that the sizes passed to a constructor are integers of at least 1 and below 2^31."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise OptionError(f"{name} must be an int, got {size!r}")
        if size < 1:
            raise OptionError(f"{name} must be at least 1, got {size}")
        if size >= 2**31:
            raise OptionError(f"{name} must be below 2^31, got {size}")


def check_switches(**switches: object) -> None:
    """Check that options passed to a constructor are True or False: "no" and 0 are mistakes."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise OptionError(f"{name} must be True or False, got {value!r}")


def check_taps(name: str, size: int) -> None:
    """Check a number of taps passed to a constructor, of which there may be none."""
    if type(size) is int and size <= 0:
        if size < 0:
            raise OptionError(f"{name} must be at least 0, got {size}")
        return
    check_sizes(**{name: size})


def check_number(
    name: str, value: Any, must: str = "", fits: Callable[[Any], bool] = lambda _: True
) -> numbers.Real:
    """Check that an option passed to a constructor is a real number, and return it.

    Args:
        name: name of the option.
        value: what was passed.
        must: what the number must be, for the message.
        fits: whether a number is so.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise OptionError(f"{name} must be a number, got {value!r}")
    if not fits(value):
        raise OptionError(f"{name} must be {must}, got {value}")
    return value


def check_finite_number(name: str, value: object, dtype: torch.dtype | None) -> None:
    """Check a number that parameters of a dtype are to hold, with room for random factors."""
    value = check_number(name, value)
    most = torch.finfo(torch.get_default_dtype() if dtype is None else dtype).max / 100
    if not abs(_as_float(value)) <= most:
        raise OptionError(f"{name} must be finite, got {reprlib.repr(value)}")


def check_gate_temperature(value: object, dtype: torch.dtype | None) -> float:
    """Check a gate temperature for parameters of a dtype; return it as it will be stored."""
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


def check_deviation(name: str, value: float, dtype: torch.dtype | None) -> None:
    """Check a standard deviation of numbers that parameters of a dtype are to hold."""
    check_finite_number(name, value, dtype)
    if value < 0:
        raise OptionError(f"{name} must be at least 0, got {value}")


def check_first_state(initial_state: object, initial_std: float, dtype: torch.dtype | None) -> None:
    """Check the state that a layer starts with, and the deviation from which it is drawn."""
    check_choice("initial_state", initial_state, get_args(InitialState))
    check_deviation("initial_std", initial_std, dtype)
    if initial_std and initial_state != "learned":
        raise OptionError(
            f"initial_std must be 0 with initial_state={initial_state!r}, got {initial_std}"
        )


def check_selectivity(value: object) -> None:
    """Check how gates depend on the input."""
    choices = list(get_args(Selectivity))
    if not isinstance(value, bool | str) or value not in choices:
        raise OptionError(f"selective must be one of {choices}, got {value!r}")


def check_units(
    name: str, num_units: int, num_gates: int, selective: Selectivity, hidden_size: int
) -> None:
    """Check the number of units (blocks or channels) of a layer with gates."""
    if selective == "pointwise" and hidden_size != num_units:
        raise OptionError(
            f"hidden_size must equal {name} with selective='pointwise', got {hidden_size} and "
            f"{num_units}"
        )
    if num_gates >= 2**31:
        raise OptionError(
            f"{name} must give fewer than 2^31 gates per token, got {num_units} of "
            f"{num_gates // num_units} gates"
        )


def check_memory(memory: object, gate: str, input_gate_bias: float) -> None:
    """Check the numbers of tokens that units are to remember, and that the gates can."""
    if memory is None:
        return
    if not isinstance(memory, tuple | list) or len(memory) != 2:
        raise OptionError(f"memory must be two numbers of tokens or None, got {memory!r}")
    for tokens in memory:
        check_finite_number("memory", tokens, torch.float32)
    if not 1 <= memory[0] <= memory[1]:
        raise OptionError(f"memory must rise from 1 or more, got {memory!r}")
    if gate not in REMEMBERING:
        raise OptionError(
            f"memory must be None unless gate is one of {REMEMBERING}, got {memory!r} with {gate!r}"
        )
    if input_gate_bias:
        raise OptionError(f"input_gate_bias must be 0 with memory, got {input_gate_bias}")


# Devices that always exist. Trying "meta" would slow down every step.
_EVERYWHERE = frozenset({"cpu", "meta"})


def check_placement(device: object, dtype: object) -> None:
    """Check the device and dtype of a constructor or of ``init_state``; None is a default."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype in FLOATING):
        known = ", ".join(map(str, FLOATING))
        raise TypeError(f"dtype must be one of {known} or None, got {dtype!r}")
    if device is None:
        return
    if not isinstance(device, torch.device | str | int) or isinstance(device, bool):
        raise TypeError(f"device must be a device, a name or None, got {device!r}")
    try:
        found = torch.device(device)
        if found.type not in _EVERYWHERE and not torch.compiler.is_compiling():
            torch.empty(0, device=found)
    except (RuntimeError, ValueError, AssertionError, ImportError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"device must exist, got {str(device)!r}: {reason}") from error
