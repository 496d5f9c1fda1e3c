"""The tables of measured speed in the documentation, from committed rows.

A table names the row file of each of its columns. To show a newer measurement, commit its rows and
name their file here.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measurement_tables import markdown

ROWS = Path(__file__).parents[1] / "results" / "bench"
NAMES = {"bd_lru": "BD-LRU", "h_lru": "H-LRU"}
Row = dict[str, Any]
Cells = dict[tuple[str, ...], dict[str, str]]


def tables() -> dict[str, str]:
    """Return the Markdown of every table by the name of its file."""
    return {
        "paper": _paper("ops-0cfac9a"),
        "operators": _operators("ops-5f14511", "ops-9442151"),
        "gpu": _gpu("gpu-4b756eb"),
        "peers": _peers("ops-d6c4113"),
        "layers": _layers("layers-5f14511", "layers-637d344"),
        "steps": _steps("decode-c80c6c9", "decode-637d344"),
    }


def _paper(file: str) -> str:
    cells: Cells = {}
    for row in _both_directions(file):
        case, ratios = row["case"], row["ratios"]
        if case["batch_size"] != 8 or row["provider"] not in ("statemix", "paper"):
            continue
        of_size = cells.setdefault((str(case["block_size"]),), {})
        name = NAMES[case["recurrence"]]
        if row["provider"] == "statemix":
            of_size[f"{name}, x of copy"] = f"{ratios['copy']['p50']:.2f}"
        else:
            slower = f"{ratios['statemix']['p50']:.0f}" if ratios else row["status"]
            of_size[f"paper's {name}, x of ours"] = slower
    caption = (
        "Operators, forward and backward, against a copy and the paper's scan. B = 8, T = 2048"
    )
    return _table(f"{caption}, H = 128, float32.", ["m"], cells, [file])


def _operators(*files: str) -> str:
    cells: Cells = {}
    for file in files:
        for row in _both_directions(file):
            case = row["case"]
            if row["provider"] == "statemix":
                key = (row["dtype"], case["gate"], _size(case))
                heading = f"{NAMES[case['recurrence']]}, {_machine(row)}"
                cells.setdefault(key, {})[heading] = f"{row['ratios']['copy']['p50']:.1f}"
    caption = (
        "Time of an operator, forward and backward, divided by the time of a copy of its bytes."
    )
    return _table(caption, ["dtype", "gates", "B x T x H x m"], dict(sorted(cells.items())), files)


def _gpu(file: str) -> str:
    cells: Cells = {}
    for row in _rows(file):
        if row["provider"] == "statemix":
            key = (row["dtype"], _size(row["case"]))
            heading = {"forward": "forward", "forward_backward": "forward and backward"}
            ratio = f"{row['ratios']['copy']['p50']:.1f}"
            cells.setdefault(key, {})[heading[row["case"]["direction"]]] = ratio
            device = row["backends"]["triton"]
    caption = f"Time of BD-LRU on one {device}, divided by the time of a copy of its bytes."
    return _table(caption, ["dtype", "B x T x H x m"], cells, [file])


def _peers(file: str) -> str:
    cells: Cells = {}
    for row in _both_directions(file):
        key = (NAMES[row["case"]["recurrence"]], row["dtype"], _size(row["case"]))
        time_s = row["time_s"]
        text = f"{1e3 * time_s['p50']:.1f}" if time_s else row["status"]
        cells.setdefault(key, {})[f"`{row['provider']}`"] = text
    caption = "Milliseconds of operators, forward and backward, at equal tokens and equal state."
    return _table(caption, ["recurrence", "dtype", "B x T x H x m"], cells, [file])


def _layers(*files: str) -> str:
    cells: Cells = {}
    for file in files:
        for row in _rows(file):
            case, ratios = row["case"], row["ratios"]
            projections = ratios.get(f"{row['provider']} projections")
            if projections is not None:
                size = f"{case['batch_size']}x{case['length']}x{case['hidden_size']}"
                of_layer = cells.setdefault((f"`{row['provider']}`", size), {})
                of_layer[f"x of its projections, {_machine(row)}"] = f"{projections['p50']:.2f}"
                of_layer[f"x of an LSTM, {_machine(row)}"] = f"{ratios['lstm']['p50']:.2f}"
    caption = "Time of a layer's forward and backward in float32, divided by two other times."
    return _table(caption, ["layer", "B x T x width"], cells, files)


def _steps(*files: str) -> str:
    cells: Cells = {}
    for file in files:
        for row in _rows(file):
            case = row["case"]
            if row["provider"] == "statemix":
                sizes = (str(case["hidden_size"]), str(case["block_size"]))
                key = (NAMES[case["recurrence"]], *sizes)
                heading = f"batch {case['batch_size']}, {_machine(row)}"
                ratio = f"{row['ratios']['projections']['p50']:.2f}"
                cells.setdefault(key, {})[heading] = ratio
    caption = "Time of a decoding step divided by the time of its three projections, on one thread."
    return _table(caption, ["recurrence", "width", "m"], cells, files)


def _rows(file: str) -> list[Row]:
    return [json.loads(line) for line in (ROWS / f"{file}.jsonl").read_text().splitlines()]


def _both_directions(file: str) -> Iterator[Row]:
    return (row for row in _rows(file) if row["case"]["direction"] == "forward_backward")


def _size(case: Row) -> str:
    return "x".join(
        str(case[name]) for name in ("batch_size", "length", "num_blocks", "block_size")
    )


def _machine(row: Row) -> str:
    return "AMD" if row["cpu"].startswith("AMD") else "Intel"


def _table(caption: str, head: Sequence[str], cells: Cells, files: Sequence[str]) -> str:
    """Return a caption, and a table with a line per key of ``cells`` and a column per heading."""
    headings = list(dict.fromkeys(heading for line in cells.values() for heading in line))
    lines = [
        caption,
        "Rows: " + ", ".join(f"`laboratory/results/bench/{file}.jsonl`" for file in files) + ".",
        "",
        markdown(
            [*head, *headings],
            ([*key, *(line.get(name, "") for name in headings)] for key, line in cells.items()),
        ),
    ]
    return "\n".join(lines)
