"""Time the operators against the published scan, a loop over time and a copy of equal size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from statemix import ops
from statemix.errors import RequestError
from statemix.ops.backends import GIVEN
from statemix.ops.gates import check_gate
from statemix.ops.low_rank_operators import MOST_RANK
from statemix_lab.bench.harness import (
    Measurement,
    Provider,
    copy_provider,
    relative_error,
    timed_row,
)
from statemix_lab.bench.timed_devices import DeviceName, check_fits

RecurrenceName = Literal["bd_lru", "h_lru", "low_rank"]
Direction = Literal["forward", "forward_backward"]
TimedOperator = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

OURS, PAPER, COMPILED, LOOP = "statemix", "paper", "paper-compiled", "torch-loop"
ProviderName = Literal["copy", "statemix", "torch-loop", "paper"]
# Backend of our kernels.
_KERNELS: dict[DeviceName, str] = {"cpu": "cpu", "cuda": "triton"}
# Backend of the published scan.
_SCAN = "associative"

# Largest relative error of a correct result. bfloat16 has 8 bits; float32 and float64 leave room
# for the order of summation over the longest case.
TOLERANCES = {torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}

# Autotuning reports to stderr, into the progress display.
_SILENT_AUTOTUNING = {
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}
# Steps checked against the float64 reference, summed over sequences.
_CHECKED_STEPS = 2048


@dataclass(frozen=True)
class OperatorCase:
    """One operation at one size.

    For H-LRU, blocks are channels and the block size is the order. For the low-rank scan, blocks
    are heads and the block size is the number of entries of a head; others have no rank.
    """

    recurrence: RecurrenceName
    direction: Direction
    batch_size: int
    length: int
    num_blocks: int
    block_size: int
    gate: str = "softmax"
    rank: int | None = None

    @property
    def num_gates(self) -> int:
        """Number of gates G of one token."""
        return self.num_values * (self.block_size + 1 if self.rank is None else 1 + 2 * self.rank)

    @property
    def num_values(self) -> int:
        """Number of values N of one token."""
        return self.num_blocks * (1 if self.recurrence == "h_lru" else self.block_size)

    @property
    def state_size(self) -> int:
        """Number of entries that a sequence carries after its last token, H m."""
        return self.num_blocks * self.block_size

    def moved_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes to move: forward has G + 2N entries, backward twice as many more."""
        entries = self.batch_size * self.length * (self.num_gates + 2 * self.num_values)
        return (1 if self.direction == "forward" else 3) * entries * dtype.itemsize


class CaseShape(NamedTuple):
    """Batch size, length and number of blocks; the block size is None for all block sizes."""

    batch_size: int
    length: int
    num_blocks: int
    block_size: int | None


def parse_shape(text: str) -> CaseShape:
    """Read "BxTxH", for all block sizes, or "BxTxHxm"."""
    parts = text.split("x")
    if len(parts) not in (3, 4) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise RequestError(f"shapes must be BxTxH or BxTxHxm with positive sizes, got {text!r}")
    batch_size, length, num_blocks, *block_size = map(int, parts)
    return CaseShape(batch_size, length, num_blocks, block_size[0] if block_size else None)


def cases(
    recurrences: Sequence[RecurrenceName],
    shapes: Sequence[CaseShape],
    block_sizes: Sequence[int],
    orders: Sequence[int],
    gate: str = "softmax",
    ranks: Sequence[int] = (1, 2),
) -> list[OperatorCase]:
    """Return all cases in the order of their tables."""
    for recurrence in recurrences:
        check_gate(gate, blocks=recurrence != "h_lru")
    for name, sizes in (("block_sizes", block_sizes), ("orders", orders), ("ranks", ranks)):
        if any(size < 1 for size in sizes):
            raise RequestError(f"{name} must be at least 1, got {tuple(sizes)}")
    if any(rank > MOST_RANK for rank in ranks):
        raise RequestError(f"ranks must be at most {MOST_RANK}, got {tuple(ranks)}")
    return [
        OperatorCase(recurrence, direction, *shape[:3], size, *kind)
        for recurrence in recurrences
        for shape in shapes
        for direction in get_args(Direction)
        for size in (
            (orders if recurrence == "h_lru" else block_sizes)
            if shape.block_size is None
            else (shape.block_size,)
        )
        for kind in ([(GIVEN, rank) for rank in ranks] if recurrence == "low_rank" else [(gate,)])
    ]


def check_case(case: OperatorCase, dtype: torch.dtype, total: int) -> None:
    """Raise a RequestError if a case does not fit into memory, or its loop takes hours."""
    if case.length >= 2**20:
        raise RequestError(f"shapes must have lengths below 2^20, got {case.length}")
    shape = f"{case.batch_size}x{case.length}x{case.num_blocks}x{case.block_size}"
    needed = replace(case, direction="forward").moved_bytes(dtype)
    check_fits("shapes", shape, needed, total)


def check_chunks(chunks: Sequence[int], device: DeviceName) -> None:
    """Raise a RequestError if chunks are negative or the device has no kernels with chunks."""
    if any(chunk < 0 for chunk in chunks):
        raise RequestError(f"chunks must be at least 0, got {tuple(chunks)}")
    if chunks and device != "cuda":
        raise RequestError(f"chunks must be used with --device cuda, got {device}")


def chunked(chunk: int) -> str:
    """Return the name of our kernels with chunks of this length."""
    return f"{OURS}-chunk-{chunk}"


def providers(
    case: OperatorCase,
    dtype: torch.dtype,
    *,
    compiled: bool,
    device: DeviceName = "cpu",
    chunks: Sequence[int] = (),
) -> list[Provider]:
    """Return the providers of ``case``, the copy first."""

    @cache
    def problem() -> tuple[Tensor, Tensor, Tensor]:
        return _problem(case, dtype, device)

    @cache
    def expected() -> tuple[Tensor, ...]:
        checked = max(1, min(case.batch_size, _CHECKED_STEPS // case.length))
        arguments = [tensor[:checked].double() for tensor in problem()]
        return tuple(_call(case.direction, _operator(case, "reference"), *arguments)())

    def error(results: Sequence[Tensor]) -> float:
        # Only the first sequences are checked.
        pairs = zip(results, expected(), strict=True)
        return max(relative_error(one[: len(right)], right) for one, right in pairs)

    def provider(name: str, backend: str, note: str) -> Provider:
        def prepare() -> Callable[[], Sequence[Tensor]]:
            gates, values, d_states = problem()
            operator = _operator(case, backend)
            if backend == _SCAN:
                gates, values, d_states = (x.contiguous() for x in (gates, values, d_states))
            if name == COMPILED:
                # Otherwise this case would count as a recompilation of earlier ones.
                torch.compiler.reset()
                operator = autotuned(operator)
            return _call(case.direction, operator, gates, values, d_states)

        return Provider(name, prepare, error, note=f"backend {backend}, {note}")

    innermost, kernels = "blocks innermost in memory", _KERNELS[device]
    if case.recurrence == "low_rank":
        innermost, kernels = "contiguous", ops.default_backend(device, "low_rank", dtype)
    listed = [
        copy_provider(case.moved_bytes(dtype), device),
        provider(OURS, kernels, innermost),
        provider(LOOP, "loop", innermost),
    ]
    if case.recurrence == "low_rank":
        return listed
    listed.append(provider(PAPER, _SCAN, "contiguous"))
    for chunk in chunks:
        note = f"chunks of {chunk or case.length} steps"
        listed.append(provider(chunked(chunk), ops.in_chunks(chunk), note))
    if compiled:
        listed.append(provider(COMPILED, _SCAN, "contiguous, compiled with max-autotune"))
    return listed


def autotuned(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function or module compiled as in the paper: with max-autotune, for one shape."""
    return torch.compile(
        function,
        fullgraph=True,
        dynamic=False,
        options={**torch._inductor.list_mode_options("max-autotune"), **_SILENT_AUTOTUNING},
    )


def row(
    case: OperatorCase, measurement: Measurement, dtype: torch.dtype, moved_bytes: int | None = None
) -> dict[str, Any]:
    """Return the stored row of a measurement, without its provenance."""
    copied = case.moved_bytes(dtype)
    moved = copied if moved_bytes is None else moved_bytes
    before, _, chunk = measurement.provider.rpartition("-chunk-")
    return {
        **timed_row("ops", case, measurement, dtype, moved, copied),
        # Forced; None is the choice of the rule.
        "chunk": int(chunk) if before == OURS else None,
    }


def _problem(
    case: OperatorCase, dtype: torch.dtype, device: DeviceName
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gates, values and the gradient of the states in the memory order of the kernels."""
    generator = torch.Generator(device).manual_seed(0)
    outer, size, blocks = (case.batch_size, case.length), case.block_size, case.num_blocks

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype, device=device)

    # Rows that nothing normalises must be short, or states grow without bound.
    scale = 0.5 / (size + 1) if case.gate == "none" else 1.0
    if case.recurrence == "low_rank":
        assert case.rank is not None
        # Vectors so short that the norm of no product is near 1.
        gates = normal(*outer, blocks, 1 + 2 * case.rank, size).mul_((2 * case.rank * size) ** -0.5)
        return gates, normal(*outer, blocks, size), normal(*outer, blocks, size)
    if case.recurrence == "h_lru":
        gates = normal(*outer, size + 1, blocks).mul_(scale).movedim(-1, 2)
        return gates, normal(*outer, blocks), normal(*outer, blocks)
    gates = normal(*outer, size, size + 1, blocks).mul_(scale).movedim(-1, 2)
    values, d_states = (normal(*outer, size, blocks).movedim(-1, 2) for _ in range(2))
    return gates, values, d_states


def _operator(case: OperatorCase, backend: str) -> TimedOperator:
    if case.recurrence == "low_rank":
        return partial(ops.low_rank_scan, backend=backend)
    operator = ops.bd_lru if case.recurrence == "bd_lru" else ops.h_lru

    def scan(gates: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return operator(gates, values, case.gate, backend=backend)

    return scan


def _call(
    direction: Direction, operator: TimedOperator, gates: Tensor, values: Tensor, d_states: Tensor
) -> Callable[[], Sequence[Tensor]]:
    leaves = (gates.detach().requires_grad_(), values.detach().requires_grad_())
    return timed_call(direction, lambda: operator(*leaves), leaves, d_states)


def timed_call(
    direction: Direction,
    run: Callable[[], Sequence[Tensor]],
    leaves: Sequence[Tensor],
    d_outputs: Tensor,
) -> Callable[[], Sequence[Tensor]]:
    """Return a function that computes what ``run`` returns."""

    def forward() -> Sequence[Tensor]:
        with torch.no_grad():
            return run()

    def forward_backward() -> Sequence[Tensor]:
        outputs = run()
        gradients = torch.autograd.grad(outputs[0], leaves, d_outputs)
        return *(part.detach() for part in outputs), *gradients

    return forward if direction == "forward" else forward_backward
