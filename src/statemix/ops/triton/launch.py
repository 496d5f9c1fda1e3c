"""Run the Triton kernels on tensors: memory order, phases, and results."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
import triton
from torch import Tensor

from statemix.ops.backends import Results, Scan, Step
from statemix.ops.layout import BLOCK_AXIS, STATE_BLOCK_AXIS, dense, empty_innermost, innermost
from statemix.ops.packing import Chunks
from statemix.ops.registered import empty_state
from statemix.ops.triton.kernels import scan as kernels
from statemix.ops.triton.kernels import selective
from statemix.ops.triton.kernels.carries import carries
from statemix.ops.triton.plan import ahead_of, chunk_of, grid_of, shape_of, tile_of

# Entries of a tile: tokens, columns and channels. A program holds about ten such tiles.
_ENTRIES_OF_TILE = 4096
_MOST_STEPS = 16
# Entries of the states that a program follows, of at least 8 channels.
_ENTRIES_OF_STATE = 256
_FEWEST_CHANNELS = 8


class Launcher:
    """Launches the kernels of one scan; ``forced``: steps of a chunk, 0 for all, None by rule."""

    def __init__(self, scan: Scan, forced: int | None) -> None:
        (B, T, H), m = scan.inputs.shape[:3], scan.initial_state.shape[-1]
        self._scan, self._length, self._num_units, self._m = scan, T, H, m
        self._kind = "reflect" if scan.gate == "householder" else scan.operator
        self._chunk = chunk_of(T, B * H, m) if forced is None else min(forced, T) or T
        self._num_chunks = -(-T // self._chunk)
        # Chunks that have a map, all but one of a sequence, and all chunks; if packed, at most.
        self.num_maps = B * (self._num_chunks - 1)
        self._num_sequences = len(scan.initial_state)
        self.num_rows = self._num_sequences + self.num_maps
        # If packed, the last chunk of a sequence may be shorter than the others, too.
        self._ragged = scan.cu_seqlens is not None or T % self._chunk != 0
        coarse = scan.gate == "tanh" and scan.inputs.dtype == torch.bfloat16
        self._options: dict[str, Any] = {
            "KIND": self._kind,
            "M": m,
            "FAMILY": "coarse_tanh" if coarse else scan.gate,
            # The weights of a row are measured in 2^-SHIFT, at most 1 / (4 (m+1)).
            "SHIFT": m.bit_length() + 2,
            "PACKED": scan.cu_seqlens is not None,
            "TEMPERED": scan.temperature is not None,
        }

    @cached_property
    def _packed(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The fields of :class:`Chunks`; any tensors if sequences are not packed."""
        scan = self._scan
        if scan.cu_seqlens is None:
            return (scan.initial_state,) * 4
        return Chunks.of(scan.cu_seqlens, self._length, self._chunk)

    def prepare(self, kernel: str) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
        """Return the launch of a kernel, its numbers but the strides, and its constants."""
        maps = kernel.startswith("chunk")
        num_rows = self.num_maps if maps else self.num_rows
        steps, rows, columns = shape_of(
            self._kind, kernel, self._m, self._scan.initial_state.itemsize
        )
        tile = tile_of(num_rows, self._num_units)
        grid: tuple[int, ...] = grid_of(num_rows, self._num_units, tile)
        # No more steps at once than a chunk has, and in maps no step that does not exist.
        steps = min(steps, 1 << self._chunk.bit_length() - 1)
        options = {**self._options, "ROWS": rows, "R": tile[0], "L": tile[1]}
        if kernel == "chunk_forward":
            steps, options["COLUMNS"] = math.gcd(steps, self._chunk), columns
            grid = (*grid, -(-(self._m + 1) // columns))
        else:
            options["RAGGED"] = self._ragged or self._chunk % steps != 0
        options["STEPS"] = steps
        rows_of_sequence = self._num_chunks - 1 if maps else self._num_chunks
        numbers = (self._length, self._num_units, num_rows, rows_of_sequence, self._chunk)
        # Warps that share nothing need not wait for each other.
        options |= {"num_warps": 1, "enable_fp_fusion": True}
        if torch.version.hip is None and (maps or self._m > 2):
            # Else the compiler saves registers by putting off loads, which wait one after another.
            options["maxnreg"] = 255
        return getattr(kernels, kernel)[grid], numbers, options

    def run(self, kernel: str, strides: tuple[int, ...], *tensors: Tensor) -> None:
        """Run a kernel on its first arguments, with the strides of :func:`_strides`."""
        scan = self._scan
        launch, numbers, options = self.prepare(kernel)
        temperature = scan.initial_state if scan.temperature is None else scan.temperature
        of_chunks, of_maps, *places = self._packed
        sequences = of_maps if kernel.startswith("chunk") else of_chunks
        launch(*tensors, temperature, sequences, *places, *numbers, *strides, **options)

    def empty(self, *counts: int) -> Tensor:
        """Return room for so many states, in memory (*counts, m, H)."""
        return self._scan.initial_state.new_empty(*counts, self._m, self._num_units)

    def check_room(self, maps: Tensor) -> None:
        """Check that no kernel reads or writes beyond the maps, which hooks may have changed."""
        of_map = self._m + 1, self._m, self._num_units
        if len(maps) < self.num_maps or maps.shape[1:] != of_map or not maps.is_contiguous():
            raise RuntimeError(
                f"maps must be {self.num_maps} or more, contiguous in memory, got shape "
                f"{tuple(maps.shape)} with strides {maps.stride()}; hooks of saved tensors must "
                "return what they were given"
            )

    def carried(self, maps: Tensor, offsets: Tensor, outer: Tensor, *, reverse: bool) -> Tensor:
        """Return what enters each chunk, in memory (chunks, m, H)."""
        entering = self.empty(self.num_rows)
        places, lanes, stages = ahead_of(self._m, outer.itemsize)
        carries[self._num_sequences, -(-self._num_units // lanes)](
            *(maps, offsets, outer, entering, self._packed[3], self._num_units, self._num_chunks),
            M=self._m,
            PACKED=self._options["PACKED"],
            REVERSE=reverse,
            PLACES=places,
            L=lanes,
            STAGES=stages,
            num_warps=1,
            enable_fp_fusion=True,
        )
        return entering


def forward(forced: int | None, scan: Scan, results: Results) -> None:
    """Run a scan and write its results; ``forced`` as in :class:`Launcher`."""
    gates, values = _ordered(scan.coefficients), _ordered(scan.inputs)
    initial = dense(scan.initial_state, STATE_BLOCK_AXIS)
    states, final, saved = results
    if not values.numel():
        final.copy_(initial)
        return
    launcher, strides = Launcher(scan, forced), (*_strides(gates, 2), *_strides(values, 1))
    entering = initial
    if launcher.num_maps:
        maps = saved[0] if saved else launcher.empty(launcher.num_maps, initial.shape[-1] + 1)
        launcher.check_room(maps)
        launcher.run("chunk_forward", strides, gates, values, maps)
        entering = launcher.carried(maps, maps, initial, reverse=False)
    launcher.run("local_forward", strides, gates, values, entering, states, final)


def backward(
    forced: int | None,
    scan: Scan,
    d_states: Tensor,
    d_final_state: Tensor,
    states: Tensor,
    saved: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gates, values and initial state; ``saved`` holds maps of chunks."""
    gates, values, d_states = (_ordered(one) for one in (scan.coefficients, scan.inputs, d_states))
    states = dense(states)
    initial, d_final = (dense(one, STATE_BLOCK_AXIS) for one in (scan.initial_state, d_final_state))
    d_gates, d_values = (empty_innermost(one.shape, one) for one in (gates, values))
    d_initial = empty_state(scan)
    if not values.numel():
        return d_gates, d_values, d_initial.copy_(d_final)
    of_gates, of_d_states = _strides(gates, 2), _strides(d_states, 1)
    launcher = Launcher(scan, forced)
    leaving = d_final
    if launcher.num_maps:
        (maps,) = saved
        launcher.check_room(maps)
        offsets = launcher.empty(launcher.num_maps)
        strides = (*of_gates, *of_d_states)
        launcher.run("chunk_backward", strides, gates, d_states, d_final, offsets)
        leaving = launcher.carried(maps, offsets, d_final, reverse=True)
    given = gates, values, states, initial, leaving, d_states
    strides = (*of_gates, *_strides(values, 1), *of_d_states)
    launcher.run("local_backward", strides, *given, d_gates, d_values, d_initial)
    return d_gates, d_values, d_initial


def prepare_step(scan: Scan) -> Step | None:
    """Return a function that runs one step by one launch, or None if it would copy an argument.

    It waits for nothing, so that a CUDA graph can capture it.
    """
    gates, values, initial = scan[:3]
    if (
        not values.numel()
        or _ordered(gates) is not gates
        or _ordered(values) is not values
        or dense(initial, STATE_BLOCK_AXIS) is not initial
    ):
        return None
    launch, numbers, options = Launcher(scan, None).prepare("local_forward")
    numbers = (*numbers, *_strides(gates, 2), *_strides(values, 1))
    shape, order = initial.shape, initial.stride()

    def step(
        gates: Tensor, values: Tensor, state: Tensor, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        h_t = torch.empty_like(values)
        next_state = torch.empty_strided(shape, order, dtype=state.dtype, device=state.device)
        tempered = temperature is not None
        # Kernels run on the current device.
        with torch.cuda.device_of(values):  # type: ignore[no-untyped-call]
            launch(
                *(gates, values, state, h_t, next_state, temperature if tempered else state),
                *(state,) * 3,
                *numbers,
                **(options | {"TEMPERED": tempered}),
            )
        return h_t, next_state

    return step


def _ordered(tensor: Tensor, axis: int = BLOCK_AXIS) -> Tensor:
    """Return a tensor with lanes innermost, and rows so near that 32 bits count what is between."""
    tensor = innermost(tensor, axis)
    rows = slice(axis + 1, None)
    far = any(
        size * stride >= 2**31
        for size, stride in zip(tensor.shape[rows], tensor.stride()[rows], strict=True)
    )
    return dense(tensor, axis) if far else tensor


def _strides(tensor: Tensor, inner: int) -> tuple[int, ...]:
    """Return the strides of batch, time and the last axes; 0 for axes of one entry, or without."""
    strides = [
        stride if size > 1 else 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return (*strides[:2], *(0,) * (3 + inner - tensor.ndim), *strides[3:])


def _selective_options(columns: int, num_warps: int) -> dict[str, Any]:
    """Return the constant arguments of a kernel, which say how programs share the work."""
    padded = triton.next_power_of_2(columns)
    channels = max(_ENTRIES_OF_STATE // padded, _FEWEST_CHANNELS)
    steps = min(_ENTRIES_OF_TILE // (padded * channels), _MOST_STEPS)
    options = {"STEPS": steps, "COLUMNS": padded, "CHANNELS": channels}
    return {**options, "num_warps": num_warps, "enable_fp_fusion": True}


def selective_forward(given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, tuple[Tensor]]:
    """Return what is read, the final state, and the states before tiles of tokens."""
    outputs = torch.empty_like(given["inputs"])
    (B, T, N), S = outputs.shape, given["b"].shape[-1]
    options = _selective_options(S, num_warps=4)
    num_tiles = triton.cdiv(T, options["STEPS"])
    entering = outputs.new_empty(B, num_tiles + 1, S, N)
    entering[:, 0] = given["initial_state"]
    arguments = (given[name] for name in ("steps", "rates", "inputs", "b", "c"))
    with torch.cuda.device_of(outputs):  # type: ignore[no-untyped-call]
        selective.selective_forward[B, triton.cdiv(N, options["CHANNELS"])](
            *arguments, entering, outputs, T, N, S, num_tiles, **options
        )
    return outputs, entering[:, -1].clone(), (entering,)


def selective_backward(
    given: Mapping[str, Tensor], kept: tuple[Tensor], d_outputs: Tensor, d_final_state: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of all arguments, given those of the results, which are contiguous."""
    (entering,) = kept
    (B, T, N), S = d_outputs.shape, given["b"].shape[-1]
    # With four warps, threads run out of registers.
    options = _selective_options(S, num_warps=8)
    programs = triton.cdiv(N, options["CHANNELS"])
    d_steps, d_inputs = (torch.empty_like(d_outputs) for _ in range(2))
    d_rates, d_initial_state = (torch.empty_like(given["initial_state"]) for _ in range(2))
    d_b, d_c = (d_outputs.new_empty(programs, B, T, S) for _ in range(2))
    arguments = (given[name] for name in ("steps", "rates", "inputs", "b", "c"))
    with torch.cuda.device_of(d_outputs):  # type: ignore[no-untyped-call]
        selective.selective_backward[B, programs](
            *(*arguments, entering, d_outputs, d_final_state),
            *(d_steps, d_rates, d_inputs, d_b, d_c, d_initial_state),
            *(T, N, S, entering.shape[1] - 1),
            **options,
        )
    return d_steps, d_rates.sum(0), d_inputs, d_b.sum(0), d_c.sum(0), d_initial_state
