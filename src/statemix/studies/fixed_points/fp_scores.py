"""What the runs of a suite's conditions add up to, and whether it agrees with the paper."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, cast

from statemix.studies.fixed_points import movahedi as fixed_points
from statemix.studies.fixed_points.fp_suite import Measured
from statemix.studies.fixed_points.fp_suites import SUITES
from statemix.studies.fixed_points.iterated_rows import IteratedRow
from statemix.studies.fixed_points.movahedi import Number
from statemix.studies.higher_order.cell_scores import ENOUGH_SEEDS, Verdict, compared
from statemix.studies.higher_order.protocols import SIZES, SizeName
from statemix.studies.store import Row, key


@dataclass(frozen=True)
class LengthScore:
    """Scores at one test length.

    Attributes:
        length: tokens of a test sequence.
        values: accuracies, one per seed.
        iterations: iterations of a batch, one per seed; empty if no layer iterates.
        published: what the paper has for the same task; None if nothing.
    """

    length: int
    values: tuple[float, ...]
    iterations: tuple[float, ...]
    published: Number | None

    @property
    def mean(self) -> float:
        """Mean accuracy over the seeds."""
        return math.fsum(self.values) / len(self.values)

    @property
    def verdict(self) -> Verdict:
        """Whether the mean agrees with the paper's number, if there is one."""
        if len(self.values) < ENOUGH_SEEDS:
            return "partial"
        return compared(self.mean, None if self.published is None else self.published.accuracy)


@dataclass(frozen=True)
class ConditionScore:
    """Scores of a condition.

    Attributes:
        condition: the condition.
        rows: rows of the runs that have a result, in the order of their seeds.
        lost: status of every run that ended without one.
    """

    condition: Measured
    rows: tuple[IteratedRow, ...]
    lost: tuple[str, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths at which every run was tested."""
        tested = [{int(length) for length in row["test"]} for row in self.rows]
        return tuple(sorted(set.intersection(*tested))) if tested else ()

    def at(self, length: int) -> LengthScore:
        """Return the scores at one of the lengths."""
        heads = [row["test"][str(length)] for row in self.rows]
        values = [next(iter(scores.values()))[self.condition.metric] for scores in heads]
        iterated = [row["iterated"].get(str(length)) for row in self.rows]
        return LengthScore(
            length,
            tuple(values),
            tuple(numbers["iterations"] for numbers in iterated if numbers is not None),
            None if self.condition.published_for else self.condition.published.get(length),
        )


def score(condition: Measured, rows: Mapping[str, Row]) -> ConditionScore:
    """Gather the results of a condition.

    Args:
        condition: the condition.
        rows: rows of results stores, by key.
    """
    ended = [rows[name] for name in map(key, condition.runs) if name in rows]
    done = [cast(IteratedRow, row) for row in ended if row["status"] == "done"]
    lost = [row["status"] for row in ended if row["status"] != "done"]
    return ConditionScore(condition, tuple(row for row in done if "iterated" in row), tuple(lost))


class FigureRow(TypedDict):
    """A figure of the paper, or a number beside one, at one size.

    Its protocol is "paper", or "reduced" if task or training are so much less than the paper's, for
    a laptop, that its numbers are not compared.
    """

    suite: str
    column: str
    model: str
    length: int | None
    size: str
    protocol: str
    metric: str
    seeds: int
    mean: float | None
    iterations: list[float]
    published: float | None
    verdict: str


class FixedPointOverview(TypedDict):
    """All figures. Every one of the paper counts once in the first three numbers."""

    measured: int
    agree: int
    of: int
    cells: list[FigureRow]


def overview(rows: Mapping[str, Row]) -> FixedPointOverview:
    """Return every number of the suites that has results, with the paper's where there is one.

    A figure that was measured at several sizes agrees if it does at the largest of them. One that
    has no results has the verdict "empty".

    Args:
        rows: rows of results stores, by key.
    """
    cells: list[FigureRow] = []
    verdicts: dict[tuple[str, str, str, int | None], str] = {}
    for size in SIZES:
        for found in scores(size, rows):
            for cell in _figures(found, size):
                cells.append(cell)
                if cell["published"] is not None and cell["verdict"] != "partial":
                    verdicts[_place(cell)] = cell["verdict"]
    listed = {_place(cell) for cell in cells if cell["published"] is not None}
    cells += (cell for cell in _published() if _place(cell) not in listed)
    return {
        "measured": len(verdicts),
        "agree": sum(verdict == "agrees" for verdict in verdicts.values()),
        "of": fixed_points.num_figures(),
        "cells": cells,
    }


def scores(size: SizeName, rows: Mapping[str, Row]) -> Sequence[ConditionScore]:
    """Return the scores of every condition that has results at a size."""
    every = (
        score(condition, rows) for suite in SUITES.values() for condition in suite.conditions(size)
    )
    return [found for found in every if found.rows]


def _figures(found: ConditionScore, size: SizeName) -> Iterator[FigureRow]:
    condition = found.condition
    for length in found.lengths:
        numbers = found.at(length)
        yield {
            "suite": condition.suite,
            "column": condition.column,
            "model": condition.model,
            "length": length,
            "size": size,
            "protocol": "reduced" if condition.published_for else "paper",
            "metric": condition.metric,
            "seeds": len(numbers.values),
            "mean": numbers.mean,
            "iterations": list(numbers.iterations),
            "published": None if numbers.published is None else numbers.published.accuracy,
            "verdict": numbers.verdict,
        }


def _published() -> Iterator[FigureRow]:
    """Yield all figures of the paper, as yet without results."""
    for suite in SUITES.values():
        for one in suite.conditions("paper"):
            for length, number in one.published.items():
                yield _empty(one.suite, one.column, one.model, length, one.metric, number.accuracy)
    for model, perplexity in fixed_points.language().items():
        yield _empty("language", "FineWeb", model, None, "perplexity", perplexity)


def _empty(
    suite: str, column: str, model: str, length: int | None, metric: str, published: float
) -> FigureRow:
    return {
        "suite": suite,
        "column": column,
        "model": model,
        "length": length,
        "size": "paper",
        "protocol": "paper",
        "metric": metric,
        "seeds": 0,
        "mean": None,
        "iterations": [],
        "published": published,
        "verdict": "empty",
    }


def _place(cell: FigureRow) -> tuple[str, str, str, int | None]:
    return cell["suite"], cell["column"], cell["model"], cell["length"]
