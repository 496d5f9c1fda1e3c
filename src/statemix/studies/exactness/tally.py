"""How many runs of a condition are proven, after how many attempts, and at what cost."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from statemix.studies.conditions import Condition
from statemix.studies.exactness.certified_rows import CertifiedRow
from statemix.studies.store import Row, key

# Quantile of the normal distribution that leaves 2.5% above it.
_Z = 1.959964


@dataclass(frozen=True)
class Tally:
    """What the runs of a condition add up to.

    Attributes:
        condition: the condition.
        rows: rows of the runs that have a result, by key, in the order of their seeds.
        lost: status of every run that ended without one.
    """

    condition: Condition
    rows: Mapping[str, Row]
    lost: tuple[str, ...]

    @property
    def verdicts(self) -> Counter[str]:
        """Verdict -> number of runs, of those that have a certificate."""
        certified = (cast(CertifiedRow, row) for row in self.rows.values() if "certificate" in row)
        return Counter(row["certificate"]["verdict"] for row in certified)

    @property
    def proven(self) -> int:
        """Number of runs that are proven."""
        return self.verdicts["proven"]

    @property
    def attempts(self) -> list[bool]:
        """For each attempt of all runs, whether it has passed its test.

        A run that was lost counts as one attempt that has not: it ended in its last.
        """
        return [one["passed"] for one in self._attempts] + [False] * len(self.lost)

    @property
    def steps(self) -> list[int]:
        """Steps of each attempt."""
        return [one["ended"] - one["began"] for one in self._attempts]

    @property
    def steps_on_plateau(self) -> list[int]:
        """Steps of each attempt before it left its plateau, of those that have."""
        found = [one for one in self._attempts if one["left"] is not None]
        return [one["left"] - one["began"] for one in found]

    @property
    def _attempts(self) -> list[dict[str, Any]]:
        return [one for row in self.rows.values() for one in row.get("attempts", [])]

    @property
    def seconds(self) -> list[float]:
        """Seconds of each run: training, evaluation and certificate, if there is one."""
        return [seconds(row) for row in self.rows.values()]

    def accuracy(self, length: int) -> list[float]:
        """Token accuracy of each run, as trained, on test words of a length."""
        found = [accuracies(row) for row in self.rows.values()]
        return [row[length] for row in found if length in row]

    @property
    def lengths(self) -> list[int]:
        """Lengths of test words, in tokens."""
        return sorted({int(length) for row in self.rows.values() for length in row["test"]})


def passed(row: Row) -> bool:
    """Return whether an attempt of a run has passed its test."""
    return any(one["passed"] for one in row.get("attempts", []))


def seconds(row: Row) -> float:
    """Return the seconds of a run: training, evaluation and certificate, if there is one."""
    certify_s: float = cast(dict[str, Any], row).get("certify_s", 0.0)
    return (row["time_s"] or 0.0) + certify_s


def accuracies(row: Row) -> dict[int, float]:
    """Return length of test words -> token accuracy of a run's first head, as trained."""
    found = {
        int(length): next(iter(heads.values()))["token_accuracy"]
        for length, heads in row["test"].items()
    }
    return dict(sorted(found.items()))


def tally(condition: Condition, rows: Mapping[str, Row], *, certified: bool = True) -> Tally:
    """Gather the results of a condition.

    Args:
        condition: the condition.
        rows: rows of a results store, by key.
        certified: whether only rows with a certificate count as results.
    """
    found = {name: rows[name] for name in map(key, condition.runs) if name in rows}
    done = {
        name: row
        for name, row in found.items()
        if row["status"] == "done" and ("certificate" in row or not certified)
    }
    lost = tuple(row["status"] for row in found.values() if row["status"] != "done")
    return Tally(condition, done, lost)


def interval(passed: Sequence[bool]) -> tuple[float, float]:
    r"""Return the 95% interval of the chance of a success.

    .. math:: \frac{k + z^2/2}{n + z^2} \pm
        \frac{z}{n + z^2} \sqrt{\frac{k (n - k)}{n} + \frac{z^2}{4}}

    for k successes of n and z = 1.96. Source: Wilson (1927), "Probable inference, the law of
    succession, and statistical inference".

    Raises:
        ValueError: if there is no trial.
    """
    n, k = len(passed), sum(passed)
    if n == 0:
        raise ValueError("passed must not be empty")
    centre = (k + _Z**2 / 2) / (n + _Z**2)
    half = _Z / (n + _Z**2) * math.sqrt(k * (n - k) / n + _Z**2 / 4)
    return max(centre - half, 0.0), min(centre + half, 1.0)
