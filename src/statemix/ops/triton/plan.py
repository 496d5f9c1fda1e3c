"""How a problem is cut for the Triton kernels: chunks of time, and tiles of rows and lanes."""

import math
from functools import cache
from typing import NamedTuple

# Lanes (sequences times units) from which on one thread per few lanes reads memory fast enough: 3.4
# MB in flight hide the latency of an H200, and a lane has the gates of one step in flight.
SEQUENTIAL_LANES = 34_000
# Chunks read the gates twice, and their maps take instructions: the largest m, and how many times
# slower than one pass on a full device all of that is (docs/kernels.md has the model).
_COSTS = ((8, 1.7), (12, 3), (16, 4))
_SHORTEST_CHUNK = 16
# The most steps of lags that maps unroll, below.
_MOST_UNROLLED = 8


@cache
def chunk_of(length: int, lanes: int, size: int) -> int:
    """Return the steps of a chunk of a sequence, by the rule.

    One chunk, unless so few lanes leave the device idle for longer than chunks cost. Their number
    then makes up for the lanes; but following their maps one after another must stay short.
    docs/kernels.md states the rule with its numbers.

    Args:
        length: steps T of the sequence, at least 1.
        lanes: sequences times units.
        size: m.
    """
    cost = next((cost for most, cost in _COSTS if size <= most), math.inf)
    shortest = max(_SHORTEST_CHUNK, math.isqrt(length) // 4)
    if lanes * cost >= SEQUENTIAL_LANES or length < 2 * shortest:
        return length
    count = -(-SEQUENTIAL_LANES // lanes)
    chunk = max(-(-length // count), shortest)
    # If the last chunk is as long as the others, no step needs to ask whether it exists.
    even = (part for part in range(chunk, chunk // 2, -1) if length % part == 0)
    return next(even, chunk // _MOST_UNROLLED * _MOST_UNROLLED)


def kernels_of(operator: str, gate: str) -> str:
    """Return the name of the kernels that run an operator with a gate family.

    Args:
        operator: "block" or "lag".
        gate: name of the family.

    Returns:
        "reflect" for reflections, whose blocks have no rows of their own; else the operator's name.
    """
    return "reflect" if gate == "householder" else operator


class Shape(NamedTuple):
    """How much of a problem one thread holds.

    Attributes:
        lanes: neighbouring lanes, a power of two. Eight of 16 bits, or four of 32, are one load of
            16 bytes.
        columns: columns of the map of a chunk; 0 for kernels without maps.
        unroll: for maps, rows of a step of blocks, or steps of lags, without a loop: in a loop, a
            map moves through the registers. The compiler takes 3 seconds for a hundred gates.
    """

    lanes: int
    columns: int = 0
    unroll: int = 1


# Lags that unroll m steps or more move nothing: a new state takes the place of the oldest.
# Kernel -> the largest m, and what takes fewest instructions there without spilling registers on an
# H200 (`statemix bench kernels`).
_SHAPES = {
    ("block", "local_forward"): ((8, Shape(8)), (16, Shape(2))),
    ("block", "local_backward"): ((4, Shape(8)), (8, Shape(4)), (15, Shape(2)), (16, Shape(1))),
    ("block", "chunk_forward"): (
        (2, Shape(8, 3, 2)),
        (4, Shape(4, 5, 4)),
        (8, Shape(1, 9, 8)),
        (9, Shape(1, 5, 3)),
        (14, Shape(1, 5, 2)),
        (15, Shape(1, 4, 3)),
        (16, Shape(1, 5, 2)),
    ),
    ("block", "chunk_backward"): (
        (2, Shape(8, 3, 2)),
        (4, Shape(4, 5, 4)),
        (8, Shape(1, 9, 8)),
        (9, Shape(1, 5, 3)),
        (16, Shape(1, 5, 2)),
    ),
    ("reflect", "local_forward"): ((9, Shape(8)), (16, Shape(4))),
    ("reflect", "local_backward"): ((4, Shape(8)), (9, Shape(4)), (16, Shape(2))),
    ("reflect", "chunk_forward"): (
        (3, Shape(8, 4, 3)),
        (5, Shape(4, 6, 5)),
        (6, Shape(4, 7)),
        (8, Shape(2, 9, 2)),
        (12, Shape(1, 13)),
        (16, Shape(1, 9)),
    ),
    ("reflect", "chunk_backward"): (
        (3, Shape(8, 4, 3)),
        (5, Shape(4, 6, 5)),
        (6, Shape(4, 7)),
        (8, Shape(2, 9, 2)),
        (12, Shape(1, 13)),
        (16, Shape(1, 9)),
    ),
    ("lag", "local_forward"): ((8, Shape(8)), (16, Shape(4))),
    ("lag", "local_backward"): ((4, Shape(8)), (8, Shape(4)), (15, Shape(2)), (16, Shape(1))),
    ("lag", "chunk_forward"): (
        (2, Shape(8, 3, 4)),
        (4, Shape(4, 5, 4)),
        (8, Shape(1, 9, 8)),
        (16, Shape(1, 5, 2)),
    ),
    ("lag", "chunk_backward"): (
        (2, Shape(8, 3, 4)),
        (4, Shape(4, 5, 4)),
        (8, Shape(1, 9, 8)),
        (15, Shape(1, 5, 2)),
        (16, Shape(1, 4, 2)),
    ),
}


# The same where :func:`crowded` holds.
_CROWDED = {
    ("block", "local_forward"): ((4, Shape(8)), (8, Shape(4)), (16, Shape(1))),
    ("block", "local_backward"): ((1, Shape(8)), (6, Shape(4)), (12, Shape(2)), (16, Shape(1))),
    ("reflect", "local_forward"): ((6, Shape(8)), (9, Shape(4)), (16, Shape(2))),
    ("reflect", "local_backward"): ((2, Shape(8)), (8, Shape(4)), (12, Shape(2)), (16, Shape(1))),
    ("lag", "local_forward"): ((4, Shape(8)), (8, Shape(4)), (16, Shape(2))),
    ("lag", "local_backward"): ((2, Shape(8)), (5, Shape(4)), (9, Shape(2)), (16, Shape(1))),
    ("block", "chunk_forward"): (
        (2, Shape(8, 3, 2)),
        (4, Shape(4, 5, 4)),
        (8, Shape(1, 9, 8)),
        (9, Shape(1, 5, 3)),
        (14, Shape(1, 5, 2)),
        (16, Shape(1, 4, 3)),
    ),
    ("block", "chunk_backward"): (
        (2, Shape(8, 3, 2)),
        (4, Shape(4, 5, 4)),
        (8, Shape(1, 9, 8)),
        (9, Shape(1, 5, 3)),
        (12, Shape(1, 5, 2)),
        (16, Shape(1, 4, 2)),
    ),
    ("reflect", "chunk_forward"): (
        (3, Shape(4, 4, 3)),
        (5, Shape(4, 6, 5)),
        (8, Shape(2, 9)),
        (12, Shape(1, 13)),
        (16, Shape(1, 9)),
    ),
    ("reflect", "chunk_backward"): (
        (3, Shape(4, 4, 3)),
        (5, Shape(2, 6)),
        (8, Shape(1, 9, 2)),
        (11, Shape(1, 6)),
        (16, Shape(1, 6)),
    ),
    ("lag", "chunk_forward"): (
        (2, Shape(8, 3, 4)),
        (4, Shape(4, 5, 4)),
        (8, Shape(1, 9, 2)),
        (16, Shape(1, 4, 2)),
    ),
    ("lag", "chunk_backward"): (
        (2, Shape(8, 3, 4)),
        (4, Shape(4, 5, 4)),
        (8, Shape(1, 9, 2)),
        (16, Shape(1, 4, 2)),
    ),
}


def crowded(kernel: str, gate: str, element_bytes: int, *, packed: bool, ragged: bool) -> bool:
    """Return whether a kernel keeps much more in registers than states and a row of gates.

    Args:
        kernel: name of the kernel.
        gate: name of the family.
        element_bytes: bytes of a gate.
        packed: whether sequences are packed.
        ragged: whether the last chunk is shorter than the others.
    """
    more = gate not in ("softmax", "householder")
    if kernel == "local_forward":
        return packed or ragged or more
    if kernel == "local_backward":
        return packed or element_bytes > 2 or more
    return packed or ragged


def alignment(*strides: int) -> int:
    """Return the power of two, at most 16, that divides H and all strides but that of lanes.

    So many neighbouring lanes can be one load.
    """
    return math.gcd(16, *strides)


def shape_of(
    kernels: str,
    kernel: str,
    size: int,
    state_bytes: int,
    *,
    align: int = 16,
    crowded: bool = False,
) -> Shape:
    """Return how much one thread of a kernel holds.

    Args:
        kernels: "block", "lag" or "reflect", from :func:`kernels_of`.
        kernel: name of the kernel.
        size: m. Above 16, registers spill.
        state_bytes: bytes of a number of the state.
        align: what :func:`alignment` returns. Lanes that several loads read take more registers.
        crowded: what :func:`crowded` returns.
    """
    shapes = (_CROWDED if crowded else _SHAPES)[kernels, kernel]
    # A float64 takes two registers, as two numbers of a block of twice the size do.
    registers = state_bytes // 4
    shape = next((shape for most, shape in shapes if registers * size <= most), None)
    if shape is None:
        shape = Shape(1, 1 if kernel.startswith("chunk") else 0)
    columns = min(shape.columns, size + 1)
    unroll = shape.unroll
    if kernels != "lag":
        unroll = size if size <= unroll else math.gcd(size, unroll)
    return Shape(min(max(1, shape.lanes // registers), align), columns, unroll)


def shift_of(size: int) -> int:
    """Return s for which a row's weights are measured in 2^-s, at most 1 / (4 (m+1))."""
    return size.bit_length() + 2


class Tile(NamedTuple):
    """Tile of one program: R rows and L lanes, in one warp.

    Attributes:
        rows: R.
        lanes: L.
    """

    rows: int
    lanes: int

    def grid(self, num_rows: int, num_lanes: int) -> tuple[int, int]:
        """Return the numbers of programs along rows and lanes."""
        return -(-num_rows // self.rows), -(-num_lanes // self.lanes)


def tile_of(num_rows: int, num_lanes: int, per_thread: int) -> Tile:
    """Return the tile that covers a problem with the fewest places that do not exist.

    Args:
        num_rows: rows of the problem.
        num_lanes: lanes of the problem.
        per_thread: neighbouring lanes of each of the 32 threads of a warp, a power of two.
    """

    def places(tile: Tile) -> int:
        along_rows, along_lanes = tile.grid(num_rows, num_lanes)
        return along_rows * along_lanes

    tiles = [Tile(2**k, 32 // 2**k * per_thread) for k in range(6)]
    return min(tiles, key=places)
