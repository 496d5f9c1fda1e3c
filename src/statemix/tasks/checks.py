"""Checks of the numbers that tasks receive. NumPy's integers are accepted."""

import operator

from statemix.tasks import addressing


def integer(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return a checked integer.

    Raises:
        TypeError: if the value is not an integer.
        ValueError: if it is out of range.
    """
    # Python counts bool as an integer, but "length=True" is a mistake.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = operator.index(value)
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {number}")
    return number


def length(value: object, *, minimum: int = 1) -> int:
    """Return a checked number of tokens."""
    return integer("length", value, minimum=minimum, maximum=addressing.MAX_LENGTH)


def seed(value: object) -> int:
    """Return a checked seed of the data, 0 <= seed < 2^64."""
    number = integer("seed", value, minimum=0)
    if number >= 2**64:
        raise ValueError(f"seed must be below 2^64, got {value}")
    return number


def split(value: object) -> None:
    """Check the name of a split."""
    if not isinstance(value, str) or value not in addressing.SPLITS:
        raise ValueError(f"split must be one of {', '.join(addressing.SPLITS)}, got {value!r}")
