"""Tables and figures of accuracies beside those of the paper, and how many numbers agree."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from statemix.layers import LayerSpec
from statemix_lab.studies.figure import Panel, curves
from statemix_lab.studies.higher_order.contenders import (
    CONTENDERS,
    PRICES,
    layer_price,
    price_texts,
    prices,
)
from statemix_lab.studies.higher_order.paper_tables import TABLES
from statemix_lab.studies.higher_order.protocols import options_text, tried
from statemix_lab.studies.result_text import MARKS, Line, Table, accuracy_text, published_text
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study_entries import PROTOCOLS, SIZES, StudyEntry, begun
from statemix_lab.studies.tidy import FULL, scores, seed_means, tidy

LEGEND = """\
Protocols "mad", "paper" and "mlp": the best test accuracy of all runs, as in the paper; in
parentheses mean and standard deviation over the seeds of the best setting. Protocol "tuned": both
over the seeds of the setting chosen on validation data. The deviation of several data sets is the
root of their mean variance. = agrees within .05, < below, > above the paper, ? fewer than three
seeds, not all data sets, or a search under way. Below our line stand the paper's number and, after
"longer", our mean over the same seeds on sequences longer than any in training. Parameters and
forward FLOPs describe the sequence layer alone. To measure its speed, run statemix bench layers."""

Score = Mapping[str, Any]


def cell_table(runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
    """Lay out numbers: a line for each model, with the paper's numbers in the line below."""
    of = {(score["model"], score["column"]): score for score in scores(runs).to_dicts()}
    numbers = {(entry.model, entry.column): entry.published.get(0) for entry in entries}
    columns = list(dict.fromkeys(entry.column for entry in entries))
    lines, blank = [], [""] * len(PRICES)
    for model, layers in {entry.model: entry.layers for entry in entries}.items():
        row = [of.get((model, column)) for column in columns]
        lines.append(Line((model, *map(cell_text, row), *price_texts(layers))))
        published = [numbers.get((model, column)) for column in columns]
        if any(published):
            texts = [published_text(number and number.accuracy) for number in published]
            lines.append(Line(("  paper", *texts, *blank), quiet=True))
        longer = [_longer_text(score) for score in row]
        if any(longer):
            lines.append(Line(("  longer", *longer, *blank), quiet=True))
    return Table(("model", *columns, *PRICES), tuple(lines))


def cell_text(score: Score | None) -> str:
    """Write our number, mean and deviation of the chosen setting, and the mark of the verdict."""
    if score is None or score["verdict"] == "empty":
        lost = 0 if score is None else sum(len(part["lost"]) for part in score["parts"])
        return f"{lost} without result" if lost else "–"
    parts = [part for part in score["parts"] if part["best"] is not None]
    spread = accuracy_text(sum(part["mean"] for part in parts) / len(parts))
    if score["deviation"] is not None:
        # A standard deviation of accuracies is at most .71.
        spread += f"±{accuracy_text(score['deviation'])}"
    if score["protocol"] != "tuned":
        spread = f"{accuracy_text(sum(part['best'] for part in parts) / len(parts))} ({spread})"
    return f"{spread} {MARKS[score['verdict']]}".rstrip()


def longer_means(part: Mapping[str, Any]) -> dict[int, float]:
    """Return tokens of longer test sequences -> mean accuracy of the chosen setting."""
    tested = [test for tests in part["tests"] or () for test in tests]
    by_length = {
        length: [test["accuracy"] for test in tested if test["length"] == length]
        for length in part["lengths"]
    }
    return {at: sum(values) / len(values) for at, values in by_length.items() if values}


def _longer_text(score: Score | None) -> str:
    return ", ".join(
        f"{accuracy_text(mean)} at {length}"
        for part in (score["parts"] if score else ())
        for length, mean in longer_means(part).items()
    )


def point_table(runs: pl.DataFrame) -> Table:
    """Lay out the points of a figure: a line for each x, a column for each of its lines."""
    found = scores(runs)
    names, lines = list(dict.fromkeys(found["line"])), []
    for (panel,), group in found.group_by(["panel"], maintain_order=True):
        for (x,), here in group.sort("x", maintain_order=True).group_by(["x"], maintain_order=True):
            of = {score["line"]: score for score in here.to_dicts()}
            lines.append(Line((str(panel), f"{x:g}", *(cell_text(of.get(n)) for n in names))))
    return Table(("data", "x", *names), tuple(lines))


def price_table(entries: Sequence[StudyEntry]) -> Table:
    """Lay out the costs of the layers of some entries, a line for each model and price."""
    rows = dict.fromkeys((one.model, *price_texts(one.layers)) for one in entries)
    return Table(("model", *PRICES), tuple(Line(row) for row in rows))


def point_panels(runs: pl.DataFrame) -> list[Panel]:
    """Return the panels of a figure: accuracies of the chosen settings, one line per seed."""
    found = scores(runs).filter(pl.col("verdict") != "empty")
    panels = []
    for (title,), group in found.group_by(["panel"], maintain_order=True):
        points = [
            (one["line"], one["family"], str(seed), one["x"], value)
            for one in group.sort("x", maintain_order=True).to_dicts()
            for seed, value in enumerate(seed_means(one["parts"]))
        ]
        panels.append(Panel(str(title), group["x_label"][0], curves(points)))
    return panels


def overview(rows: Mapping[str, StoredRow], names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return how many numbers are measured and agree, of how many, and every number.

    A number stands under each protocol and at each size that has results for it. It counts once as
    measured: the verdict of runs trained in full counts first (see ``tidy.FULL``), then that of the
    protocol that comes first, of runs that are complete, and of the largest size.
    """
    tables = {name: TABLES[name] for name in (TABLES if names is None else names)}
    found: list[dict[str, Any]] = []
    verdicts: dict[tuple[str, str, str], tuple[tuple[bool, int, bool], str]] = {}
    shown: dict[tuple[str, tuple[str, str, str]], set[str]] = {}
    for protocol in reversed(PROTOCOLS):
        for size in SIZES:
            for name, table in tables.items():
                entries = begun(table.entries(protocol, size), rows)
                for score in scores(tidy(entries, rows)).to_dicts() if entries else ():
                    place = (name, score["column"], score["model"])
                    seen = shown.setdefault((protocol, place), set())
                    # Sizes share runs: one is shown for what it adds to the smaller ones.
                    if set(score["done"]) <= seen:
                        continue
                    seen |= set(score["done"])
                    found.append(_row(name, score))
                    in_full = (score["share"] or 0.0) >= FULL
                    rank = (in_full, -PROTOCOLS.index(protocol), score["complete"])
                    if score["measured"] and rank >= verdicts.get(place, (rank,))[0]:
                        verdicts[place] = (rank, score["verdict"])
    known = {(row["table"], row["column"], row["model"]) for row in found}
    for name, table in tables.items():
        whole = table.entries("mad", "laptop")
        left = [one for one in whole if (name, one.column, one.model) not in known]
        found += [_row(name, score) for score in scores(tidy(left, rows)).to_dicts()]
    # Numbers stand in the order of the paper's tables.
    numbers = (
        (name, column.name, model)
        for name, table in tables.items()
        for column in table.columns
        for model in table.published
    )
    order = {number: place for place, number in enumerate(numbers)}
    return {
        "measured": len(verdicts),
        "agree": sum(verdict == "agrees" for _, verdict in verdicts.values()),
        "in_full": sum(rank[0] for rank, _ in verdicts.values()),
        "agree_in_full": sum(
            rank[0] and verdict == "agrees" for rank, verdict in verdicts.values()
        ),
        "of": len(order),
        "cells": sorted(found, key=lambda row: order[row["table"], row["column"], row["model"]]),
    }


def _state_size(layers: Sequence[LayerSpec], setting: str | None) -> int | None:
    """Return the entries of the state of the layer that a setting names."""
    words = (setting or "").split(", ")
    named = (one for one in layers if set(options_text(one, layers)) <= set(words))
    return None if setting is None else layer_price(next(named)).state_size


def _row(table: str, score: Mapping[str, Any]) -> dict[str, Any]:
    layers = tried(CONTENDERS[score["model"]], score["protocol"], score["size"])
    sizes, flops = prices(layers)
    ours = "mean" if score["protocol"] == "tuned" else "best"
    return {
        "table": table,
        **{name: score[name] for name in ("column", "model", "protocol", "size", "seeds")},
        "runs": len(score["done"]),
        "planned": score["planned"],
        "parameters": [min(sizes), max(sizes)],
        "flops": [min(flops), max(flops)],
        **{name: score[name] for name in ("ours", "mean", "deviation", "published", "verdict")},
        "share": score["share"],
        "data": {
            part["data"]: {
                "seeds": part["seeds"],
                "ours": part[ours],
                **{name: part[name] for name in ("mean", "setting", "share")},
                "state_size": _state_size(layers, part["setting"]),
                "longer": {str(length): mean for length, mean in longer_means(part).items()},
            }
            for part in score["parts"]
        },
    }
