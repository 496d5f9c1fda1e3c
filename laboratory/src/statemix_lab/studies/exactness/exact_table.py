"""How many runs are proven, after how many attempts, and at what cost."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from statemix_lab.studies.result_text import Line, Table, accuracy_text, duration_text

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

PROTOCOLS_LEGEND = """\
proven: right after every word of every length, with gates of 0 and 1. Columns are letters of a test
word: the accuracy of the network as trained, the mean over seeds, with the range in parentheses.
Published accuracies stand below ours. They are not compared: training and tests differ."""

MONITORS_LEGEND = """\
wrong: share of the labels of training and validation that are wrong. exact: seeds whose learner is
proven to answer every word as the protocol does; "open" means that the search for a proof did not
end. Of the BD-LRU, the network with gates of 0 and 1 is meant. property: seeds that are proven to
keep the protocol's safety property on every word. states: fewest and most states of a learned
automaton. accuracy: share of right answers, the mean over seeds at words of 16 and of 1,024
letters, of networks as trained. cost: mean and most, in processor time."""

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
    columns = {"proven": _verdicts, "attempts passed": _attempts, "cost of a run": _cost}
    return _table(runs, "model", {**columns, "accuracy": accuracy_by_length})


def attempts_table(runs: pl.DataFrame) -> Table:
    """Lay out conditions that differ in how an attempt is made, a line for each."""
    columns = {
        "attempts passed": lambda one: ", ".join(
            [_attempts(one), *[_without_result(one)] * bool(one["lost"])]
        ),
        "proven": _proven,
        "plateau": lambda one: _mean(one["plateau"]),
        "steps": lambda one: _mean(one["steps"]),
        "cost of a run": _cost,
    }
    return _table(runs, "change", columns)


def monitor_table(runs: pl.DataFrame) -> Table:
    """Lay out what learners of protocols have learned, a line for each learner and setting."""
    lines = []
    done = runs.filter(status="done")
    for keys, group in done.group_by("column", "wrong", "model", maintain_order=True):
        column, model = str(keys[0]), str(keys[2])
        wrong: float = group["wrong"].to_list()[0]
        one = tallies(group).to_dicts()[0]
        kept = group["property"].to_list()
        states: list[int] = sorted(set(group["num_states"].drop_nulls().to_list()))
        lines.append(
            Line(
                (
                    column,
                    f"{wrong:.0%}",
                    model,
                    _verdicts(one),
                    f"{kept.count('proven')} of {len(kept)}",
                    "–".join(map(str, dict.fromkeys([states[0], states[-1]]))) if states else "–",
                    accuracy_by_length(one),
                    _cost(one),
                )
            )
        )
    names = ("exact", "property", "states", "accuracy", "cost of a run")
    return Table(("protocol", "wrong", "learner", *names), tuple(lines))


Cell = Callable[[dict[str, Any]], str]


def _table(runs: pl.DataFrame, model: str, columns: Mapping[str, Cell]) -> Table:
    lines = []
    for one in tallies(runs).to_dicts():
        cells = [cell(one) for cell in columns.values()] if one["done"] else [_without_result(one)]
        cells += [""] * (len(columns) - len(cells))
        lines.append(Line((one["column"], one["model"], *cells)))
    return Table(("trained on", model, *columns), tuple(lines))


def _proven(one: dict[str, Any]) -> str:
    certified = len(one["verdicts"])
    return f"{one['verdicts'].count('proven')} of {certified}" if certified else "–"


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


def accuracy_by_length(one: Mapping[str, Any]) -> str:
    """Write the mean accuracies of a line of ``tallies`` at the shortest and longest words."""
    lengths = [test["length"] for test in one["tests"]]
    ends = [
        [test["accuracy"] for test in one["tests"] if test["length"] == end]
        for end in (min(lengths), max(lengths))
    ]
    return " … ".join(accuracy_text(math.fsum(values) / len(values)) for values in ends)


def _mean(counts: Sequence[int]) -> str:
    return f"{sum(counts) / len(counts):.0f}" if counts else "–"


def interval(passed: Sequence[bool]) -> tuple[float, float]:
    r"""Return the 95% interval of the chance of a success.

    .. math:: \frac{k + z^2/2}{n + z^2} \pm
        \frac{z}{n + z^2} \sqrt{\frac{k (n - k)}{n} + \frac{z^2}{4}}

    for k successes of n and z = 1.96. Source: Wilson (1927), "Probable inference, the law of
    succession, and statistical inference".
    """
    n, k = len(passed), sum(passed)
    if n == 0:
        raise ValueError("passed must not be empty")
    centre = (k + _Z**2 / 2) / (n + _Z**2)
    half = _Z / (n + _Z**2) * math.sqrt(k * (n - k) / n + _Z**2 / 4)
    return max(centre - half, 0.0), min(centre + half, 1.0)
