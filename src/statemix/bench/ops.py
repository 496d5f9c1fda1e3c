"""The operators against the published scan, a loop over time and a copy of the same bytes."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import isfinite
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from statemix import ops
from statemix.bench import memory
from statemix.bench.harness import Measurement, Provider
from statemix.settings import RequestError

Recurrence = Literal["bd_lru", "h_lru"]
Direction = Literal["forward", "forward_backward"]
Operator = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

OURS, PAPER, COMPILED, LOOP, COPY = "statemix", "paper", "paper-compiled", "torch-loop", "copy"

# Largest relative error of a correct result. bfloat16 has 8 bits; float32 and float64 leave room
# for the order of summation over the longest case.
TOLERANCES = {torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}

# A copy streams buffers of at most this size, again and again until it has moved its bytes: many
# times larger than caches, so that it costs what one copy of everything would.
_COPY_BUFFER_BYTES = 2**28
# Autotuning reports to stderr, into the progress display.
_SILENT_AUTOTUNING = {
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}
# Steps that the float64 reference runs over, summed over sequences.
_CHECKED_STEPS = 2048


@dataclass(frozen=True)
class Case:
    """One operation at one size; for H-LRU, blocks are channels and the block size is the order."""

    recurrence: Recurrence
    direction: Direction
    batch_size: int
    length: int
    num_blocks: int
    block_size: int

    @property
    def num_gates(self) -> int:
        """Gates G of one token."""
        return self.num_values * (self.block_size + 1)

    @property
    def num_values(self) -> int:
        """Values N of one token."""
        return self.num_blocks * (self.block_size if self.recurrence == "bd_lru" else 1)

    @property
    def moved_entries(self) -> int:
        """Entries that any implementation has to read or write.

        Forward reads gates and values and writes states: G + 2N. Backward reads these and the
        gradient of the states and writes two gradients: 2G + 4N.
        """
        passes = 1 if self.direction == "forward" else 3
        return passes * self.batch_size * self.length * (self.num_gates + 2 * self.num_values)


class Shape(NamedTuple):
    """Batch, length and blocks of a case, and its block sizes if they are its own."""

    batch_size: int
    length: int
    num_blocks: int
    block_size: int | None


def parse_shape(text: str) -> Shape:
    """Read "BxTxH", for all block sizes, or "BxTxHxm".

    Raises:
        RequestError: if it is neither.

    Example:
        >>> parse_shape("128x16x64x5")
        Shape(batch_size=128, length=16, num_blocks=64, block_size=5)
    """
    parts = text.split("x")
    if len(parts) not in (3, 4) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise RequestError(f"shapes must be BxTxH or BxTxHxm with positive sizes, got {text!r}")
    batch_size, length, num_blocks, *block_size = map(int, parts)
    return Shape(batch_size, length, num_blocks, block_size[0] if block_size else None)


def cases(
    recurrences: Sequence[Recurrence],
    shapes: Sequence[Shape],
    block_sizes: Sequence[int],
    orders: Sequence[int],
) -> list[Case]:
    """All cases, those of one table next to each other.

    Args:
        recurrences: which operators.
        shapes: at which sizes.
        block_sizes: m of BD-LRU in shapes without their own.
        orders: m of H-LRU in shapes without their own.

    Raises:
        RequestError: if a block size or an order is not positive.
    """
    for name, sizes in (("block_sizes", block_sizes), ("orders", orders)):
        if any(size < 1 for size in sizes):
            raise RequestError(f"{name} must be at least 1, got {tuple(sizes)}")
    return [
        Case(recurrence, direction, shape.batch_size, shape.length, shape.num_blocks, size)
        for recurrence in recurrences
        for shape in shapes
        for direction in get_args(Direction)
        for size in (
            (block_sizes if recurrence == "bd_lru" else orders)
            if shape.block_size is None
            else (shape.block_size,)
        )
    ]


def check_fits(case: Case, dtype: torch.dtype) -> None:
    """Check that a case is no larger than the machine; whether a provider fits shows later.

    Raises:
        RequestError: otherwise.
    """
    entries = case.batch_size * case.length * (case.num_gates + 2 * case.num_values)
    needed, total = entries * dtype.itemsize, memory.total_bytes()
    if needed > total:
        shape = f"{case.batch_size}x{case.length}x{case.num_blocks}x{case.block_size}"
        raise RequestError(
            f"shapes must fit into memory ({total / 1e9:.1f} GB), got {shape}, whose inputs take "
            f"{needed / 1e9:.1f} GB"
        )


def providers(case: Case, dtype: torch.dtype, *, compiled: bool) -> list[Provider]:
    """What computes ``case``, the copy first.

    All start from the same random gates and values and give the same states and gradients. Ours
    and the loop get them with the blocks innermost in memory, as our layers write them; the
    published scan gets them contiguous in the order of its shapes, as its layers do.

    Args:
        case: operation and size.
        dtype: of gates, values and states.
        compiled: whether to add the published scan under ``torch.compile``.
    """

    @cache
    def problem() -> tuple[Tensor, Tensor, Tensor]:
        return _problem(case, dtype)

    @cache
    def expected() -> tuple[Tensor, ...]:
        checked = max(1, min(case.batch_size, _CHECKED_STEPS // case.length))
        arguments = [tensor[:checked].double() for tensor in problem()]
        return tuple(_call(case.direction, _operator(case, "reference"), *arguments)())

    def error(results: Sequence[Tensor]) -> float:
        return max(map(_relative_error, results, expected()))

    def ours() -> Callable[[], Sequence[Tensor]]:
        return _call(case.direction, _operator(case, "cpu"), *problem())

    def loop() -> Callable[[], Sequence[Tensor]]:
        return _call(case.direction, _operator(case, "loop"), *problem())

    def paper() -> Callable[[], Sequence[Tensor]]:
        arguments = [tensor.contiguous() for tensor in problem()]
        return _call(case.direction, _operator(case, "associative"), *arguments)

    def paper_compiled() -> Callable[[], Sequence[Tensor]]:
        arguments = [tensor.contiguous() for tensor in problem()]
        # What was compiled for earlier cases would count as recompilation of this one.
        torch.compiler.reset()
        operator = torch.compile(
            _operator(case, "associative"),
            fullgraph=True,
            dynamic=False,
            options={**torch._inductor.list_mode_options("max-autotune"), **_SILENT_AUTOTUNING},
        )
        return _call(case.direction, operator, *arguments)

    def copy() -> Callable[[], None]:
        return _copy(case.moved_entries * dtype.itemsize)

    def provider(
        name: str, prepare: Callable[[], Callable[[], Sequence[Tensor]]], note: str
    ) -> Provider:
        return Provider(name, prepare, error, _required_bytes(case, name, dtype), note)

    listed = [
        Provider(COPY, copy, note="reads and writes as many bytes as the operator must"),
        provider(OURS, ours, "backend cpu, blocks innermost in memory"),
        provider(LOOP, loop, "backend loop, blocks innermost in memory"),
        provider(PAPER, paper, "backend associative, contiguous"),
    ]
    if compiled:
        note = "backend associative, contiguous, compiled with max-autotune"
        listed.append(provider(COMPILED, paper_compiled, note))
    return listed


def row(case: Case, measurement: Measurement, dtype: str) -> dict[str, Any]:
    """One measurement as it is kept, without its provenance."""
    outcome = asdict(measurement)
    outcome["time_s"] = measurement.time_s and measurement.time_s._asdict()
    outcome["ratios"] = {name: ratio._asdict() for name, ratio in measurement.ratios.items()}
    error = measurement.relative_error
    # JSON has no NaN; the reason tells.
    outcome["relative_error"] = error if error is not None and isfinite(error) else None
    return {"benchmark": "ops", "case": asdict(case), "dtype": dtype, **outcome}


def _problem(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Gates, values and the gradient of the states, with the blocks innermost in memory."""
    generator = torch.Generator().manual_seed(0)
    outer, size, blocks = (case.batch_size, case.length), case.block_size, case.num_blocks

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    if case.recurrence == "h_lru":
        gates = normal(*outer, size + 1, blocks).movedim(-1, 2)
        return gates, normal(*outer, blocks), normal(*outer, blocks)
    gates = normal(*outer, size, size + 1, blocks).movedim(-1, 2)
    values, d_states = (normal(*outer, size, blocks).movedim(-1, 2) for _ in range(2))
    return gates, values, d_states


def _operator(case: Case, backend: str) -> Operator:
    operator = ops.bd_lru if case.recurrence == "bd_lru" else ops.h_lru

    def scan(gates: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return operator(gates, values, backend=backend)

    return scan


def _call(
    direction: Direction, operator: Operator, gates: Tensor, values: Tensor, d_states: Tensor
) -> Callable[[], Sequence[Tensor]]:
    """A function of nothing that returns states and final state, and the gradients if asked for."""

    def forward() -> Sequence[Tensor]:
        with torch.no_grad():
            return operator(gates, values)

    def forward_backward() -> Sequence[Tensor]:
        states, final = operator(*leaves)
        gradients = torch.autograd.grad(states, leaves, d_states)
        return states.detach(), final.detach(), *gradients

    leaves = (gates.detach().requires_grad_(), values.detach().requires_grad_())
    return forward if direction == "forward" else forward_backward


def _copy(moved_bytes: int) -> Callable[[], None]:
    """Copy between two buffers until ``moved_bytes`` have been read or written."""
    # torch copies floats faster than bytes.
    total = max(1, moved_bytes // 2 // torch.float32.itemsize)
    source = torch.ones(min(total, _COPY_BUFFER_BYTES // torch.float32.itemsize))
    target = torch.empty_like(source)
    repeats, rest = divmod(total, source.numel())

    def copy() -> None:
        for _ in range(repeats):
            target.copy_(source)
        target[:rest].copy_(source[:rest])

    return copy


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest error relative to the largest entry, over the sequences that were checked."""
    checked = actual[: expected.shape[0]]
    difference = (checked.double() - expected).abs().max() / expected.abs().max()
    return float(difference)


def _required_bytes(case: Case, name: str, dtype: torch.dtype) -> int:
    """An estimate of the peak of one call and of the inputs that only this provider has.

    In units of the gates, fitted to what was counted at m = 1 to 16. The published scan keeps
    companion matrices for H-LRU, which grow as m times the gates, and copies of them.
    """
    size, forward = case.block_size, case.direction == "forward"
    if name == OURS:
        factor = 2.5
    elif name == LOOP:
        factor = 5.0
    elif case.recurrence == "bd_lru":
        factor = 4.7 + 3.6 / (size + 1) if forward else 6.7 + 2.8 / (size + 1)
    else:
        factor = (3.5 if forward else 5.5) * size + 4.0
    entries = case.batch_size * case.length * case.num_gates
    # Lower precision is widened on the way.
    return int(factor * entries * max(dtype.itemsize, torch.float32.itemsize))
