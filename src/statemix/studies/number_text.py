"""Numbers as text: spreads over seeds, accuracies, durations."""

from collections.abc import Iterable, Mapping
from typing import Any


def accuracy_text(value: float) -> str:
    """Write three decimals; only a perfect accuracy is written as 1.000.

    Raises:
        ValueError: if it is no accuracy, such as NaN, which would look like one.
    """
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"an accuracy must be in 0..1, got {value}")
    if value == 1.0:
        return "1.000"
    return min(f"{value:.3f}", "0.999").removeprefix("0")


def counts_text(values: Iterable[float]) -> str:
    """Write whole numbers as the least and the most, or as one if these look alike.

    Example:
        >>> counts_text([3400, 1200])
        '1,200 to 3,400'
    """
    found = list(values)
    return " to ".join(dict.fromkeys(f"{value:,.0f}" for value in (min(found), max(found))))


def published_text(value: float | None) -> str:
    """Write a published number with the decimals that it has, at least two."""
    if value is None:
        return "–"
    decimals = max(len(repr(value).partition(".")[2]), 2)
    return f"{value:.{decimals}f}".removeprefix("0")


def counted(count: int, noun: str) -> str:
    """Write a count and its noun.

    Example:
        >>> counted(1, "seed"), counted(2, "seed")
        ('1 seed', '2 seeds')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration_text(time_s: float) -> str:
    """Write seconds, minutes and seconds, or hours and minutes.

    Example:
        >>> duration_text(59.6), duration_text(100.4), duration_text(18_740)
        ('1 min 0 s', '1 min 40 s', '5 h 12 min')
    """
    minutes, seconds = divmod(round(time_s), 60)
    if minutes >= 60:
        hours, minutes = divmod(round(time_s / 60), 60)
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def environment_text(environment: Mapping[str, Any]) -> str:
    """Describe the versions and the machine of a run in short phrases.

    Args:
        environment: result of ``provenance.describe`` on that machine.
    """
    packages = environment["packages"]
    parts = (
        f"Statemix {packages['statemix'] or '(not installed)'}",
        f"PyTorch {packages['torch']}",
        f"Python {environment['python']}",
        f"{environment['cpu']}, {environment['cpu_count']} cores",
    )
    return ", ".join(parts)


def commit_text(environment: Mapping[str, Any]) -> str:
    """Write seven digits of the commit of a run, and "+" if its code had uncommitted changes.

    Args:
        environment: result of ``provenance.describe`` on that machine.

    Example:
        >>> commit_text({"commit": "0123456789abcdef", "tree_clean": False})
        '0123456+'
    """
    commit = (environment.get("commit") or "")[:7]
    return f"{commit}+" if environment.get("tree_clean") is False else commit
