"""Gate temperature: one positive number that divides the raw gates of every family."""

import math
import reprlib
from numbers import Real

import torch
from torch import Tensor

from statemix.ops.checks import check_dense

# Every dtype in which gates are divided holds numbers between this one and its inverse.
_SAFE = 1e-30


def check_temperature(temperature: object, gates: Tensor) -> Tensor | float | None:
    """Check a temperature and return it.

    Args:
        temperature: a 0-d floating tensor on the device of the gates, whose value is read only at
            run time and not checked; a number; or None, which means 1.
        gates: the raw gates.

    Raises:
        TypeError: if it is none of these.
        ValueError: if a number is not positive and finite in the dtype of the states, or a tensor
            is not 0-d, on another device, or requires a gradient.
    """
    if temperature is None:
        return None
    if isinstance(temperature, Tensor):
        check_dense("temperature", temperature)
        if not temperature.dtype.is_floating_point:
            raise TypeError(f"temperature must have a floating dtype, got {temperature.dtype}")
        if temperature.ndim:
            raise ValueError(f"temperature must have shape (), got {tuple(temperature.shape)}")
        if temperature.device != gates.device:
            raise ValueError(f"temperature must be on {gates.device}, got {temperature.device}")
        if temperature.requires_grad:
            raise ValueError(
                "temperature must not require a gradient, got one that does: operators do not "
                "differentiate it; to learn it, divide the gates by it before the call"
            )
        return temperature
    if not isinstance(temperature, Real) or isinstance(temperature, bool):
        raise TypeError(f"temperature must be a 0-d tensor, a number or None, got {temperature!r}")
    try:
        number = float(temperature)
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        shown = reprlib.repr(temperature)
        raise ValueError(f"temperature must be positive and finite, got {shown}")
    if not _SAFE < number < 1 / _SAFE:
        # float16 and bfloat16 gates are divided in float32, too.
        range_ = torch.finfo(torch.promote_types(gates.dtype, torch.float32))
        if not range_.tiny <= number <= range_.max:
            raise ValueError(
                f"temperature must be in {range_.tiny:.3g}..{range_.max:.3g}, the range of "
                f"{range_.dtype}, got {number}"
            )
    return number


def divided(gates: Tensor, temperature: Tensor | float | None) -> Tensor:
    """Return the raw gates divided by the temperature, in the dtype of the gates."""
    return gates if temperature is None else gates / temperature
