"""The tables of measured speed in the documentation, from committed rows.

A table names the row file of each of its columns. To show a newer measurement, commit its rows and
name their file here.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from measurement_tables import json_lines, pivot

NAMES = {"bd_lru": "BD-LRU", "h_lru": "H-LRU"}
Row = dict[str, Any]
Cells = Iterator[tuple[tuple[str, ...], str, str]]
"""The line of a table, its column, and the text there."""


def tables() -> dict[str, str]:
    """Return the Markdown of every table by the name of its file."""
    sizes = "B x T x H x m"
    return {
        "paper": _table(
            "Operators, forward and backward, against a copy and the paper's scan. B = 8, T = 2048,"
            " H = 128, float32.",
            ["m"],
            _paper,
            ["ops-0cfac9a"],
        ),
        "operators": _table(
            "Time of an operator, forward and backward, divided by the time of a copy of its "
            "bytes.",
            ["dtype", "gates", sizes],
            _operators,
            ["ops-5f14511", "ops-9442151"],
            is_sorted=True,
        ),
        "low_rank": _table(
            "Time of the low-rank scan, forward and backward, divided by the time of a copy of its "
            "bytes. B = 8, T = 2048, 128 heads, float32.",
            ["entries of a head"],
            _low_rank,
            ["low-rank-b393ed4"],
        ),
        "gpu": _gpu("gpu-4b756eb"),
        "peers": _table(
            "Milliseconds of operators, forward and backward, at equal tokens and equal state.",
            ["recurrence", "dtype", sizes],
            _peers,
            ["ops-d6c4113"],
        ),
        "layers": _table(
            "Time of a layer's forward and backward in float32, divided by two other times.",
            ["layer", "B x T x width"],
            _layers,
            ["layers-5f14511", "layers-637d344"],
        ),
        "steps": _table(
            "Time of a decoding step divided by the time of its three projections, on one thread.",
            ["recurrence", "width", "m"],
            _steps,
            ["decode-c80c6c9", "decode-637d344"],
        ),
    }


def _paper(row: Row) -> Cells:
    case, ratios = row["case"], row["ratios"]
    if case["batch_size"] == 8 and case["direction"] == "forward_backward":
        name, key = NAMES[case["recurrence"]], (str(case["block_size"]),)
        if row["provider"] == "statemix":
            yield key, f"{name}, x of copy", f"{ratios['copy']['p50']:.2f}"
        elif row["provider"] == "paper":
            slower = f"{ratios['statemix']['p50']:.0f}" if ratios else row["status"]
            yield key, f"paper's {name}, x of ours", slower


def _operators(row: Row) -> Cells:
    case = row["case"]
    if case["direction"] == "forward_backward" and row["provider"] == "statemix":
        heading = f"{NAMES[case['recurrence']]}, {_machine(row)}"
        yield (row["dtype"], case["gate"], _size(case)), heading, _ratio(row, "copy", 1)


def _low_rank(row: Row) -> Cells:
    case, ratios = row["case"], row["ratios"]
    if (case["batch_size"], case["direction"]) == (8, "forward_backward"):
        key, heading = (str(case["block_size"]),), f"rank {case['rank']}"
        if row["provider"] == "statemix":
            yield key, f"{heading}, x of copy", f"{ratios['copy']['p50']:.1f}"
        elif row["provider"] == "torch-loop":
            yield key, f"{heading}: loop in PyTorch, x of ours", f"{ratios['statemix']['p50']:.1f}"


def _gpu(file: str) -> str:
    def cells(row: Row) -> Cells:
        if row["provider"] == "statemix":
            heading = row["case"]["direction"].replace("_", " and ")
            yield (row["dtype"], _size(row["case"])), heading, _ratio(row, "copy", 1)

    device = json_lines("bench", f"{file}.jsonl")[-1]["backends"]["triton"]
    caption = f"Time of BD-LRU on one {device}, divided by the time of a copy of its bytes."
    return _table(caption, ["dtype", "B x T x H x m"], cells, [file])


def _peers(row: Row) -> Cells:
    if row["case"]["direction"] == "forward_backward":
        text = f"{1e3 * row['time_s']['p50']:.1f}" if row["time_s"] else row["status"]
        key = (NAMES[row["case"]["recurrence"]], row["dtype"], _size(row["case"]))
        yield key, f"`{row['provider']}`", text


def _layers(row: Row) -> Cells:
    case, provider = row["case"], row["provider"]
    if (projections := f"{provider} projections") in row["ratios"]:
        size = f"{case['batch_size']}x{case['length']}x{case['hidden_size']}"
        for of, what in ((projections, "its projections"), ("lstm", "an LSTM")):
            yield (f"`{provider}`", size), f"x of {what}, {_machine(row)}", _ratio(row, of)


def _steps(row: Row) -> Cells:
    case = row["case"]
    if row["provider"] == "statemix":
        key = (NAMES[case["recurrence"]], str(case["hidden_size"]), str(case["block_size"]))
        heading = f"batch {case['batch_size']}, {_machine(row)}"
        yield key, heading, _ratio(row, "projections")


def _ratio(row: Row, of: str, digits: int = 2) -> str:
    return f"{row['ratios'][of]['p50']:.{digits}f}"


def _size(case: Row) -> str:
    return "x".join(
        str(case[name]) for name in ("batch_size", "length", "num_blocks", "block_size")
    )


def _machine(row: Row) -> str:
    return "AMD" if row["cpu"].startswith("AMD") else "Intel"


def _table(
    caption: str,
    head: Sequence[str],
    cells_of: Callable[[Row], Cells],
    files: Sequence[str],
    *,
    is_sorted: bool = False,
) -> str:
    """Return a caption, and a table with a line per key and a column per heading."""
    cells = [
        cell
        for file in files
        for row in json_lines("bench", f"{file}.jsonl")
        for cell in cells_of(row)
    ]
    if is_sorted:
        cells.sort(key=lambda cell: cell[0])
    rows = ", ".join(f"`laboratory/results/bench/{file}.jsonl`" for file in files)
    return f"{caption}\nRows: {rows}.\n\n{pivot(head, cells)}"
