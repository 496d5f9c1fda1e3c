"""The tables and pictures of language models in the documentation, from committed rows.

Cells without rows show a dash, and a study without rows has no picture.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
from measurement_tables import RESULTS, json_lines, markdown, pivot, study_rows

from statemix_lab.studies.figure import Panel, draw, png
from statemix_lab.studies.language.language_studies import (
    duel_panels,
    duel_table,
    figure_panels,
    figure_table,
)
from statemix_lab.studies.language.language_verdicts import (
    figure_speeds,
    training_speeds,
    verdict_lines,
)
from statemix_lab.studies.result_text import Table
from statemix_lab.studies.study import find_study

_TABLES: Mapping[str, Callable[[pl.DataFrame], Table]] = {"fig4": figure_table, "duel": duel_table}


def tables() -> dict[str, str]:
    """Return the Markdown of every table by the name of its file."""
    runs, drawn = _runs(), _panels()
    found = {}
    for name, lay_out in _TABLES.items():
        table = lay_out(runs[name])
        text = markdown(table.head, [line.cells for line in table.lines])
        picture = f"\n![Bits per byte](../images/{name}.png)\n" if drawn[name] else ""
        found[name] = text + picture
    lines = []
    speeds = figure_speeds(training_speeds(_speed_rows()))
    for head, details in verdict_lines(runs["fig4"], speeds):
        outcome, _, claim = head.partition(": ")
        yes = sum(line.startswith("holds") for line in details)
        lines.append((claim, outcome, f"{yes} of {len(details)}"))
    header = ("claim", "verdict", "comparisons that support it")
    found["fig4_verdicts"] = markdown(header, lines)
    found["language_speed"] = _speed_table(_speed_rows())
    return found


def pictures() -> dict[str, bytes]:
    """Return the pictures of the studies that have results, as PNG by name."""
    return {
        name: png(draw(panels, y_label="bits per byte"))
        for name, panels in _panels().items()
        if panels
    }


def _runs() -> dict[str, pl.DataFrame]:
    studies = {name: find_study(name) for name in _TABLES}
    rows = study_rows()
    return {name: one.runs(one.entries("paper", "laptop"), rows) for name, one in studies.items()}


def _panels() -> dict[str, list[Panel]]:
    runs = _runs()
    speeds = training_speeds(_speed_rows())
    return {"fig4": figure_panels(runs["fig4"]), "duel": duel_panels(runs["duel"], speeds)}


def _speed_rows() -> list[dict[str, Any]]:
    """Return the rows of ``statemix bench language``, in the order of the files' names."""
    files = sorted((RESULTS / "bench").glob("language-*.jsonl"))
    return [row for file in files for row in json_lines("bench", file.name)]


def _speed_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write tokens per second of training and of decoding, and the memory of decoding."""
    cells = []
    for row in rows:
        if row["benchmark"] == "language-memory":
            heading = f"cache after {row['tokens']:,}"
            text = f"{row['cache_bytes']:,} B"
        else:
            task, length = row["case"]["task"], row["case"]["length"]
            heading = "training" if task == "training" else f"decoding after {length:,}"
            text = f"{row['tokens_per_s']:,.0f}" if row["tokens_per_s"] else row["status"]
        cells.append(((row["provider"],), heading, text))
    return pivot(["model"], cells)
