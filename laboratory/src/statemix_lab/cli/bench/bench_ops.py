"""``statemix bench ops``: speed and memory of the operators against baselines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from rich.table import Table

from statemix_lab.bench import operator_timing, peer_timing
from statemix_lab.bench.compared_layers import display_name
from statemix_lab.bench.harness import COPY, Measurement, Provider
from statemix_lab.bench.operator_timing import OperatorCase, ProviderName
from statemix_lab.bench.peer_timing import PeerName
from statemix_lab.cli.bench.bench_options import (
    Measured,
    Timed,
    provider_table,
    ratio_text,
    time_texts,
)

_TITLES = {name: display_name(name) for name in get_args(operator_timing.RecurrenceName)}
_DIRECTIONS = {"forward": "forward", "forward_backward": "forward + backward"}
_REMARK = """\
Forward runs without an autograd graph; every call allocates its gradients. Ours and the
loop read gates with the blocks innermost in memory, the published scan contiguous ones.
Roofline: bytes that must move, over those that a copy moves in the same time."""


@dataclass(frozen=True, kw_only=True)
class Ops(Measured):
    """Time the operators against the published scan, a loop over time, a copy and other operators.

    Every provider is first checked against the float64 reference; a wrong one is not timed. One
    process then calls all providers in rounds, each in random order. Times are medians over rounds,
    and ratios are medians of the ratios within a round. Memory is the peak of one call above its
    inputs. --peers adds the operators of other layers at as many tokens and a state of as many
    entries, or as few less as whole heads allow.
    """

    recurrences: tuple[operator_timing.RecurrenceName, ...] = ("bd_lru", "h_lru")
    """Operators to time."""

    shapes: tuple[str, ...] = ("8x2048x128", "128x16x64x5")
    """Batch x length x blocks. Every block size is timed; a fourth number selects a single one."""

    block_sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 16)
    """Block sizes m of BD-LRU."""

    orders: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 16)
    """Orders m of H-LRU."""

    ranks: tuple[int, ...] = (1, 2)
    """Ranks r of the low-rank scan, whose shapes are batch x length x heads x entries of a head."""

    gate: str = "softmax"
    """Gate family."""

    providers: tuple[ProviderName, ...] = ("copy", "statemix", "torch-loop", "paper")
    """What to time."""

    peers: tuple[PeerName, ...] = ()
    """Operators of other layers to time as well: on a CPU our own forms, on a GPU the kernels of
    flash-linear-attention, which need --dtype bfloat16. An LSTM is PyTorch's."""

    chunks: tuple[int, ...] = ()
    """On a GPU, also time our kernels with these lengths of chunks, in steps, instead of the length
    that their rule chooses. 0 means one chunk."""

    compiled: bool = False
    """Also time the published scan under torch.compile with max-autotune. Each case compiles
    for one to three minutes."""

    def run(self) -> None:
        """Measure and print, case by case."""
        device = self.place()
        peer_timing.check(self.peers, self.torch_dtype, self.device)
        operator_timing.check_chunks(self.chunks, self.device)
        shapes = [operator_timing.parse_shape(text) for text in self.shapes]
        cases = operator_timing.cases(
            self.recurrences, shapes, self.block_sizes, self.orders, self.gate, self.ranks
        )
        for case in cases:
            operator_timing.check_case(case, self.torch_dtype, device.total_bytes())
        self.measure(
            cases,
            self._providers,
            device=device,
            relative_to=(COPY, operator_timing.OURS),
            label=lambda case: f"{_label(case)} m={_size(case)}",
            row=self._row,
            remark=_REMARK,
            block=_label,
            table=self._table,
            notes=_notes,
        )

    def _providers(self, case: OperatorCase) -> list[Provider]:
        dtype, device = self.torch_dtype, self.device
        every = operator_timing.providers(
            case, dtype, compiled=self.compiled, device=device, chunks=self.chunks
        )
        chunked = map(operator_timing.chunked, self.chunks)
        names = {*self.providers, operator_timing.COMPILED, *chunked}
        peers = [peer_timing.provider(name, case, dtype, device) for name in self.peers]
        return [*(provider for provider in every if provider.name in names), *peers]

    def _row(self, case: OperatorCase, one: Measurement) -> dict[str, Any]:
        row = peer_timing.row if one.provider in peer_timing.NAMES else operator_timing.row
        return row(case, one, self.torch_dtype)

    def _table(self, outcomes: Sequence[Timed[OperatorCase]]) -> Table:
        """One recurrence, one direction, one shape: a row per block size and provider."""
        times = ("ms", "p20 - p80", "x of\ncopy", "roof-\nline", "x slower\nthan ours")
        headings = (*times, "peak MB", "calls", "first\ncall s")

        def cells(case: OperatorCase, one: Measurement) -> Sequence[str]:
            return (
                *time_texts(one, 1e3),
                ratio_text(one.ratios.get(COPY)),
                ratio_text(self._row(case, one)["roofline"]),
                ratio_text(one.ratios.get(operator_timing.OURS)),
                f"{(one.memory_bytes or 0) / 1e6:.1f}",
                str(one.rounds),
                f"{one.first_call_s or 0:.2f}",
            )

        return provider_table(
            _label(outcomes[0][0]),
            ("m", "provider"),
            headings,
            outcomes,
            _size,
            cells,
        )


def _size(case: OperatorCase) -> str:
    return str(case.block_size) + (f" r={case.rank}" if case.rank else "")


def _label(case: OperatorCase) -> str:
    gates = "" if case.gate == "softmax" or case.rank else f", {case.gate} gates"
    size = f"B={case.batch_size} T={case.length} H={case.num_blocks}"
    return f"{_TITLES[case.recurrence]}{gates}, {_DIRECTIONS[case.direction]}, {size}"


def _notes(outcomes: Sequence[Timed[OperatorCase]]) -> list[str]:
    peers = {
        f"  {one.provider}: {one.note}": None
        for _, measured in outcomes
        for one in measured
        if one.provider in peer_timing.NAMES
    }
    return ["Peers, at as many tokens:", *peers] if peers else []
