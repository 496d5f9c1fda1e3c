"""How many runs are proven, after how many attempts, and at what cost."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
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

SCORES_LEGEND = """\
Seeds by what has become of their network as trained. not perfect: wrong on a letter of the test
words of 500 letters. refuted: right there, but wrong on another word. not refuted: no wrong word
was found in a minute, or among ten million letters. proven: networks with gates of 0 and 1 that are
right after every word of every length."""

# Quantile of the normal distribution that leaves 2.5% above it.
_Z = 1.959964


def tallies(runs: pl.DataFrame) -> pl.DataFrame:
    """Return a line for each column and model: what its runs add up to."""
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
    return _table(runs, "model", columns | {"accuracy": accuracy_by_length})


def attempts_table(runs: pl.DataFrame) -> Table:
    """Lay out conditions that differ in how an attempt is made, a line for each."""
    columns = {
        "attempts passed": lambda tally: ", ".join(
            [_attempts(tally), *[_without_result(tally)] * bool(tally["lost"])]
        ),
        "proven": _proven,
        "plateau": lambda tally: _mean(tally["plateau"]),
        "steps": lambda tally: _mean(tally["steps"]),
        "cost of a run": _cost,
    }
    return _table(runs, "change", columns)


def monitor_table(runs: pl.DataFrame) -> Table:
    """Lay out what learners of protocols have learned, a line for each learner and setting."""
    lines = []
    done = runs.filter(status="done")
    for _, group in done.group_by("column", "wrong", "model", maintain_order=True):
        first, tally = group.row(0, named=True), tallies(group).to_dicts()[0]
        kept, states = group["property"].to_list(), group["num_states"].drop_nulls()
        cells = (
            first["column"],
            f"{first['wrong']:.0%}",
            first["model"],
            _verdicts(tally),
            f"{kept.count('proven')} of {len(kept)}",
            "–".join(dict.fromkeys([str(states.min()), str(states.max())])) if len(states) else "–",
            accuracy_by_length(tally),
            _cost(tally),
        )
        lines.append(Line(cells))
    names = ("exact", "property", "states", "accuracy", "cost of a run")
    return Table(("protocol", "wrong", "learner", *names), tuple(lines))


def score_table(runs: pl.DataFrame) -> Table:
    """Lay out what has become of networks, a line for each language and layer."""
    lines = []
    outcomes = ("not perfect", "refuted", "not refuted", "without result")
    for (column, model), group in runs.group_by("column", "model", maintain_order=True):
        ended = group["outcome"].to_list()
        certificates = group["certificate"].to_list()
        proven = str(certificates.count("proven")) if any(certificates) else ""
        counts = (str(ended.count(one) or "") for one in outcomes)
        open_ = str(ended.count(None) or "")
        lines.append(Line((str(column), str(model), *counts, open_, proven)))
    return Table(("trained on", "model", *outcomes, "to do", "proven"), tuple(lines))


# A line of `tallies`.
_Tally = Mapping[str, Any]


def _table(runs: pl.DataFrame, model: str, columns: Mapping[str, Callable[[_Tally], str]]) -> Table:
    lines = []
    for tally in tallies(runs).to_dicts():
        if tally["done"]:
            cells = [cell(tally) for cell in columns.values()]
        else:
            cells = [_without_result(tally), *[""] * (len(columns) - 1)]
        lines.append(Line((tally["column"], tally["model"], *cells)))
    return Table(("trained on", model, *columns), tuple(lines))


def _proven(tally: _Tally) -> str:
    certified = len(tally["verdicts"])
    return f"{tally['verdicts'].count('proven')} of {certified}" if certified else "–"


def _without_result(tally: _Tally) -> str:
    return f"{tally['lost']} without result" if tally["lost"] else "–"


def _verdicts(tally: _Tally) -> str:
    counts: Counter[str] = Counter(tally["verdicts"])
    ended = tally["done"] + tally["lost"]
    text = f"{counts.pop('proven', 0)} of {ended}"
    counts.update({"without result": tally["lost"], "to do": tally["planned"] - ended})
    others = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{text} ({', '.join(others)})" if others else text


def _attempts(tally: _Tally) -> str:
    passed = [*tally["passed"], *[False] * tally["lost"]]
    if not passed:
        return "–"
    low, high = interval(passed)
    return f"{sum(passed)} of {len(passed)} ({accuracy_text(low)}–{accuracy_text(high)})"


def _cost(tally: _Tally) -> str:
    seconds = tally["seconds"]
    return f"{duration_text(fmean(seconds))}, {duration_text(max(seconds))}"


def accuracy_by_length(tally: _Tally) -> str:
    """Write the mean accuracies of a line of ``tallies`` at the shortest and longest words."""
    accuracies: dict[int, list[float]] = {}
    for test in tally["tests"]:
        accuracies.setdefault(test["length"], []).append(test["accuracy"])
    ends = (min(accuracies), max(accuracies))
    return " … ".join(accuracy_text(fmean(accuracies[end])) for end in ends)


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
