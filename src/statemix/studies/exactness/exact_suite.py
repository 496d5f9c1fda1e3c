"""Conditions whose networks may be proven."""

from dataclasses import dataclass

from statemix.studies.conditions import Condition


@dataclass(frozen=True)
class ExactSuite:
    """Conditions that belong together.

    Attributes:
        name: name on the command line.
        title: what it shows.
        conditions: the conditions, those first that should be run first.
        certified: whether a run without a certificate has no result; otherwise its attempts are
            its result, and a certificate is shown where there is one.
    """

    name: str
    title: str
    conditions: tuple[Condition, ...]
    certified: bool = True
