"""Print the targets for an H200 beside what the rows of ``benchmarks/gpu.sh`` say.

    python benchmarks/gpu_targets.py results/bench/gpu-1234567.jsonl --tests proofs.log tests.log

The other files are what ``pytest -v`` prints of the tests of the kernels. A target is decided by a
measurement of what it is about, and by nothing else: without one the line says so. Of repeated
measurements the last counts. Below the table are the errors at every m, and what has no time.
"""

import argparse
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

Row = Mapping[str, Any]

SIZES = (1, 2, 3, 4, 5, 6, 8, 16)
_TOKENS = 8 * 2048
_STEP = {"batch_size": 8, "length": 2048}
# The companion form takes 10 GB for each sequence, so that two are compared.
_FEW = {"batch_size": 2, "length": 2048}
_CARD = "H200"
# At m = 16 no multiple of 16 blocks has 33M parameters in a layer of width 1,024.
_WIDTHS = dict.fromkeys(SIZES, 1024) | {16: 960}
# Kernels whose gradients are checked: operator and gate family.
_KERNELS = (("bd_lru", "softmax"), ("h_lru", "softmax"), ("bd_lru", "householder"))
# Peer -> its operator, the beginning of the label of its layer, and the least time over ours.
_PEERS = {
    "Gated DeltaProduct, n=4": ("gated_delta_product", "Gated DeltaProduct n=4", 1.0),
    "Gated DeltaNet": ("gated_delta_net", "Gated DeltaNet", 1.0),
    "Mamba-2": ("mamba2", "Mamba-2", round(1 / 1.3, 3)),
}
# Shapes in each test of random shapes.
_SHAPES_OF_A_TEST = 20
# What tests prove that need a GPU: the test, and how many there are.
PROOFS = {
    "decoding steps that equal a sequence bit for bit": (
        "test_steps_equal_the_sequence_bit_for_bit", 48
    ),
    "steps that a CUDA graph replays": ("test_a_graph_replays_a_step", 3),
    "packed sequences whose bounds are not read back": (
        "test_bounds_of_packed_sequences_are_never_read_back", 6
    ),
    "gradients of 16 bits at m = 1 to 16, each kernel and dtype": (
        "test_gradients_of_16_bits_are_near_those_of_float64", 96
    ),
}  # fmt: skip
# Largest error over the largest entry, of any output or gradient at any m.
BOUNDS = {"float32": (1e-5, 1e-6), "bfloat16": (2e-2, None)}


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
    parser.add_argument("--tests", type=Path, nargs="*", default=[])
    asked = parser.parse_args()
    every = [json.loads(line) for line in _text(asked.rows).splitlines()]
    rows = [row for row in every if row.get("device", "cpu") != "cpu"]
    print(card(rows))
    print(table(lines(rows, [_text(path) for path in asked.tests])))
    for part in (errors_by_size(rows), untimed(rows)):
        if part:
            print(f"\n{part}")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def card(rows: Iterable[Row]) -> str:
    """Return the words that say which card was measured, and which one the targets are for."""
    names = list(dict.fromkeys(row["device"] for row in rows))
    text = f"Targets of an {_CARD}; measured: {', '.join(names) or 'none'}"
    if not all(re.search(rf"\b{_CARD}\b", name) for name in names):
        text += f"\nTimes and speeds of another card do not decide those of an {_CARD}."
    return text


def errors_by_size(rows: Iterable[Row]) -> str:
    """Return a table of the largest errors at every m beside their bounds, or nothing."""
    worst: dict[tuple[int, str], float] = {}
    for row in _last_gradients(rows):
        place = row["case"]["block_size"], row["dtype"]
        worst[place] = max(worst.get(place, 0.0), _worst(row))
    if not worst:
        return ""
    heads = "".join(f"{f'{dtype} (<= {first:g})':>22}" for dtype, (first, _) in BOUNDS.items())
    text = [f"largest error over the largest entry, by m\n m{heads}"]
    for size in sorted({size for size, _ in worst}):
        found = {dtype: worst.get((size, dtype)) for dtype in BOUNDS}
        cells = (
            "-" if error is None else f"{error:.1e}{'' if error <= BOUNDS[dtype][0] else ' missed'}"
            for dtype, error in found.items()
        )
        text.append(f"{size:2}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(text)


def untimed(rows: Iterable[Row]) -> str:
    """Return a line for every row that has no time because something is wrong, or nothing."""
    found = []
    for row in rows:
        if row.get("status", "measured") != "measured":
            sizes = "x".join(str(size) for size in row["case"].values() if isinstance(size, int))
            what = row["case"].get("recurrence", ""), row["case"].get("direction", "")
            words = (row["benchmark"], *what, sizes, row.get("provider"), row["status"])
            reason = " ".join(str(row.get("reason", "")).split())[:200]
            found.append(f"  {' '.join(filter(None, words))}: {reason}")
    return "\n".join(["without a time:", *dict.fromkeys(found)]) if found else ""


def lines(rows: Iterable[Row], tests: Sequence[str]) -> list[Line]:
    """Return all lines.

    Args:
        rows: those of one GPU.
        tests: what pytest printed in each of its runs.
    """
    every = list(rows)
    kept = [row for row in every if row.get("status", "measured") == "measured"]
    parts = (_operators, _layers, _lags, _long, _first_steps, _decoding)
    listed = [line for part in parts for line in part(kept)]
    return [*_gradients(every), *_tests(tests), *listed]


def _gradients(rows: Iterable[Row]) -> Iterator[Line]:
    """Yield the lines of a check that covers every kernel and m; of repeated rows the last."""
    last = _last_gradients(rows)
    wanted = {(*kernel, size) for kernel in _KERNELS for size in range(1, 17)}
    covered = []
    for dtype, (first, then) in BOUNDS.items():
        found = [row for row in last if row["dtype"] == dtype]
        sizes = ("recurrence", "gate", "block_size")
        covered.append({tuple(row["case"][size] for size in sizes) for row in found} & wanted)
        worst = max(map(_worst, found), default=None)
        remark = (
            "outputs and gradients of softmax gates and reflections at m = 1 to 16, the largest "
            f"error over the largest entry; {len(covered[-1])} of {len(wanted)} were checked"
        )
        name = f"{dtype} against float64, every kernel and m"
        decides = covered[-1] == wanted
        yield Line(name, worst, "", first, then, remark=remark if found else "", decides=decides)
    decides = all(each == wanted for each in covered)
    for name, count in (
        ("results with entries that nothing wrote", _is_lost),
        ("results that differ in a second run", _moved),
    ):
        counted = sum(map(count, last)) if last else None
        yield Line(name, counted, "cases", 0, decides=decides)


def _last_gradients(rows: Iterable[Row]) -> list[Row]:
    last = {
        (json.dumps(row["case"]), row["dtype"]): row
        for row in rows
        if row["benchmark"] == "gradients"
    }
    return list(last.values())


def _worst(row: Row) -> float:
    # Without errors they were no numbers.
    return max(row["errors"].values(), default=math.inf)


def _is_lost(row: Row) -> bool:
    return bool(row["status"] != "measured")


def _moved(row: Row) -> bool:
    return not row["repeats"]


def _tests(texts: Sequence[str]) -> Iterator[Line]:
    """Yield the lines of the tests; what was stopped decides nothing that wants all of them."""
    of_tests = [
        line
        for text in texts
        for line in re.findall(r"^.*::.*$", text.partition("short test summary")[0], re.MULTILINE)
    ]
    failures = [line for line in of_tests if re.search(r"\b(FAILED|ERROR)\b", line)]
    passed = [line for line in of_tests if re.search(r"\bPASSED\b", line)]
    ended = bool(texts) and all(
        re.search(r"^=+ .*\d+ (passed|failed).* in .*=+$", text, re.MULTILINE) for text in texts
    )
    for name, (test, count) in PROOFS.items():
        right = sum(f"::{test}[" in line for line in passed)
        wrong = sum(f"::{test}[" in line for line in failures)
        # Those that were not reached decide nothing, unless one that was has failed.
        known, decides = right if right or wrong else None, right >= count or wrong > 0
        yield Line(name, known, "tests", count, bound="at least", decides=decides)
    shapes = _SHAPES_OF_A_TEST * sum("::test_random_shapes_equal" in line for line in passed)
    name = "random shapes that equal the reference"
    yield Line(name, shapes or None, "shapes", 200, bound="at least")
    remark = "" if ended else f"the tests did not end; {len(passed)} passed"
    known = len(failures) if of_tests else None
    name = "tests of the kernels that failed, in memory filled with NaN"
    yield Line(name, known, "tests", 0, remark=remark if of_tests else "", decides=ended)


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
            # 160 blocks of m = 5, which are a multiple of 16, have 800.
            and abs(row["case"]["num_blocks"] * size - 768) <= 32
            and "copy" in row["ratios"]
        )
        row = _first(found, provider="statemix", dtype="bfloat16")
        limits = (2.0, 1.5) if size == 16 else (1.6, 1.25)
        ratio = row and row["ratios"]["copy"]["p50"]
        yield Line(f"BD-LRU m={size}, forward and backward over a copy", ratio, "x", *limits)
    sizes = {"recurrence": "bd_lru", "direction": "forward_backward", "num_blocks": 192}
    for name, (operator, _, least) in _PEERS.items():
        found = (
            row
            for row in _found(rows, "ops", **sizes, **_STEP, block_size=4)
            if "statemix" in row["ratios"]
        )
        row = _first(found, provider=operator, dtype="bfloat16")
        ratio = row and row["ratios"]["statemix"]["p50"]
        name = f"BD-LRU m=4, forward and backward, {name} over ours"
        yield Line(name, ratio, "x", least, bound="at least")


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
    name = "layer of 33M parameters, m=4:"
    compiled = _layer(rows, block_size=4, backend="associative", compiled=True)
    slower = _over_ours(rows, compiled)
    yield Line(f"{name} the paper's compiled scan over ours", slower, "x", 5, bound="at least")
    for peer, (_, label, least) in _PEERS.items():
        found = (
            row
            for row in _layers_of_33m(rows, 1024)
            # Our own forms in PyTorch are no peers.
            if row["label"].startswith(label) and row["foreign_kernels"]
        )
        ratio = _over_ours(rows, next(found, None))
        yield Line(f"{name} {peer} over ours", ratio, "x", least, bound="at least")


def _over_ours(rows: Iterable[Row], other: Row | None) -> float | None:
    """Return the time of another layer over that of ours at m = 4, measured in one process."""
    if other is None:
        return None
    beside = [row for row in rows if row["started_utc"] == other["started_utc"]]
    ours = _layer(beside, block_size=4, backend="triton")
    return _quotient(ours and ours["tokens_per_s"], other["tokens_per_s"])


def _layer(
    rows: Iterable[Row], *, block_size: int, backend: str, compiled: bool = False
) -> Row | None:
    wanted = {"name": "bd_lru", "block_size": block_size, "backend": backend}
    for row in _layers_of_33m(rows, _WIDTHS[block_size]):
        if row["compiled"] == compiled and wanted.items() <= row["layer"].items():
            return row
    return None


def _layers_of_33m(rows: Iterable[Row], hidden_size: int) -> Iterator[Row]:
    for row in _found(rows, "layers", **_STEP, hidden_size=hidden_size):
        is_large = abs(row["num_parameters"] - 33e6) < 0.05 * 33e6
        if is_large and not row["projections"] and row["dtype"] == "bfloat16":
            yield row


def _lags(rows: Iterable[Row]) -> Iterator[Line]:
    sizes = {"recurrence": "h_lru", "num_blocks": 768, "block_size": 16}
    sizes |= {"direction": "forward_backward"}

    def operator(provider: str, place: Mapping[str, int]) -> Row | None:
        found = _found(rows, "ops", **sizes, **place)
        return _first(found, provider=provider, dtype="bfloat16")

    name, whole = "H-LRU m=16 of 768 channels", operator("statemix", _STEP)
    time_ms = whole and 1e3 * whole["time_s"]["p50"]
    yield Line(f"{name}, forward and backward", time_ms, "ms", 1, 0.5)
    few = [operator(provider, _FEW) for provider in ("paper", "statemix")]
    more = _quotient(*(row and row["memory_bytes"] for row in few))
    what = "peak memory of the companion form over ours"
    remark = "two sequences of 2,048 tokens, because the companion form of 8 takes about 80 GB"
    yield Line(f"{name}, {what}", more, "x", 8, bound="at least", remark=remark)
    layers = {
        backend: next(_lag_layers(rows, backend), None) for backend in ("triton", "associative")
    }
    companion, ours = layers["associative"], layers["triton"]
    more = _quotient(*(row and row["memory_bytes"] for row in (companion, ours)))
    yield Line(f"a layer of {name}, {what}", more, "x", 8, bound="at least", remark=remark)
    saved = ours and ours["saved_bytes_per_token"] / 1e3
    yield Line(f"{name}, saved by its layer per token", saved, "kB", 32, 32)


def _lag_layers(rows: Iterable[Row], backend: str) -> Iterator[Row]:
    wanted = {"name": "h_lru", "num_channels": 768, "order": 16, "backend": backend}
    for row in _found(rows, "layers", hidden_size=768, **_FEW):
        is_whole = not row["compiled"] and not row["projections"] and row["dtype"] == "bfloat16"
        if is_whole and wanted.items() <= row["layer"].items():
            yield row


def _decoding(rows: Iterable[Row]) -> Iterator[Line]:
    sizes = {"recurrence": "bd_lru", "batch_size": 2048, "hidden_size": 768}
    found = [row for row in _found(rows, "decode", **sizes) if row["dtype"] == "bfloat16"]
    ours = _first(iter(found), provider="statemix")
    for label, words in (
        ("Mamba-2", {"mamba2"}),
        ("Gated DeltaNet", {"delta_net", "use_forget_gate=true"}),
    ):
        peer = next((row for row in found if words <= set(row["provider"].split())), None)
        ratio = _quotient(*(row and _per_projections(row) for row in (peer, ours)))
        remark = (
            "not decided: one layer of width 768, and the peer in operators of PyTorch. The target "
            "is of whole models with 140M parameters and the peers' own kernels"
        )
        name = f"decoding 2048 sequences, {label} over ours"
        yield Line(name, ratio, "x", 3, 5, "at least", remark, decides=False)


def _per_projections(row: Row) -> float:
    ratio: float = row["ratios"]["projections"]["p50"]
    return ratio


def _long(rows: Iterable[Row]) -> Iterator[Line]:
    """Yield time and memory of each way to train on a long sequence; one way has to meet both."""
    wanted = {"length": 2**20, "hidden_size": 768, "block_size": 4}
    for provider in ("kept", "computed again"):
        long = _first(_found(rows, "long_context", **wanted), provider=provider)
        name = f"a million tokens, batch 1, m=4, one layer, gates {provider}"
        yield Line(f"{name}, time", long and 1e3 * long["time_s"]["p50"], "ms", 80, 50)
        peak = long and (long["memory_bytes"] or None)
        yield Line(f"{name}, peak memory", peak and peak / 1e9, "GB", 20, 20)


def _first_steps(rows: Iterable[Row]) -> Iterator[Line]:
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


if __name__ == "__main__":
    main()
