"""What a suite trains: conditions, each with several seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from statemix.studies.higher_order.protocols import Trial
from statemix.training import RunConfig


@dataclass(frozen=True)
class Condition:
    """One way to train on one task, with several seeds.

    Attributes:
        suite: name of the suite.
        column: name of the task and its words.
        model: name of what is trained, and how.
        runs: a configuration per seed.
    """

    suite: str
    column: str
    model: str
    runs: tuple[RunConfig, ...]

    @cached_property
    def parts(self) -> Mapping[str, tuple[Trial, ...]]:
        """The runs as a plan reads them (:func:`statemix.studies.higher_order.plan.plan`)."""
        return {self.column: (Trial(self.suite, self.runs),)}
