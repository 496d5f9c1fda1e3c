"""How a problem is cut for the Triton kernels: chunks of time, and what a thread reads at once.

These rules are fixed. A choice by timing, such as that of ``triton.autotune``, could differ from
process to process, and compilers round differently in kernels of other sizes: a resumed run would
not repeat the one that was interrupted.
"""

import math

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
    """Return the steps of a chunk: one chunk, unless few lanes leave the device idle for long.

    Else about as many chunks as make up for the lanes (sequences times units), but following their
    maps one after another must stay short. docs/kernels.md explains the phases.
    """
    shortest = max(_SHORTEST_CHUNK, math.isqrt(length) // 4)
    if lanes * _COST >= SEQUENTIAL_LANES or size > MOST_IN_CHUNKS or length < 2 * shortest:
        return length
    # Powers of two divide most lengths: then no step needs to ask whether it exists.
    return 1 << round(math.log2(max(length * lanes / SEQUENTIAL_LANES, shortest)))


def most_maps(length: int, lanes: int, size: int, forced: int | None = None) -> int:
    """Return how many maps of chunks there are at most, for sizes that a compiler may not know."""
    if forced:
        return (torch.sym_max(length, 1) - 1) // forced  # type: ignore[no-untyped-call, no-any-return]
    if forced == 0 or size > MOST_IN_CHUNKS:
        return 0
    # The nearest power of two is at least 0.7 of what the lanes ask for.
    of_lanes = 3 * SEQUENTIAL_LANES // (2 * torch.sym_max(lanes, 1))  # type: ignore[no-untyped-call]
    return torch.sym_min(length // _SHORTEST_CHUNK, of_lanes)  # type: ignore[no-untyped-call, no-any-return]


# Gates that the registers of a thread hold beside all else, and numbers of maps, without spilling.
_GATES = {"local_forward": 144, "local_backward": 72, "chunk_forward": 80, "chunk_backward": 144}
_NUMBERS_OF_MAPS = 72


def shape_of(kind: str, kernel: str, size: int, state_bytes: int) -> tuple[int, int, int]:
    """Return the steps, rows of gates and columns of a map that one thread reads at once.

    Steps are a power of two: above 1, all rows of a step are read at once. Rows divide their
    number. Kernels without maps have 0 columns.
    """
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
        return steps, rows, 0
    parts = -(-gates // max(4 * _NUMBERS_OF_MAPS // (size * state_bytes), 1))
    return steps, rows, -(-gates // parts)


def ahead_of(size: int, state_bytes: int) -> tuple[int, int, int]:
    """Return places for the entries of a state, lanes of a program, and stages of its loop.

    Maps in flight, one fewer than stages, fit the 48 KB of memory that programs share.
    """
    places = 1 << (size - 1).bit_length()
    lanes = max(4, 32 // places)
    of_map = state_bytes * (size + 1) * places * lanes
    return places, lanes, 1 + min(7, 49_152 // of_map)


def tile_of(num_rows: int, num_lanes: int) -> tuple[int, int]:
    """Return the rows and lanes of a program of 32 threads, so that few places do not exist."""
    tiles = [(2**k, 32 // 2**k) for k in range(6)]
    return min(tiles, key=lambda tile: math.prod(grid_of(num_rows, num_lanes, tile)))


def grid_of(num_rows: int, num_lanes: int, tile: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of programs along rows and lanes."""
    return -(-num_rows // tile[0]), -(-num_lanes // tile[1])
