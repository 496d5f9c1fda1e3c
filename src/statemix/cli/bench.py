"""``statemix bench``: how fast it is, against what, and with how much memory."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from statemix.bench import ops, rows
from statemix.bench.harness import Measurement, Spread, measure
from statemix.bench.targets import FIRST_VERSION, verdicts
from statemix.settings import RequestError
from statemix.training.devices import check_threads

Outcome = tuple[ops.Case, Sequence[Measurement]]

_TITLES = {"bd_lru": "BD-LRU", "h_lru": "H-LRU"}
_DIRECTIONS = {"forward": "forward", "forward_backward": "forward + backward"}
_WIDTH = 100


# A round of the smallest case takes a microsecond.
_MOST_ROUNDS = 1_000_000


@dataclass(frozen=True)
class Ops:
    """Time the operators against the published scan, a loop over time and a copy.

    Every provider is checked against the float64 reference first; a wrong one gets no time. Then
    all are called in rounds of random order in this one process. Times are medians, ratios are
    medians of the ratios within each round. Memory is the peak of one call above its inputs.
    """

    recurrences: tuple[ops.Recurrence, ...] = ("bd_lru", "h_lru")
    """Operators to time."""

    shapes: tuple[str, ...] = ("8x2048x128", "128x16x64x5")
    """Batch x length x blocks, timed at every block size; a fourth number is the only one."""

    block_sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 16)
    """Block sizes m of BD-LRU."""

    orders: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 16)
    """Orders m of H-LRU."""

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Of gates, values and states."""

    compiled: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also time the published scan under torch.compile with max-autotune. Compiling takes one to
    three minutes for each case."""

    rounds: int = 21
    """Calls per provider and case."""

    budget_s: float = 5.0
    """Seconds for the timed calls of one provider in one case. A slow provider makes fewer calls,
    at least three."""

    threads: int | None = None
    """Threads; by default as many as torch takes."""

    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show in a minute or two that everything runs: an eighth of the length, five rounds, one
    second. Such data fits into caches: its times do not compare with those of a full run."""

    output: Path | None = None
    """File of JSON lines to append one row per measurement to, such as results/bench/ops.jsonl."""

    def run(self) -> None:
        """Measure and print, case by case.

        Raises:
            RequestError: if a size, a number of rounds or threads, a budget or the output is not
                possible.
        """
        if not 1 <= self.rounds <= _MOST_ROUNDS:
            raise RequestError(f"rounds must be in 1..{_MOST_ROUNDS}, got {self.rounds}")
        if not 0 < self.budget_s < math.inf:
            raise RequestError(f"budget-s must be positive and finite, got {self.budget_s}")
        if self.threads is not None:
            check_threads("threads", self.threads)
        cases = ops.cases(self.recurrences, self._shapes(), self.block_sizes, self.orders)
        for case in cases:
            ops.check_fits(case, getattr(torch, self.dtype))
        if self.output is not None:
            rows.open_for_append(self.output)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        process = rows.describe_process()

        console = Console(markup=False, highlight=False)
        if not console.is_terminal:
            console = Console(markup=False, highlight=False, width=_WIDTH)
        _print_setting(console, process, self.dtype)
        outcomes = []
        with _progress(console, len(cases)) as start_case:
            for _, block in groupby(cases, key=_block):
                table = []
                for case in block:
                    measured = self._measure(
                        case, start_case(f"{_label(case)} m={case.block_size}")
                    )
                    table.append((case, measured))
                    if self.output is not None:
                        kept = (ops.row(case, one, self.dtype) for one in measured)
                        rows.append(self.output, kept, process)
                console.print(_table(table))
                outcomes.extend(table)
        _print_targets(console, outcomes)
        if self.output is not None:
            console.print(f"rows appended to {self.output}", soft_wrap=True)

    def _shapes(self) -> list[ops.Shape]:
        shapes = [ops.parse_shape(text) for text in self.shapes]
        if self.quick:
            return [shape._replace(length=_shortened(shape.length)) for shape in shapes]
        return shapes

    def _measure(self, case: ops.Case, on_step: Callable[[str], None]) -> list[Measurement]:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return measure(
            ops.providers(case, dtype, compiled=self.compiled),
            relative_to=(ops.COPY, ops.OURS),
            rounds=min(self.rounds, 5) if self.quick else self.rounds,
            budget_s=min(self.budget_s, 1.0) if self.quick else self.budget_s,
            tolerance=ops.TOLERANCES[dtype],
            seed=0,
            on_step=on_step,
        )


# A choice of one is no choice to tyro; the suppressed None makes "ops" a subcommand.
_Benchmark = Annotated[Ops, tyro.conf.subcommand("ops")] | Annotated[None, tyro.conf.Suppress]


@tyro.conf.configure(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
@dataclass(frozen=True)
class Bench:
    """Measure speed and memory."""

    benchmark: _Benchmark
    """What to measure."""

    def run(self) -> None:
        """Run the benchmark that was chosen."""
        if self.benchmark is not None:
            self.benchmark.run()


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[str], Callable[[str], None]]]:
    """Yield a function that starts a case and returns one that tells its steps."""
    if not console.is_terminal:
        started = 0

        def announce(label: str) -> Callable[[str], None]:
            nonlocal started
            started += 1
            console.print(f"[{started}/{total}] {label}")
            return _say_nothing

        yield announce
        return

    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        task = progress.add_task("", total=total)
        started = 0

        def advance(label: str) -> Callable[[str], None]:
            nonlocal started
            progress.update(task, completed=started)
            started += 1
            return lambda step: progress.update(task, description=f"{label}: {step}")

        yield advance
        progress.update(task, completed=total, description="done")


def _say_nothing(step: str) -> None:
    """Plain output has a line per case and none per step."""
    del step


def _block(case: ops.Case) -> tuple[object, ...]:
    """What the cases of one table share."""
    return case.recurrence, case.direction, case.batch_size, case.length, case.num_blocks


def _shortened(length: int) -> int:
    """An eighth, but no less than the shortest that is worth timing."""
    return max(min(length, 16), length // 8)


def _label(case: ops.Case) -> str:
    return f"{_TITLES[case.recurrence]}, {_DIRECTIONS[case.direction]}, {_size(case)}"


def _size(case: ops.Case) -> str:
    return f"B={case.batch_size} T={case.length} H={case.num_blocks}"


def _table(block: Sequence[Outcome]) -> Table:
    """One recurrence, one direction, one shape: a row per block size and provider."""
    table = Table(title=_label(block[0][0]), title_justify="left", box=SIMPLE_HEAD)
    table.add_column("m", justify="right")
    table.add_column("provider")
    for name in ("ms", "p20 - p80", "x of\ncopy", "x slower\nthan ours", "peak MB", "calls"):
        table.add_column(name, justify="right")
    table.add_column("first\ncall s", justify="right")
    for case, measured in block:
        for position, one in enumerate(measured):
            table.add_row(
                str(case.block_size) if position == 0 else "",
                one.provider + ("*" if one.memory_reused is False else ""),
                *_cells(one),
                end_section=position == len(measured) - 1,
            )
    return table


def _cells(one: Measurement) -> list[str]:
    if one.time_s is None or one.memory_bytes is None or one.first_call_s is None:
        return [one.status, one.reason]
    p20, p50, p80 = (1e3 * time_s for time_s in one.time_s)
    return [
        _short(p50),
        f"{_short(p20)} - {_short(p80)}",
        _ratio(one.ratios.get(ops.COPY)),
        _ratio(one.ratios.get(ops.OURS)),
        f"{one.memory_bytes / 1e6:.1f}",
        str(one.rounds),
        f"{one.first_call_s:.2f}",
    ]


def _ratio(ratio: Spread | None) -> str:
    return "" if ratio is None else _short(ratio.p50)


def _short(number: float) -> str:
    """No more digits than mean something, so that large numbers leave room."""
    return f"{number:.2f}" if number < 100 else f"{number:.0f}"


def _print_setting(console: Console, process: dict[str, Any], dtype: str) -> None:
    backends = ", ".join(
        f"{name} ({detail or 'unavailable'})" for name, detail in process["backends"].items()
    )
    binding = process["omp_proc_bind"] or "not set (close makes times steadier)"
    console.print(
        f"{process['cpu']}, {process['cpu_count']} cores, {process['threads']} threads, {dtype}, "
        f"torch {process['packages']['torch']}, backends: {backends}.\n"
        f"OMP_PROC_BIND is {binding}.\n"
        "Calls reuse freed memory (mallopt: no mapping, no trimming), except those marked *,\n"
        "which are so large that their blocks are mapped afresh.\n"
        "Forward runs without a graph; gradients are fresh. Ours and the loop read gates with the "
        "blocks\ninnermost in memory, the published scan reads them contiguous."
    )


def _print_targets(console: Console, outcomes: Sequence[Outcome]) -> None:
    title = "Targets of the first version, forward + backward"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("case", "ratio", "target", "measured", ""):
        table.add_column(name)
    for verdict in verdicts(outcomes, FIRST_VERSION):
        case, target = verdict.case, verdict.target
        table.add_row(
            f"{_TITLES[case.recurrence]} m={case.block_size}, {_size(case)}",
            f"{target.over} / {target.under}",
            f"{target.bound} {target.limit:g}",
            f"{verdict.measured:.2f}",
            "reached" if verdict.reached else "missed",
        )
    if table.row_count:
        console.print(table)
