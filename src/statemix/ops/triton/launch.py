"""Run the Triton kernels on tensors: memory order, chunks of time, and results."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statemix.ops.backends import Step
from statemix.ops.layout import (
    BLOCK_AXIS,
    STATE_BLOCK_AXIS,
    dense,
    dense_strides,
    empty_innermost,
    innermost,
)
from statemix.ops.packing import Chunks
from statemix.ops.triton.kernels import block, lag, reflect
from statemix.ops.triton.kernels.carries import carries
from statemix.ops.triton.plan import (
    Shape,
    Tile,
    ahead_of,
    alignment,
    chunk_of,
    fills,
    kernels_of,
    shape_of,
    shift_of,
    tile_of,
)

KERNELS: dict[str, Any] = {"block": block, "lag": lag, "reflect": reflect}
"""The modules of kernels, by the names of :func:`statemix.ops.triton.plan.kernels_of`."""


# Local scans and the m at which the compiler is left to itself: more loads are in flight so.
# Elsewhere it would save registers by putting loads off, which then wait one after another, or by
# spilling some (backward at m = 3).
_SPARING = {"local_forward": (1, 2, 3, 4), "local_backward": (1, 2, 4)}


def options_of(kernel: str, size: int, *, nvidia: bool) -> dict[str, Any]:
    """Return the options of the compiler.

    Args:
        kernel: name of the kernel.
        size: m.
        nvidia: whether the target is NVIDIA's.
    """
    # Warps that share nothing need not wait for each other.
    options: dict[str, Any] = {"num_warps": 1, "enable_fp_fusion": True}
    if nvidia and not kernel.startswith("carries") and size not in _SPARING.get(kernel, ()):
        options["maxnreg"] = 255
    return options


def forward(
    operator: str,
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
    temperature: Tensor | None,
    *,
    chunk: int | None = None,
    maps: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return states, in the dtype of the values, and final state.

    Shapes, dtypes and the recurrences are those of :func:`statemix.ops.registered.scan_forward`.
    ``chunk`` is the steps of a chunk, 0 for one chunk, or None for what the rule says. The maps of
    chunks are written into ``maps``, which has room for all of them, (maps, m+1, m, H).
    """
    gates, values = _ordered(gates), _ordered(values)
    initial = dense(initial_state, STATE_BLOCK_AXIS)
    states, final = empty_innermost(values.shape, values), torch.empty_like(initial)
    if not values.numel():
        return states, final.copy_(initial)
    strides = (*_strides(gates, 2), *_strides(values, 1))
    problem = _Problem.of(operator, values, initial, cu_seqlens, gate, temperature, strides, chunk)
    entering = initial
    if problem.num_chunks > 1:
        maps = problem.mapped(gates, values, initial, strides, maps)
        entering = problem.carried(maps, maps, initial, reverse=False)
    cut = problem.cut("local_forward")
    problem.kernels.local_forward[cut.grid](
        *(gates, values, entering, states, final, initial, problem.temperature),
        *problem.places,
        *problem.sizes,
        *strides,
        **problem.options,
        **cut.options,
    )
    return states, final


def backward(
    operator: str,
    d_states: Tensor,
    d_final_state: Tensor,
    gates: Tensor,
    values: Tensor,
    states: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
    temperature: Tensor | None,
    *,
    chunk: int | None = None,
    maps: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gates, values and initial state, in the dtypes of these.

    Arguments are those of :func:`statemix.ops.registered.scan_backward` and :func:`forward`, and
    the closed form is that of ``docs/kernels.md``. ``maps`` is what :func:`forward` wrote there;
    without, they are found again.
    """
    gates, values, d_states = _ordered(gates), _ordered(values), _ordered(d_states)
    # The forward wrote the states densely, but vmap may have permuted them.
    states = dense(states)
    initial, d_final = (dense(one, STATE_BLOCK_AXIS) for one in (initial_state, d_final_state))
    d_gates, d_values = (empty_innermost(one.shape, one) for one in (gates, values))
    d_initial = torch.empty_like(d_final)
    if not values.numel():
        return d_gates, d_values, d_initial.copy_(d_final)
    of_gates, of_values, of_d_states = (
        _strides(gates, 2), _strides(values, 1), _strides(d_states, 1)
    )  # fmt: skip
    strides = (*of_gates, *of_values, *of_d_states)
    problem = _Problem.of(operator, values, initial, cu_seqlens, gate, temperature, strides, chunk)
    leaving = d_final
    if problem.num_chunks > 1:
        if maps is None:
            maps = problem.mapped(gates, values, initial, (*of_gates, *of_values))
        assert maps.is_contiguous(), "hooks of saved tensors must keep the memory order"
        assert len(maps) >= problem.num_maps, "the kernel would read beyond the maps"
        cut = problem.cut("chunk_backward", problem.num_maps)
        offsets = problem.empty(initial, problem.num_maps)
        problem.kernels.chunk_backward[cut.grid](
            *(gates, d_states, d_final, offsets, problem.temperature),
            *problem.places_of_maps,
            *problem.sizes_of_maps,
            *(*of_gates, *of_d_states),
            **problem.options,
            **cut.options,
        )
        leaving = problem.carried(maps, offsets, d_final, reverse=True)
    cut = problem.cut("local_backward")
    problem.kernels.local_backward[cut.grid](
        *(gates, values, states, initial, leaving, d_states, d_final),
        *(d_gates, d_values, d_initial, problem.temperature),
        *problem.places,
        *problem.sizes,
        *strides,
        **problem.options,
        **cut.options,
    )
    return d_gates, d_values, d_initial


def prepare_step(operator: str, gates: Tensor, values: Tensor, state: Tensor, gate: str) -> Step:
    """Return a function that runs one step on arguments like these, by one launch.

    The step is ``local_forward`` with T = 1, so that it rounds as a sequence of one chunk does. It
    allocates its results and waits for nothing: a CUDA graph can capture it.

    Shapes, dtypes and the step are those of :class:`statemix.ops.backends.Kernel`.
    """
    if not values.numel():
        return lambda gates, values, state, temperature: (values.clone(), state.clone())  # noqa: ARG005
    given = gates, values, state
    ordered = gates, values, state = _ordered_step(*given)
    copied = any(one is not other for one, other in zip(ordered, given, strict=True))
    sequence = gates.unsqueeze(1), values.unsqueeze(1)
    strides = (*_strides(sequence[0], 2), *_strides(sequence[1], 1))
    problem = _Problem.of(operator, sequence[1], state, None, gate, None, strides, None)
    cut = problem.cut("local_forward")
    launch = problem.kernels.local_forward[cut.grid]
    numbers = (*problem.sizes, *strides)
    options = {**problem.options, **cut.options}
    h_t_like = values.shape, dense_strides(values.shape, STATE_BLOCK_AXIS)
    state_like = state.shape, dense_strides(state.shape, STATE_BLOCK_AXIS)
    device, dtype, state_dtype = values.device, values.dtype, state.dtype

    def step(
        gates: Tensor, values: Tensor, state: Tensor, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if copied:
            gates, values, state = _ordered_step(gates, values, state)
        h_t = torch.empty_strided(*h_t_like, dtype=dtype, device=device)
        next_state = torch.empty_strided(*state_like, dtype=state_dtype, device=device)
        tempered = temperature is not None
        # Kernels run on the current device.
        with torch.cuda.device_of(values):  # type: ignore[no-untyped-call]
            launch(
                *(gates, values, state, h_t, next_state, state, temperature if tempered else state),
                *(state,) * 3,
                *numbers,
                **(options | {"TEMPERED": tempered}),
            )
        return h_t, next_state

    return step


class _Cut(NamedTuple):
    """Programs of a kernel, and their constant arguments."""

    grid: tuple[int, ...]
    options: dict[str, int]


class _Problem(NamedTuple):
    """What the kernels of one call share.

    Attributes:
        name: name of the kernels.
        batch_size: rows of the batch, B.
        num_sequences: B, or if packed N.
        length: steps T.
        num_units: blocks or channels H.
        m: entries of a state.
        dtype: dtype of the values.
        state_dtype: dtype of carried states.
        chunk: steps of a chunk.
        align: power of two of which H and the strides are multiples.
        options: constant arguments of all kernels.
        temperature: 0-d tensor; any tensor if there is none.
        places: sequence of each chunk, bounds of sequences, and maps before each, if packed; any
            tensors if not.
        places_of_maps: the same, with the sequence of each map.
    """

    name: str
    batch_size: int
    num_sequences: int
    length: int
    num_units: int
    m: int
    dtype: torch.dtype
    state_dtype: torch.dtype
    chunk: int
    align: int
    options: dict[str, Any]
    temperature: Tensor
    places: tuple[Tensor, Tensor, Tensor]
    places_of_maps: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(
        cls,
        operator: str,
        values: Tensor,
        initial_state: Tensor,
        cu_seqlens: Tensor | None,
        gate: str,
        temperature: Tensor | None,
        strides: tuple[int, ...],
        forced: int | None,
    ) -> "_Problem":
        """Cut a problem of at least one step, whose arguments have these strides.

        ``forced`` is the steps of a chunk, as in :func:`forward`.
        """
        (B, T, H), m = values.shape[:3], initial_state.shape[-1]
        options = {
            "M": m,
            "FAMILY": gate,
            "SHIFT": shift_of(m),
            "PACKED": cu_seqlens is not None,
            "TEMPERED": temperature is not None,
        }
        tau = initial_state if temperature is None else temperature
        chunk = chunk_of(T, B * H, m) if forced is None else min(forced, T) or T
        places = of_maps = (initial_state,) * 3
        if cu_seqlens is not None:
            chunks = Chunks.of(cu_seqlens, T, chunk)
            places = chunks.of_chunks, chunks.bounds, chunks.firsts
            of_maps = chunks.of_maps, chunks.bounds, chunks.firsts
        name, align = kernels_of(operator, gate), alignment(H, *strides)
        dtypes = values.dtype, initial_state.dtype
        N = len(initial_state)
        return cls(name, B, N, T, H, m, *dtypes, chunk, align, options, tau, places, of_maps)

    @property
    def kernels(self) -> Any:
        """The module of the kernels."""
        return KERNELS[self.name]

    @property
    def num_chunks(self) -> int:
        """Chunks of a row of the batch; if packed, of a row that one sequence fills."""
        return -(-self.length // self.chunk)

    @property
    def num_rows(self) -> int:
        """Chunks of all sequences; if packed, at most."""
        return self.num_sequences + self.num_maps

    @property
    def num_maps(self) -> int:
        """Chunks from which something is carried into another: all but one of a sequence.

        If packed, at most.
        """
        return self.batch_size * (self.num_chunks - 1)

    @property
    def ragged(self) -> bool:
        """Whether the last chunk of a sequence may be shorter than the others."""
        return self.options["PACKED"] or self.num_chunks * self.chunk != self.length

    @property
    def sizes(self) -> tuple[int, ...]:
        """The arguments T, H, num_rows, num_chunks and chunk of the kernels."""
        return self.length, self.num_units, self.num_rows, self.num_chunks, self.chunk

    @property
    def sizes_of_maps(self) -> tuple[int, ...]:
        """The arguments T, H, num_maps, maps_of_row and chunk of the kernels."""
        return self.length, self.num_units, self.num_maps, self.num_chunks - 1, self.chunk

    def cut(self, kernel: str, num_rows: int | None = None) -> "_Cut":
        """Cut the work of a kernel over chunks, of all sequences if no number is given."""
        shape, num_rows = self.shape(kernel), num_rows or self.num_rows
        steps = min(shape.steps, 1 << self.chunk.bit_length() - 1)
        tile = tile_of(num_rows, self.num_units, shape.lanes)
        options = {
            **self.compiled(kernel, tile),
            "STEPS": steps,
            "ROWS": shape.rows,
            "ALIGN": self.align,
        }
        options["RAGGED"] = self.ragged or self.chunk % steps != 0
        return _Cut(tile.grid(num_rows, self.num_units), options)

    def compiled(self, kernel: str, tile: Tile) -> dict[str, Any]:
        """Return the size of the tile, and the options of the compiler."""
        options = options_of(kernel, self.m, nvidia=torch.version.hip is None)
        return {"R": tile.rows, "L": tile.lanes, **options}

    def empty(self, like: Tensor, *counts: int) -> Tensor:
        """Return room for so many states, in memory (*counts, m, H)."""
        return like.new_empty(*counts, self.m, self.num_units)

    def mapped(
        self,
        gates: Tensor,
        values: Tensor,
        initial: Tensor,
        strides: tuple[int, ...],
        maps: Tensor | None = None,
    ) -> Tensor:
        """Return the maps of all chunks but the last, in a tensor that may have room for more."""
        if maps is None:
            maps = self.empty(initial, self.num_maps, self.m + 1)
        assert len(maps) >= self.num_maps, "the kernel would write beyond the room for maps"
        shape = self.shape("chunk_forward")
        tile = tile_of(self.num_maps, self.num_units, shape.lanes)
        columns = -(-(self.m + 1) // shape.columns)
        self.kernels.chunk_forward[*tile.grid(self.num_maps, self.num_units), columns](
            *(gates, values, maps, self.temperature),
            *self.places_of_maps,
            *self.sizes_of_maps,
            *strides,
            **self.options,
            **self.compiled("chunk_forward", tile),
            STEPS=math.gcd(self.chunk, shape.steps),
            ROWS=shape.rows,
            COLUMNS=shape.columns,
            ALIGN=self.align,
        )
        return maps

    def shape(self, kernel: str) -> Shape:
        """Return how much of the problem one thread of a kernel holds."""
        return shape_of(
            self.name,
            kernel,
            self.m,
            self.dtype.itemsize,
            align=self.align,
            full=fills(self.num_rows * self.num_units),
        )

    def carried(self, maps: Tensor, offsets: Tensor, outer: Tensor, *, reverse: bool) -> Tensor:
        """Return what enters each chunk, in memory (chunks, m, H)."""
        entering = self.empty(outer, self.num_rows)
        ahead = ahead_of(self.m, self.state_dtype.itemsize)
        carries[self.num_sequences, -(-self.num_units // ahead.lanes)](
            *(maps, offsets, outer, entering, self.places[2], self.num_units, self.num_chunks),
            M=self.m,
            PACKED=self.options["PACKED"],
            REVERSE=reverse,
            **ahead.options,
            **options_of("carries", self.m, nvidia=torch.version.hip is None),
        )
        return entering


def _ordered(tensor: Tensor, axis: int = BLOCK_AXIS) -> Tensor:
    """Return a tensor with lanes innermost, and rows so near that 32 bits count what is between."""
    tensor = innermost(tensor, axis)
    rows = slice(axis + 1, None)
    far = any(
        size * stride >= 2**31
        for size, stride in zip(tensor.shape[rows], tensor.stride()[rows], strict=True)
    )
    return dense(tensor, axis) if far else tensor


def _ordered_step(gates: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the arguments of a step, which have no axis of time, as the kernels read them."""
    return (
        _ordered(gates, STATE_BLOCK_AXIS),
        _ordered(values, STATE_BLOCK_AXIS),
        dense(state, STATE_BLOCK_AXIS),
    )


def _strides(tensor: Tensor, inner: int) -> tuple[int, ...]:
    """Return the strides of batch and time, and of the last axes.

    They are 0 for an axis that lags lack, and for one of a single entry, whatever is stored there.
    """
    strides = [
        stride if size > 1 else 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return (*strides[:2], *(0,) * (3 + inner - tensor.ndim), *strides[3:])
