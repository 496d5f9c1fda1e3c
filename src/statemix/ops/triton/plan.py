"""How a problem is cut for the Triton kernels: chunks of time, and what a thread reads at once.

These rules are fixed. A choice by timing, such as that of ``triton.autotune``, could differ from
process to process, and compilers round differently in kernels of other sizes: a resumed run would
not repeat the one that was interrupted.
"""

import math
from typing import NamedTuple

import torch

# Lanes (sequences times units) from which on one pass reads memory fast enough. Some forty gates of
# each are read at once: then 3.4 MB are in flight, which hide the latency of an H200.
SEQUENTIAL_LANES = 40_000
# Chunks read the gates twice, and their maps take instructions: about twice the time of one pass.
_COST = 2
_SHORTEST_CHUNK = 32
# Maps of larger blocks take longer than the device is idle.
MOST_IN_CHUNKS = 16


def chunk_of(length: int, lanes: int, size: int) -> int:
    """Return the steps of a chunk of a sequence of ``length`` steps.

    One chunk, unless so few lanes (sequences times units) of m = ``size`` entries leave the device
    idle for longer than chunks cost. Else about as many chunks as make up for the lanes, but
    following their maps one after another must stay short. docs/kernels.md explains the phases.
    """
    shortest = max(_SHORTEST_CHUNK, math.isqrt(length) // 4)
    if lanes * _COST >= SEQUENTIAL_LANES or size > MOST_IN_CHUNKS or length < 2 * shortest:
        return length
    # Powers of two divide most lengths: then no step needs to ask whether it exists.
    return 1 << round(math.log2(max(length * lanes / SEQUENTIAL_LANES, shortest)))


def most_maps(length: int, lanes: int, size: int, forced: int | None = None) -> int:
    """Return how many maps of chunks of a sequence there are at most, by arithmetic alone.

    A compiler may know sizes by name only. For these, :func:`chunk_of` has no result, and a
    comparison would split the compiled program. ``forced`` gives the steps of a chunk in place of
    the rule, 0 for one chunk; the other arguments are those of :func:`chunk_of`.
    """
    if forced:
        return (torch.sym_max(length, 1) - 1) // forced  # type: ignore[no-untyped-call, no-any-return]
    if forced == 0 or size > MOST_IN_CHUNKS:
        return 0
    # The nearest power of two is at least 0.7 of what the lanes ask for.
    of_lanes = 3 * SEQUENTIAL_LANES // (2 * torch.sym_max(lanes, 1))  # type: ignore[no-untyped-call]
    return torch.sym_min(length // _SHORTEST_CHUNK, of_lanes)  # type: ignore[no-untyped-call, no-any-return]


class Shape(NamedTuple):
    """What one thread, which has one lane, reads at once, or holds."""

    # Steps of time, a power of two. Above 1, all rows of a step are read at once.
    steps: int
    # Rows of gates of a step, a divisor of their number.
    rows: int
    # Columns of the map of a chunk; 0 for kernels without maps.
    columns: int


# Gates that the registers of a thread hold beside all else, and numbers of maps, without spilling.
_GATES = {"local_forward": 144, "local_backward": 72, "chunk_forward": 80, "chunk_backward": 144}
_NUMBERS_OF_MAPS = 72


def shape_of(kind: str, kernel: str, size: int, state_bytes: int) -> Shape:
    """Return what one thread of a kernel of some kind (kernels/scan.py) reads at once."""
    num_rows, gates = 1 if kind == "lag" else size, size + 1
    most = 4 * _GATES[kernel] // state_bytes
    if kind == "reflect":
        most = min(most, 72)
    fitting = [n for n in range(1, num_rows + 1) if num_rows % n == 0 and n * gates <= most]
    rows = max(fitting, default=1)
    at_once = most // (num_rows * gates) if rows == num_rows else 1
    most_steps = 8 if kernel == "local_backward" else 16
    steps = 1 << min(max(at_once, 1), most_steps).bit_length() - 1
    if kernel != "chunk_forward":
        return Shape(steps, rows, 0)
    parts = -(-gates // max(4 * _NUMBERS_OF_MAPS // (size * state_bytes), 1))
    return Shape(steps, rows, -(-gates // parts))


class Ahead(NamedTuple):
    """How maps of chunks are followed."""

    # Places for the entries of a state, a power of two.
    places: int
    # Lanes of a program.
    lanes: int
    # One more than the maps in flight.
    stages: int


def ahead_of(size: int, state_bytes: int) -> Ahead:
    """Return how maps of blocks of size m are followed.

    A thread has one entry of a state, or a few: so few lanes take the fewest instructions for a
    map. The maps in flight are in shared memory, of which every GPU has 48 KB for a program. If not
    even one fits, with one stage, none is read ahead. More of large ones compile for long.
    """
    places = 1 << (size - 1).bit_length()
    lanes = max(4, 32 // places)
    of_map = state_bytes * (size + 1) * places * lanes
    return Ahead(places, lanes, 1 + min(7, 49_152 // of_map))


def tile_of(num_rows: int, num_lanes: int) -> tuple[int, int]:
    """Return the rows and lanes of a program of 32 threads, so that few places do not exist."""
    tiles = [(2**k, 32 // 2**k) for k in range(6)]
    return min(tiles, key=lambda tile: math.prod(grid_of(num_rows, num_lanes, tile)))


def grid_of(num_rows: int, num_lanes: int, tile: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of programs along rows and lanes."""
    return -(-num_rows // tile[0]), -(-num_lanes // tile[1])
