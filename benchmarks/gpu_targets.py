"""Print the targets for an H200 beside what the rows of ``benchmarks/gpu.sh`` say.

    python benchmarks/gpu_targets.py results/bench/gpu-1234567.jsonl

A target is decided by a measurement of what it is about, and by nothing else: without one the line
says so. Of repeated measurements the last counts.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

Row = Mapping[str, Any]

SIZES = (1, 2, 3, 4, 5, 6, 8, 16)
_TOKENS = 8 * 2048
_LAYER = {"hidden_size": 1024, "batch_size": 8, "length": 2048}


class Line(NamedTuple):
    """A line of the table.

    Attributes:
        name: what is measured.
        measured: the number; None if no row has it.
        unit: unit of all three numbers.
        first: limit of the first version; None if there is none.
        then: limit of the version after.
        bound: which side of a limit meets it.
        remark: what the reader has to know; of a line that decides nothing, why.
        decides: whether the measurement is of what the target is about.
    """

    name: str
    measured: float | None
    unit: str
    first: float | None = None
    then: float | None = None
    bound: Literal["at most", "at least"] = "at most"
    remark: str = ""
    decides: bool = True


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    path = parser.parse_args().rows
    text = path.read_text() if path.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    print(table(lines([row for row in rows if row.get("device", "cpu") != "cpu"])))


def lines(rows: Iterable[Row]) -> list[Line]:
    """Return all lines; ``rows`` are those of one GPU."""
    kept = [row for row in rows if row.get("status", "measured") == "measured"]
    return [*_operators(kept), *_layers(kept), *_lags(kept), *_decoding(kept), *_others(kept)]


def table(listed: Iterable[Line]) -> str:
    """Return the table as text, with the remarks below it."""
    cells = [("target", "measured", "first version", "then")]
    remarks: list[str] = []
    for line in listed:
        if line.remark and line.remark not in remarks:
            remarks.append(line.remark)
        mark = f" [{remarks.index(line.remark) + 1}]" if line.remark else ""
        shown = "not measured" if line.measured is None else f"{line.measured:.3g} {line.unit}"
        cells.append((line.name + mark, shown, _side(line, line.first), _side(line, line.then)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join([*text, *(f"[{n}] {remark}" for n, remark in enumerate(remarks, start=1))])


def _side(line: Line, limit: float | None) -> str:
    """Return a limit, and whether it is met."""
    if limit is None:
        return ""
    at_most = line.bound == "at most"
    shown = f"{'<=' if at_most else '>='} {limit:g}"
    if line.measured is None:
        return shown
    if not line.decides:
        return f"{shown} not decided"
    good = line.measured <= limit if at_most else line.measured >= limit
    return f"{shown} {'met' if good else 'missed'}"


def _found(rows: Iterable[Row], benchmark: str, **wanted: Any) -> Iterator[Row]:
    """Yield the rows of a benchmark whose case has these sizes, the last first."""
    for row in reversed(list(rows)):
        if row["benchmark"] == benchmark and wanted.items() <= row["case"].items():
            yield row


def _first(rows: Iterator[Row], **wanted: Any) -> Row | None:
    return next((row for row in rows if wanted.items() <= row.items()), None)


def _quotient(over: float | None, under: float | None) -> float | None:
    """Return a ratio of two measurements; None if either is missing or zero."""
    return over / under if over and under else None


def _operators(rows: Iterable[Row]) -> Iterator[Line]:
    for size in SIZES:
        wanted = {"recurrence": "bd_lru", "direction": "forward_backward", "block_size": size}
        found = (
            row
            for row in _found(rows, "ops", **wanted)
            if row["case"]["batch_size"] * row["case"]["length"] == _TOKENS
            and abs(row["case"]["num_blocks"] * size - 768) < 8
            and "copy" in row["ratios"]
        )
        row = _first(found, provider="statemix", dtype="bfloat16")
        limits = (2.0, 1.5) if size == 16 else (1.6, 1.25)
        ratio = row and row["ratios"]["copy"]["p50"]
        yield Line(f"BD-LRU m={size}, forward and backward over a copy", ratio, "x", *limits)


def _layers(rows: Iterable[Row]) -> Iterator[Line]:
    speeds = {}
    for size in SIZES:
        row = _layer(rows, block_size=size, backend="triton")
        speeds[size] = row and row["tokens_per_s"] / 1e6
        name = f"layer of 33M parameters, m={size}"
        yield Line(name, speeds[size], "Mtok/s", 2.2, 2.7, "at least")
    known = [speed for speed in speeds.values() if speed is not None]
    spread = 100 * (1 - min(known) / max(known)) if len(known) == len(SIZES) else None
    remark = "the slowest below the fastest, of the eight m above"
    yield Line("spread of these layers", spread, "%", 20, 10, remark=remark)
    ours, compiled = (
        _layer(rows, block_size=4, backend=backend, compiled=backend == "associative")
        for backend in ("triton", "associative")
    )
    slower = _quotient(*(row and row["tokens_per_s"] for row in (ours, compiled)))
    yield Line("layer of 33M parameters, m=4: the paper's compiled scan over ours", slower, "x")


def _layer(
    rows: Iterable[Row], *, block_size: int, backend: str, compiled: bool = False
) -> Row | None:
    for row in _found(rows, "layers", **_LAYER):
        wanted = {"name": "bd_lru", "block_size": block_size, "backend": backend}
        is_whole = not row["projections"] and row["compiled"] == compiled
        is_large = abs(row["num_parameters"] - 33e6) < 0.05 * 33e6
        is_timed = is_whole and is_large and row["dtype"] == "bfloat16"
        if is_timed and wanted.items() <= row["layer"].items():
            return row
    return None


def _lags(rows: Iterable[Row]) -> Iterator[Line]:
    sizes = {"recurrence": "h_lru", "num_blocks": 768, "block_size": 16, "batch_size": 8}
    sizes |= {"length": 2048, "direction": "forward_backward"}
    ours, paper = (
        _first(_found(rows, "ops", **sizes), provider=name, dtype="bfloat16")
        for name in ("statemix", "paper")
    )
    name = "H-LRU m=16 of 768 channels"
    yield Line(f"{name}, forward and backward", ours and 1e3 * ours["time_s"]["p50"], "ms", 1, 0.5)
    more = _quotient(*(row and row["memory_bytes"] for row in (paper, ours)))
    yield Line(f"{name}, peak memory of the companion form over ours", more, "x")
    saved = [
        row["saved_bytes_per_token"] / 1e3
        for row in _found(rows, "layers", hidden_size=768, batch_size=8, length=2048)
        if {"name": "h_lru", "num_channels": 768, "order": 16, "backend": "triton"}.items()
        <= row["layer"].items()
        and row["saved_bytes_per_token"] is not None
        and row["dtype"] == "bfloat16"
    ]
    yield Line(f"{name}, saved by its layer per token", saved[0] if saved else None, "kB", 32, 32)


def _decoding(rows: Iterable[Row]) -> Iterator[Line]:
    found = list(_found(rows, "decode", recurrence="bd_lru", batch_size=2048, hidden_size=768))
    ours = _first(iter(found), provider="statemix")
    for label, words in (
        ("Mamba-2", {"mamba2"}),
        ("Gated DeltaNet", {"delta_net", "use_forget_gate=True"}),
    ):
        peer = next((row for row in found if words <= set(row["provider"].split())), None)
        ratio = _quotient(*(row and _per_projections(row) for row in (peer, ours)))
        remark = (
            "one layer of width 768 and our own form of the peer; the target is a model of 140M"
        )
        name = f"decoding 2048 sequences, {label} over ours"
        yield Line(name, ratio, "x", 3, 5, "at least", remark, decides=False)


def _per_projections(row: Row) -> float:
    ratio: float = row["ratios"]["projections"]["p50"]
    return ratio


def _others(rows: Iterable[Row]) -> Iterator[Line]:
    wanted = {"length": 2**20, "hidden_size": 768, "block_size": 4}
    long = _first(_found(rows, "long_context", **wanted), provider="kept")
    took = long and 1e3 * long["time_s"]["p50"]
    yield Line("a million tokens, batch 1, m=4, one layer", took, "ms", 80, 50)
    steps: dict[str, dict[str, Row]] = {}
    for row in _found(rows, "cold_start"):
        case = dict(row["case"])
        direction = case.pop("direction")
        steps.setdefault(json.dumps(case), {}).setdefault(direction, row)
    whole = [step.values() for step in steps.values() if len(step) == 2]
    slowest = max((sum(row["first_call_s"] for row in step) for step in whole), default=None)
    kernels = sum(len(row["kernels"]) for step in whole for row in step)
    sizes = sorted({row["case"]["block_size"] for step in whole for row in step})
    shown = ", ".join(map(str, sizes)) or "none"
    remark = f"forward and backward of an operator, the slowest of m = {shown}"
    # Without a compilation nothing was cold.
    cold = kernels > 0
    yield Line("first step, cold", slowest, "s", 2, 2, remark=remark, decides=cold)
    yield Line("kernels compiled in these first steps", kernels if whole else None, "kernels")
    remark = "not a part of this script; its tests against the reference have limits of their own"
    yield Line("float32 against float64, every m and gate", None, "", 1e-5, 1e-6, remark=remark)


if __name__ == "__main__":
    main()
