"""What the runs of a cell add up to, and whether it agrees with the paper."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from statemix.studies.higher_order.paper_tables import Cell
from statemix.studies.higher_order.protocols import Data, Metric, ProtocolName, Trial
from statemix.studies.results import HeadScores
from statemix.studies.store import Row, key

NOISE = 0.05
"""Largest difference from the paper that agrees: two models that the paper calls identical differ
by up to 0.035."""

ENOUGH_SEEDS = 3
"""Seeds of one setting, on every data set, that a cell needs to count as measured."""

Verdict = Literal["agrees", "above", "below", "measured", "partial", "empty"]


@dataclass(frozen=True)
class PartScore:
    """Scores of one data set of a cell.

    Attributes:
        num_runs: planned runs.
        settings: run that has a result -> its setting.
        lost: status of every run that ended without one.
        setting: the chosen setting; empty without a result.
        values: test accuracies of the chosen setting, one per seed.
        best: largest test accuracy of any run, as the paper reports; None without a result.
        longer: tokens of longer test sequences -> accuracies of the chosen setting there with the
            last weights, one per seed.
    """

    num_runs: int
    settings: Mapping[str, str]
    lost: tuple[str, ...]
    setting: str
    values: tuple[float, ...]
    best: float | None
    longer: Mapping[int, tuple[float, ...]]

    @property
    def keys(self) -> tuple[str, ...]:
        """Runs that have a result."""
        return tuple(self.settings)

    @property
    def seeds(self) -> int:
        """Number of results with the chosen setting."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """Mean test accuracy of the chosen setting over seeds; None without a result."""
        return _mean(self.values)


@dataclass(frozen=True)
class CellScore:
    """Scores of a cell.

    Attributes:
        cell: the cell.
        parts: data set -> its scores.
    """

    cell: Cell
    parts: Mapping[str, PartScore]

    @property
    def keys(self) -> frozenset[str]:
        """Runs of all data sets that have a result."""
        return frozenset(name for part in self.parts.values() for name in part.keys)

    @property
    def seeds(self) -> int:
        """Smallest number of seeds over the data sets."""
        return min(part.seeds for part in self.parts.values())

    @property
    def by_seed(self) -> tuple[float, ...]:
        """Test accuracies of the chosen settings, one per seed: means over the data sets."""
        values = [part.values for part in self.parts.values()]
        return tuple(math.fsum(one) / len(one) for one in zip(*values, strict=False))

    @property
    def measured(self) -> bool:
        """Whether every data set has enough seeds.

        Under "tuned", every planned run must have ended, too: models are compared after searches of
        one size.
        """
        searched = self.cell.protocol == "paper" or self.complete
        return searched and self.seeds >= ENOUGH_SEEDS

    @property
    def complete(self) -> bool:
        """Whether every planned run has ended."""
        return all(len(part.keys) + len(part.lost) == part.num_runs for part in self.parts.values())

    @property
    def mean(self) -> float | None:
        """Mean test accuracy of the chosen settings, over seeds and data sets."""
        return _mean([part.mean for part in self.parts.values()])

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; over data sets, the root of the mean variance."""
        if self.seeds < 2:
            return None
        variances = [_variance(part.values) for part in self.parts.values()]
        return math.sqrt(math.fsum(variances) / len(variances))

    @property
    def best(self) -> float | None:
        """Best test accuracy of any run, the mean over data sets: what the paper reports."""
        return _mean([part.best for part in self.parts.values()])

    @property
    def ours(self) -> float | None:
        """The number to set beside the paper's: under "paper" the best run, else the mean."""
        return self.best if self.cell.protocol == "paper" else self.mean

    @property
    def verdict(self) -> Verdict:
        """Whether our number agrees with the paper's, if the paper states one."""
        if not self.keys:
            return "empty"
        if not self.measured or self.ours is None:
            return "partial"
        return compared(self.ours, self.cell.published)


def compared(ours: float, published: float | None) -> Verdict:
    """Return how a number that was measured compares with the paper's, if there is one."""
    if published is None:
        return "measured"
    # Rounded, because 1.0 - 0.95 is more than 0.05 in floating point.
    difference = round(ours - published, 6)
    if abs(difference) <= NOISE:
        return "agrees"
    return "above" if difference > 0 else "below"


def score(cell: Cell, rows: Mapping[str, Row]) -> CellScore:
    """Gather the results of a cell.

    Under protocol "paper", a run counts with its best test accuracy, the setting with the highest
    mean is chosen, and ``best`` is the largest of all runs: like the paper, this selects on the
    test set. Under "tuned", a run counts with its test accuracy at the best validation accuracy,
    and the setting with the highest mean validation accuracy is chosen.

    Args:
        cell: the cell.
        rows: rows of a results store, by key.
    """
    return CellScore(
        cell,
        {
            data.name: _part_score(data, cell.parts[data.name], cell.protocol, rows)
            for data in cell.column.data
        },
    )


def _part_score(
    data: Data, trials: Sequence[Trial], protocol: ProtocolName, rows: Mapping[str, Row]
) -> PartScore:
    metric = data.metric
    found: dict[str, list[Row]] = {}
    lost: list[str] = []
    for trial in trials:
        ended = [rows[name] for name in map(key, trial.runs) if name in rows]
        done = [row for row in ended if row["status"] == "done"]
        lost += [row["status"] for row in ended if row["status"] != "done"]
        if done:
            found[trial.setting] = done
    which = counted_scores(protocol)

    def criterion(setting: str) -> tuple[int, float]:
        # A setting with fewer seeds is chosen only where there is no other.
        of = [row[which if protocol == "paper" else "best_validation"] for row in found[setting]]
        return len(of), math.fsum(value_of(heads, metric) for heads in of) / len(of)

    chosen = max(found, key=criterion, default="")
    every = [(row, setting) for setting, done in found.items() for row in done]
    return PartScore(
        num_runs=sum(len(trial.runs) for trial in trials),
        settings={row["key"]: setting for row, setting in every},
        lost=tuple(lost),
        setting=chosen,
        values=tuple(value_of(row[which], metric) for row in found.get(chosen, ())),
        best=max((value_of(row["best_test"], metric) for row, _ in every), default=None),
        longer={
            length: tuple(
                value_of(row["test"][str(length)], metric) for row in found.get(chosen, ())
            )
            for length in data.lengths
        },
    )


def counted_scores(protocol: ProtocolName) -> Literal["best_test", "test_at_best_validation"]:
    """Return the field of a row with which a run counts: see :func:`score`."""
    return "best_test" if protocol == "paper" else "test_at_best_validation"


def value_of(heads: HeadScores, metric: Metric) -> float:
    """Return a score of the first head, the one that the paper's tables are about."""
    return next(iter(heads.values()))[metric]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return math.fsum(known) / len(known)


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
