"""A problem as the Triton kernels get it: chunks, tiles, and the arguments that kernels share."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statemix.ops.backends import Scan
from statemix.ops.packing import Chunks
from statemix.ops.triton.kernels import block, lag, reflect
from statemix.ops.triton.kernels.carries import carries
from statemix.ops.triton.plan import (
    Shape,
    Tile,
    ahead_of,
    alignment,
    chunk_of,
    family_of,
    fills,
    kernels_of,
    options_of,
    shape_of,
    shift_of,
    tile_of,
)

KERNELS: dict[str, Any] = {"block": block, "lag": lag, "reflect": reflect}
"""The modules of kernels, by the names of :func:`statemix.ops.triton.plan.kernels_of`."""


class Cut(NamedTuple):
    """Programs of a kernel, and their constant arguments."""

    grid: tuple[int, ...]
    options: dict[str, int]


class Problem(NamedTuple):
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
    def of(cls, scan: Scan, strides: tuple[int, ...], forced: int | None) -> "Problem":
        """Cut a scan of at least one step, whose tensors have these strides as kernels read them.

        ``forced`` is the steps of a chunk, as in :func:`statemix.ops.triton.launch.forward`.
        """
        values, initial_state, cu_seqlens = scan.inputs, scan.initial_state, scan.cu_seqlens
        (B, T, H), m = values.shape[:3], initial_state.shape[-1]
        options = {
            "M": m,
            "FAMILY": family_of(scan.gate, bfloat16=values.dtype == torch.bfloat16),
            "SHIFT": shift_of(m),
            "PACKED": cu_seqlens is not None,
            "TEMPERED": scan.temperature is not None,
        }
        tau = initial_state if scan.temperature is None else scan.temperature
        chunk = chunk_of(T, B * H, m) if forced is None else min(forced, T) or T
        places = of_maps = (initial_state,) * 3
        if cu_seqlens is not None:
            chunks = Chunks.of(cu_seqlens, T, chunk)
            places = chunks.of_chunks, chunks.bounds, chunks.firsts
            of_maps = chunks.of_maps, chunks.bounds, chunks.firsts
        name, align = kernels_of(scan.operator, scan.gate), alignment(H, *strides)
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

    def cut(self, kernel: str, num_rows: int | None = None) -> Cut:
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
        return Cut(tile.grid(num_rows, self.num_units), options)

    def compiled(self, kernel: str, tile: Tile) -> dict[str, Any]:
        """Return the size of the tile, and the options of the compiler."""
        options = options_of(kernel, self.m, self.dtype.itemsize, nvidia=torch.version.hip is None)
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
        self.check_room(maps)
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

    def check_room(self, maps: Tensor) -> None:
        """Check that no kernel reads or writes beyond the maps.

        Raises:
            RuntimeError: if there are fewer maps than the chunks need, or maps of another shape or
                memory order, as after a hook of saved tensors that changed them.
        """
        of_map = self.m + 1, self.m, self.num_units
        if len(maps) < self.num_maps or maps.shape[1:] != of_map or not maps.is_contiguous():
            raise RuntimeError(
                f"maps must be {self.num_maps} or more, contiguous in memory, got shape "
                f"{tuple(maps.shape)} with strides {maps.stride()}; hooks of saved tensors must "
                "return what they were given"
            )

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
            **options_of("carries", self.m, self.dtype.itemsize, nvidia=torch.version.hip is None),
        )
        return entering
