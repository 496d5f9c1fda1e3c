"""What a suite of exactness trains: conditions, each with several seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from statemix.experiments.reproduction.protocols import Trial
from statemix.training import RunConfig


@dataclass(frozen=True)
class Condition:
    """One way to train on one group, with several seeds.

    Attributes:
        suite: name of the suite.
        column: name of the group and its words.
        model: name of what is trained, and how.
        runs: a configuration per seed.
    """

    suite: str
    column: str
    model: str
    runs: tuple[RunConfig, ...]

    @cached_property
    def parts(self) -> Mapping[str, tuple[Trial, ...]]:
        """The runs as a plan reads them (:func:`statemix.experiments.reproduction.plan.plan`)."""
        return {self.column: (Trial(self.suite, self.runs),)}


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
