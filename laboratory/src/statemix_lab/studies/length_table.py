"""Accuracies against the length of test sequences: the usual table and figure of a study."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from statemix_lab.studies import result_text
from statemix_lab.studies.figure import CURVE, Panel
from statemix_lab.studies.result_text import MARKS, Line, Table, accuracy_text, published_text
from statemix_lab.studies.study_entries import StudyEntry
from statemix_lab.studies.tidy import by_length, cell_labels

LENGTHS_LEGEND = """\
Columns are tokens of a test sequence. Each number is the mean over seeds, with the range in
parentheses; after @ stand the iterations at the test, the mean over seeds and layers. = agrees with
the paper within .05, < below, > above the paper, ? fewer than three seeds. cost: mean training and
evaluation of a seed."""


def length_table(runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
    """Lay out accuracies: a line for each model and a column for each length of test sequences."""
    cell = cell_labels(runs)
    numbers = by_length(runs, entries)
    lengths = sorted(numbers["length"].unique())
    known = numbers.partition_by(cell, as_dict=True)
    proven = runs["certificate"].null_count() < len(runs)
    lines = []
    for place, group in runs.group_by(cell, maintain_order=True):
        of = {one["length"]: one for one in known[place].to_dicts()} if place in known else {}
        here = [of.get(length, {}) for length in lengths]
        first = group.row(0, named=True)
        certified = group["certificate"].drop_nulls()
        count = (
            f"{int((certified == 'proven').sum())} of {len(certified)}" if len(certified) else ""
        )
        proofs = [count] if proven else []
        seconds = group.filter(pl.col("status") == "done")["seconds"].to_list()
        cost = result_text.duration_text(math.fsum(seconds) / len(seconds)) if seconds else ""
        texts = (_ended_text(group), *proofs, *map(_number, here), cost)
        lines.append(Line((first["column"], first["model"], *texts)))
        if any(number.get("published") is not None for number in here):
            texts = (*[""] * (1 + len(proofs)), *map(_published, here), "")
            lines.append(Line(("  paper", first["published_for"], *texts), quiet=True))
    head = ["trained on", "model", "seeds", *(["proven"] if proven else [])]
    return Table((*head, *(f"{length:,}" for length in lengths), "cost"), tuple(lines))


def _number(one: Mapping[str, Any]) -> str:
    if not one.get("seeds"):
        return ""
    low, high = accuracy_text(one["low"]), accuracy_text(one["high"])
    text = accuracy_text(one["mean"]) + (f" ({low}–{high})" if low != high else "")
    if one["iterations"] is not None:
        text += f" @{one['iterations']:.0f}"
    return f"{text} {MARKS[one['verdict']]}".rstrip()


def _published(one: Mapping[str, Any]) -> str:
    if one.get("published") is None:
        return ""
    steps = one["published_iterations"]
    return published_text(one["published"]) + ("" if steps is None else f" @{steps}")


def _ended_text(runs: pl.DataFrame) -> str:
    """Write how many of some runs have a result, and how many ended without one."""
    ended = runs["status"].drop_nulls()
    done = int((ended == "done").sum())
    lost = len(ended) - done
    return f"{done} of {len(runs)}" + (f", {lost} without result" if lost else "")


def length_panels(
    runs: pl.DataFrame, panel: str = "column", line: str = "model", x_label: str = "tokens"
) -> list[Panel]:
    """Return a panel for each column: accuracy against the length of test sequences."""
    done = runs.filter(pl.col("status") == "done").explode("tests").unnest("tests")
    family = "family" if line == "model" else line
    names = (line, family, "key", "length", "accuracy")
    points = [pl.col(name).alias(place) for name, place in zip(names, CURVE, strict=True)]
    return [
        Panel(str(name), x_label, group.select(points))
        for (name,), group in done.group_by([panel], maintain_order=True)
    ]
