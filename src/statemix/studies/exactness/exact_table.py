"""How many runs are proven, after how many attempts, and at what cost."""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from statemix.studies.figure import Panel
from statemix.studies.result_text import Line, Table, accuracy_text, duration_text

LEGEND = """\
proven: right after every word of every length, with gates of 0 and 1. attempts passed: attempts
from new weights that passed every test, of all, with the 95% interval of an attempt's chance. cost:
mean and most, with training, tests on words of all lengths and the certificate, on one core.
accuracy: of the network as trained, the mean over seeds at the shortest and at the longest test
words. From 65,536 tokens on it is that of one word per network."""

ATTEMPTS_LEGEND = """\
attempts passed: attempts that still answer words four times as long with sharp gates, with the 95%
interval of an attempt's chance. proven: networks that are right after every word of every length
with gates of 0 and 1, of all that were certified, whether they passed or not, though none was
sharpened. plateau: mean steps before an attempt left it. steps: mean steps of an attempt. cost:
mean and most, on one core."""

# Quantile of the normal distribution that leaves 2.5% above it.
_Z = 1.959964


def tallies(runs: pl.DataFrame) -> pl.DataFrame:
    """Return a line for each column and model: what its runs add up to.

    Columns: planned, done, lost, verdicts (of runs with a certificate), attempts (whether each has
    passed; a run that was lost counts as one that has not: it ended in its last), steps and plateau
    (of each attempt), seconds, tests.
    """
    done = pl.col("status") == "done"
    lost = (pl.col("status").is_not_null() & ~done).sum()
    of_attempts = pl.col("attempts").filter(done).explode().drop_nulls().struct
    return runs.group_by("column", "model", maintain_order=True).agg(
        planned=pl.len(),
        done=done.sum(),
        lost=lost,
        verdicts=pl.col("certificate").filter(done).drop_nulls(),
        passed=of_attempts.field("passed"),
        steps=of_attempts.field("steps"),
        plateau=of_attempts.field("plateau").drop_nulls(),
        seconds=pl.col("seconds").filter(done),
        tests=pl.col("tests").filter(done).explode(),
    )


def proof_table(runs: pl.DataFrame) -> Table:
    """Lay out conditions whose networks may be proven, a line for each."""
    lines = []
    for one in tallies(runs).to_dicts():
        if one["done"]:
            cells = [_verdicts(one), _attempts(one), _cost(one), _accuracy(one)]
        else:
            cells = [_without_result(one), "", "", ""]
        lines.append(Line((one["column"], one["model"], *cells)))
    head = ("trained on", "model", "proven", "attempts passed", "cost of a run", "accuracy")
    return Table(head, tuple(lines))


def attempts_table(runs: pl.DataFrame) -> Table:
    """Lay out conditions that differ in how an attempt is made, a line for each."""
    lines = []
    for one in tallies(runs).to_dicts():
        cells = [_without_result(one), "", "", "", ""]
        if one["done"]:
            lost = f", {one['lost']} without result" if one["lost"] else ""
            certified = len(one["verdicts"])
            proven = one["verdicts"].count("proven")
            cells = [
                _attempts(one) + lost,
                f"{proven} of {certified}" if certified else "–",
                _mean(one["plateau"]),
                _mean(one["steps"]),
                _cost(one),
            ]
        lines.append(Line((one["column"], one["model"], *cells)))
    head = ("trained on", "change", "attempts passed", "proven", "plateau", "steps")
    return Table((*head, "cost of a run"), tuple(lines))


def _without_result(one: dict[str, Any]) -> str:
    return f"{one['lost']} without result" if one["lost"] else "–"


def _verdicts(one: dict[str, Any]) -> str:
    verdicts = one["verdicts"]
    others = [
        f"{verdicts.count(verdict)} {verdict}"
        for verdict in dict.fromkeys(verdicts)
        if verdict != "proven"
    ]
    ended = one["done"] + one["lost"]
    if one["lost"]:
        others.append(f"{one['lost']} without result")
    if ended < one["planned"]:
        others.append(f"{one['planned'] - ended} to do")
    text = f"{verdicts.count('proven')} of {ended}"
    return f"{text} ({', '.join(others)})" if others else text


def _attempts(one: dict[str, Any]) -> str:
    passed = [*one["passed"], *[False] * one["lost"]]
    if not passed:
        return "–"
    low, high = interval(passed)
    return f"{sum(passed)} of {len(passed)} ({accuracy_text(low)}–{accuracy_text(high)})"


def _cost(one: dict[str, Any]) -> str:
    seconds = one["seconds"]
    return f"{duration_text(math.fsum(seconds) / len(seconds))}, {duration_text(max(seconds))}"


def _accuracy(one: dict[str, Any]) -> str:
    by_length: dict[int, list[float]] = {}
    for test in one["tests"]:
        by_length.setdefault(test["length"], []).append(test["accuracy"])
    ends = [by_length[min(by_length)], by_length[max(by_length)]]
    return " … ".join(accuracy_text(math.fsum(values) / len(values)) for values in ends)


def _mean(counts: Sequence[int]) -> str:
    return f"{sum(counts) / len(counts):.0f}" if counts else "–"


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


def group_panels(runs: pl.DataFrame) -> list[Panel]:
    """Return a panel for each model: accuracy as trained against the length of words."""
    done = runs.filter(pl.col("status") == "done").explode("tests").unnest("tests")
    return [
        Panel(
            str(model),
            "word length",
            group.select(
                pl.col("column").alias("line"),
                pl.col("column").alias("family"),
                pl.col("key").alias("run"),
                pl.col("length").alias("x"),
                pl.col("accuracy").alias("y"),
            ),
        )
        for (model,), group in done.group_by(["model"], maintain_order=True)
    ]
