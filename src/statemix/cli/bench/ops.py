"""``statemix bench ops``: speed and memory of the operators against baselines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, Literal, get_args

import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statemix.bench import ops, peers, rows
from statemix.bench.deadline import Deadline
from statemix.bench.harness import Measurement, measure
from statemix.bench.peers import PeerName
from statemix.bench.roofline import COPY
from statemix.bench.targets import FIRST_VERSION, verdicts
from statemix.cli.bench.common import (
    MeasuredAnywhere,
    check_all_ran,
    number_text,
    print_setting,
    progress,
    ratio_text,
)
from statemix.layers import LAYERS

Outcome = tuple[ops.Case, Sequence[Measurement]]

_TITLES = {name: LAYERS[name].display_name for name in get_args(ops.Recurrence)}
_DIRECTIONS = {"forward": "forward", "forward_backward": "forward + backward"}
_REMARK = """\
Forward runs without an autograd graph; every call allocates its gradients. Ours and the
loop read gates with the blocks innermost in memory, the published scan contiguous ones.
Roofline: bytes that must move, over those that a copy moves in the same time."""


@dataclass(frozen=True, kw_only=True)
class Ops(MeasuredAnywhere):
    """Time the operators against the published scan, a loop over time, a copy and other operators.

    Every provider is first checked against the float64 reference; a wrong one is not timed. One
    process then calls all providers in rounds, each in random order. Times are medians over rounds,
    and ratios are medians of the ratios within a round. Memory is the peak of one call above its
    inputs. --peers adds the operators of other layers at as many tokens and a state of as many
    entries, or as few less as whole heads allow.
    """

    recurrences: tuple[ops.Recurrence, ...] = ("bd_lru", "h_lru")
    """Operators to time."""

    shapes: tuple[str, ...] = ("8x2048x128", "128x16x64x5")
    """Batch x length x blocks. Every block size is timed; a fourth number selects a single one."""

    block_sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 16)
    """Block sizes m of BD-LRU."""

    orders: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 16)
    """Orders m of H-LRU."""

    gate: str = "softmax"
    """Gate family."""

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Data type of gates, values and states."""

    providers: tuple[ops.ProviderName, ...] = ("copy", "statemix", "torch-loop", "paper")
    """What to time."""

    peers: tuple[PeerName, ...] = ()
    """Operators of other layers to time as well: on a CPU our own forms, on a GPU the kernels of
    flash-linear-attention, which need --dtype bfloat16. An LSTM is PyTorch's."""

    chunks: tuple[int, ...] = ()
    """On a GPU, also time our kernels with time cut into chunks of so many steps, 0 for one chunk,
    instead of the choice that their rule makes."""

    compiled: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also time the published scan under torch.compile with max-autotune. Each case compiles
    for one to three minutes."""

    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Check in a minute or two that everything runs: an eighth of the length, at most five rounds
    and one second. Such short data fits into caches, so do not compare the times with a full
    run."""

    def run(self) -> None:
        """Measure and print, case by case.

        Raises:
            RequestError: if a size, the rounds, the threads or the budget is out of range, a peer
                does not know the dtype, chunks are asked of a CPU, or the output cannot be written.
            RunsFailedError: if a provider failed; the others have been measured.
        """
        self.check()
        deadline = self.deadline()
        peers.check(self.peers, self._dtype, self.device)
        ops.check_chunks(self.chunks, self.device)
        cases = ops.cases(
            self.recurrences, self._shapes(), self.block_sizes, self.orders, self.gate
        )
        for case in cases:
            ops.check_fits(case, self._dtype, self.place().total_bytes())
        console, process = self.begin()
        print_setting(console, process, self.dtype, _REMARK)
        outcomes = []
        with progress(console, len(cases)) as start_case:
            for _, block in groupby(cases, key=_block):
                table = []
                for case in block:
                    on_step = start_case(f"{_label(case)} m={case.block_size}")
                    measured = self._measure(case, on_step, deadline)
                    table.append((case, measured))
                    if self.output is not None:
                        kept = (self._row(case, one) for one in measured)
                        rows.append(self.output, kept, process)
                console.print(self._table(table))
                outcomes.extend(table)
        _print_peers(console, outcomes)
        if self.device != "cuda":
            # Those of a GPU need more than operators: benchmarks/gpu.sh prints them.
            _print_targets(console, outcomes)
        if self.output is not None:
            console.print(f"rows appended to {self.output}", soft_wrap=True)
        check_all_ran(one for _, measured in outcomes for one in measured)

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def _shapes(self) -> list[ops.Shape]:
        shapes = [ops.parse_shape(text) for text in self.shapes]
        if self.quick:
            return [shape._replace(length=_shortened(shape.length)) for shape in shapes]
        return shapes

    def _measure(
        self, case: ops.Case, on_step: Callable[[str], None], deadline: Deadline
    ) -> list[Measurement]:
        every = ops.providers(
            case, self._dtype, compiled=self.compiled, device=self.device, chunks=self.chunks
        )
        asked = (*self.providers, ops.COMPILED, *map(ops.chunked, self.chunks))
        chosen = [one for one in every if one.name in asked]
        return measure(
            [*chosen, *peers.providers(self.peers, case, self._dtype, self.device)],
            relative_to=(COPY, ops.OURS),
            rounds=min(self.rounds, 5) if self.quick else self.rounds,
            budget_s=min(self.budget_s, 1.0) if self.quick else self.budget_s,
            tolerance=ops.TOLERANCES[self._dtype],
            seed=0,
            on_step=on_step,
            device=self.place(),
            deadline=deadline,
        )

    def _row(self, case: ops.Case, one: Measurement) -> dict[str, Any]:
        row = peers.row if one.provider in peers.NAMES else ops.row
        return row(case, one, self._dtype)

    def _table(self, block: Sequence[Outcome]) -> Table:
        """One recurrence, one direction, one shape: a row per block size and provider."""
        table = Table(
            title=_label(block[0][0]), title_justify="left", box=SIMPLE_HEAD, collapse_padding=True
        )
        table.add_column("m", justify="right")
        table.add_column("provider", no_wrap=True)
        for name in ("ms", "p20 - p80", "x of\ncopy", "roof-\nline", "x slower\nthan ours"):
            table.add_column(name, justify="right")
        for name in ("peak MB", "calls", "first\ncall s"):
            table.add_column(name, justify="right")
        for case, measured in block:
            for position, one in enumerate(measured):
                table.add_row(
                    str(case.block_size) if position == 0 else "",
                    one.provider + ("*" if one.memory_reused is False else ""),
                    *_cells(one, self._row(case, one)["roofline"]),
                    end_section=position == len(measured) - 1,
                )
        return table


def _block(case: ops.Case) -> tuple[object, ...]:
    """Key shared by the cases of one table."""
    return case.recurrence, case.direction, case.batch_size, case.length, case.num_blocks


def _shortened(length: int) -> int:
    """An eighth of the length, but at least 16 steps unless the length itself is shorter."""
    return max(min(length, 16), length // 8)


def _label(case: ops.Case) -> str:
    gates = "" if case.gate == "softmax" else f", {case.gate} gates"
    return f"{_TITLES[case.recurrence]}{gates}, {_DIRECTIONS[case.direction]}, {_size(case)}"


def _size(case: ops.Case) -> str:
    return f"B={case.batch_size} T={case.length} H={case.num_blocks}"


def _cells(one: Measurement, roofline: Mapping[str, float] | None) -> list[str]:
    if one.time_s is None or one.memory_bytes is None or one.first_call_s is None:
        return [one.status, one.reason]
    p20, p50, p80 = (1e3 * time_s for time_s in one.time_s)
    return [
        number_text(p50),
        f"{number_text(p20)} - {number_text(p80)}",
        ratio_text(one.ratios.get(COPY)),
        number_text(roofline["p50"]) if roofline else "",
        ratio_text(one.ratios.get(ops.OURS)),
        f"{one.memory_bytes / 1e6:.1f}",
        str(one.rounds),
        f"{one.first_call_s:.2f}",
    ]


def _print_peers(console: Console, outcomes: Sequence[Outcome]) -> None:
    notes = [
        (one.provider, one.note)
        for _, measured in outcomes
        for one in measured
        if one.provider in peers.NAMES
    ]
    if notes:
        console.print("Peers, at as many tokens:")
    for name, note in dict.fromkeys(notes):
        console.print(f"  {name}: {note}", soft_wrap=True)


def _print_targets(console: Console, outcomes: Sequence[Outcome]) -> None:
    title = "Targets of the first version on a CPU, forward + backward"
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
