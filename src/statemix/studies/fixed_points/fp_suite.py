"""Conditions whose accuracies at several lengths stand beside a paper's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from statemix.studies.conditions import Condition
from statemix.studies.fixed_points.movahedi import Number
from statemix.studies.higher_order.protocols import SizeName

Metric = Literal["token_accuracy", "sequence_accuracy"]


@dataclass(frozen=True)
class Measured(Condition):
    """A condition that is tested at several lengths.

    Attributes:
        size: name of the size.
        metric: the accuracy that counts.
        published: tokens of a test sequence -> what the paper has.
        published_for: what the paper's numbers are about, if that is another task or far more
            training. They are then shown, but not compared.
    """

    size: SizeName = "laptop"
    metric: Metric = "token_accuracy"
    published: Mapping[int, Number] = field(default_factory=dict)
    published_for: str = ""


@dataclass(frozen=True)
class FixedPointSuite:
    """Conditions that belong together.

    Attributes:
        name: name on the command line.
        title: what it shows.
        conditions: size -> the conditions, those first that should be run first.
        archive: name of a file that must be in the current folder; empty if none is needed.
        source: where to get it.
    """

    name: str
    title: str
    conditions: Callable[[SizeName], tuple[Measured, ...]]
    archive: str = ""
    source: str = ""
