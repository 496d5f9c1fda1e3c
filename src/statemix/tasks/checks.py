"""Checks of the numbers that tasks receive. NumPy's integers are accepted."""

import operator

from statemix.errors import OptionError
from statemix.tasks import addressing


def integer(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return a checked integer.

    Raises:
        OptionError: if the value is not an integer, or out of range.
    """
    # Python counts bool as an integer, but "length=True" is a mistake.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(f"{name} must be an integer, got {value!r}")
    number = operator.index(value)
    if number < minimum:
        raise OptionError(f"{name} must be at least {minimum}, got {number}")
    if maximum is not None and number > maximum:
        raise OptionError(f"{name} must be at most {maximum}, got {number}")
    return number


def length(value: object, *, minimum: int = 1) -> int:
    """Return a checked number of tokens."""
    return integer("length", value, minimum=minimum, maximum=addressing.MAX_LENGTH)


def seed(value: object) -> int:
    """Return a checked seed of the data, 0 <= seed < 2^64."""
    number = integer("seed", value, minimum=0)
    if number >= 2**64:
        raise OptionError(f"seed must be below 2^64, got {value}")
    return number


def split(value: object) -> None:
    """Check the name of a split."""
    if not isinstance(value, str) or value not in addressing.SPLITS:
        raise OptionError(f"split must be one of {', '.join(addressing.SPLITS)}, got {value!r}")
