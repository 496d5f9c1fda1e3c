"""How a problem is cut for the Triton kernels: chunks of time, and tiles of rows and lanes."""

import math
from functools import cache
from typing import Any, NamedTuple

import torch

# Lanes (sequences times units) from which on one pass reads memory fast enough. Some forty gates of
# each are read at once: then 3.4 MB are in flight, which hide the latency of an H200.
SEQUENTIAL_LANES = 40_000
# So many warps, nearly three for each scheduler of an H200, keep it busy.
_BUSY_WARPS = 1_500
# Chunks read the gates twice, and their maps take instructions: the largest m, and about how many
# times slower than one pass on a full device all of that is, by the model of docs/kernels.md.
_COSTS = ((8, 1.7), (12, 2), (16, 2.5))
_SHORTEST_CHUNK = 32
# Chunks are multiples of it, where nothing near divides T: threads read so many steps at once.
_MULTIPLE = 16


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
    wanted = max(length * lanes / SEQUENTIAL_LANES, shortest)
    # If the last chunk is as long as the others, no step needs to ask whether it exists.
    near = range(_MULTIPLE, int(1.5 * wanted) + 1, _MULTIPLE)
    even = [part for part in near if 4 * part >= 3 * wanted and length % part == 0]
    if even:
        return min(even, key=lambda part: max(part / wanted, wanted / part))
    return round(wanted / _MULTIPLE) * _MULTIPLE


def most_maps(length: int, lanes: int, size: int, forced: int | None = None) -> int:
    """Return how many maps of chunks of a sequence there are at most, by arithmetic alone.

    A compiler may know sizes by name only. For these, :func:`chunk_of` has no result, and a
    comparison would split the compiled program. ``forced`` gives the steps of a chunk in place of
    the rule, 0 for one chunk; the other arguments are those of :func:`chunk_of`.
    """
    most = 0
    if forced:
        most = (torch.sym_max(length, 1) - 1) // forced  # type: ignore[no-untyped-call]
    elif forced is None and size <= _COSTS[-1][0]:
        # No chunk is shorter than the shortest, or than three quarters of what the lanes ask for.
        of_lanes = 4 * SEQUENTIAL_LANES // (3 * torch.sym_max(lanes, 1))  # type: ignore[no-untyped-call]
        most = torch.sym_min(length // _SHORTEST_CHUNK, of_lanes)  # type: ignore[no-untyped-call]
    return most


def kernels_of(operator: str, gate: str) -> str:
    """Return the name of the kernels that run an operator with a gate family.

    Args:
        operator: "block" or "lag".
        gate: name of the family.

    Returns:
        "reflect" for reflections, whose blocks have no rows of their own; else the operator's name.
    """
    return "reflect" if gate == "householder" else operator


def family_of(gate: str, *, bfloat16: bool) -> str:
    """Return the name by which the kernels know a gate family.

    Args:
        gate: name of the family.
        bfloat16: whether gates are bfloat16.

    Returns:
        "coarse_tanh" for tanh gates in bfloat16 (kernels/rows.py); else the family's name.
    """
    return "coarse_tanh" if gate == "tanh" and bfloat16 else gate


class Shape(NamedTuple):
    """How much of a problem one thread holds.

    Attributes:
        lanes: neighbouring lanes, a power of two: eight of 16 bits are one load of 16 bytes.
        steps: steps that are read at once. Above 1, all rows of a step are.
        rows: rows of a step of blocks that are read at once; of lags, 1. In local scans of blocks
            they need not divide m: the first part is then shorter.
        columns: columns of the map of a chunk; 0 for kernels without maps.
    """

    lanes: int
    steps: int = 1
    rows: int = 1
    columns: int = 0


# What leaves the chunks of blocks takes few registers, whatever their gates.
_LEAVING = (
    (1, Shape(1, 16)),
    (2, Shape(1, 8, 2)),
    (3, Shape(1, 8, 3)),
    (6, Shape(1, 4, 6)),
    (7, Shape(1, 2, 7)),
    (11, Shape(1, 1, 11)),
    (12, Shape(1, 1, 6)),
    (13, Shape(1, 1, 13)),
    (14, Shape(1, 1, 7)),
    (15, Shape(1, 1, 5)),
    (16, Shape(1, 1, 8)),
)
# Kernel -> the largest m, and the shape up to there, for gates of 16 bits. A model of an H200 chose
# them from machine code without spilled registers. An H100 has timed m = 1, 2, 4 and 8 alone.
_SHAPES = {
    ("block", "local_forward"): (
        (1, Shape(1, 16)),
        (2, Shape(2, 8, 2)),
        (3, Shape(2, 8, 3)),
        (5, Shape(1, 4, 5)),
        (8, Shape(1, 2, 8)),
        (9, Shape(1, 1, 9)),
        (10, Shape(1, 1, 5)),
        (11, Shape(1, 1, 11)),
        (12, Shape(1, 1, 6)),
        (14, Shape(1, 1, 7)),
        (16, Shape(1, 1, 8)),
    ),
    ("block", "local_backward"): (
        (1, Shape(2, 8)),
        (2, Shape(2, 4, 2)),
        (3, Shape(2, 4, 3)),
        (4, Shape(2, 2, 4)),
        (5, Shape(1, 2, 5)),
        (8, Shape(1, 1, 8)),
        (9, Shape(1, 1, 3)),
        (10, Shape(1, 1, 5)),
        (12, Shape(1, 1, 4)),
        (14, Shape(1, 1, 3)),
        (15, Shape(1, 1, 5)),
        (16, Shape(1, 1, 4)),
    ),
    ("block", "chunk_forward"): (
        (1, Shape(1, 16, 1, 2)),
        (2, Shape(1, 8, 2, 3)),
        (3, Shape(1, 8, 3, 4)),
        (6, Shape(1, 4, 6, 7)),
        (7, Shape(1, 2, 7, 8)),
        (8, Shape(1, 1, 8, 9)),
        (9, Shape(1, 1, 9, 5)),
        (11, Shape(1, 1, 11, 6)),
        (12, Shape(1, 1, 12, 7)),
        (13, Shape(1, 1, 13, 5)),
        (14, Shape(1, 1, 7, 5)),
        (15, Shape(1, 1, 5, 6)),
        (16, Shape(1, 1, 4, 6)),
    ),
    ("block", "chunk_backward"): _LEAVING,
    ("lag", "local_forward"): (
        (2, Shape(1, 16)),
        (8, Shape(1, 8)),
        (16, Shape(1, 4)),
    ),
    ("lag", "local_backward"): (
        (1, Shape(1, 8)),
        (4, Shape(2, 8)),
        (8, Shape(1, 4)),
        (16, Shape(1, 2)),
    ),
    ("lag", "chunk_forward"): (
        (7, Shape(1, 16, 1, 8)),
        (8, Shape(1, 8, 1, 9)),
        (9, Shape(1, 8, 1, 5)),
        (11, Shape(1, 8, 1, 6)),
        (13, Shape(1, 8, 1, 7)),
        (15, Shape(1, 8, 1, 8)),
        (16, Shape(1, 8, 1, 9)),
    ),
    ("lag", "chunk_backward"): (
        (5, Shape(1, 16)),
        (10, Shape(1, 8)),
        (16, Shape(1, 4)),
    ),
    ("reflect", "local_forward"): (
        (1, Shape(2, 16)),
        (2, Shape(2, 8, 2)),
        (3, Shape(2, 8, 3)),
        (4, Shape(1, 2, 4)),
        (5, Shape(1, 4, 5)),
        (7, Shape(1, 2, 7)),
        (8, Shape(1, 1, 8)),
        (9, Shape(1, 1, 3)),
        (10, Shape(1, 1, 5)),
        (14, Shape(1, 1, 2)),
        (15, Shape(1, 1, 3)),
        (16, Shape(1, 1, 4)),
    ),
    ("reflect", "local_backward"): (
        (1, Shape(2, 8)),
        (2, Shape(2, 4, 2)),
        (3, Shape(1, 4, 3)),
        (4, Shape(2, 2, 4)),
        (7, Shape(1, 1, 7)),
        (8, Shape(1, 1, 4)),
        (9, Shape(1, 1, 3)),
        (14, Shape(1, 1, 2)),
        (15, Shape(1, 1, 3)),
        (16, Shape(1, 1, 2)),
    ),
    ("reflect", "chunk_forward"): (
        (1, Shape(1, 16, 1, 2)),
        (2, Shape(1, 16, 2, 3)),
        (3, Shape(1, 8, 3, 4)),
        (5, Shape(1, 4, 5, 6)),
        (7, Shape(1, 2, 7, 8)),
        (8, Shape(1, 1, 8, 9)),
        (9, Shape(1, 1, 9, 5)),
        (11, Shape(1, 1, 11, 6)),
        (13, Shape(1, 1, 13, 7)),
        (14, Shape(1, 1, 7, 8)),
        (15, Shape(1, 1, 5, 8)),
        (16, Shape(1, 1, 8, 6)),
    ),
    ("reflect", "chunk_backward"): _LEAVING,
}
# The same for local scans of so many lanes that they keep the device busy with eight for a thread;
# above FULL_SIZE, a thread has too few registers for more lanes than above.
FULL_SIZE = 4
_FULL = {
    ("block", "local_forward"): ((1, Shape(8, 4)), (2, Shape(8, 2, 2)), (4, Shape(8, 1, 4))),
    ("block", "local_backward"): ((1, Shape(8, 4)), (2, Shape(8, 2, 2)), (4, Shape(4, 1, 4))),
    ("lag", "local_forward"): ((2, Shape(8, 4)), (4, Shape(8, 2))),
    ("lag", "local_backward"): ((2, Shape(8, 2)), (4, Shape(4, 2))),
    ("reflect", "local_forward"): ((1, Shape(8, 4)), (2, Shape(8, 2, 2)), (4, Shape(8, 1, 4))),
    ("reflect", "local_backward"): ((1, Shape(8, 2)), (2, Shape(4, 2, 2)), (4, Shape(4, 1, 4))),
}


def fills(lanes: int) -> bool:
    """Return whether so many lanes, of all chunks, keep a device busy with eight for a thread."""
    return lanes >= 8 * 32 * _BUSY_WARPS


class Ahead(NamedTuple):
    """How maps of chunks are followed.

    Attributes:
        places: places for the entries of a state, a power of two.
        lanes: lanes of a program.
        stages: maps in flight are one fewer.
    """

    places: int
    lanes: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        """The constant arguments of the kernel."""
        return {"PLACES": self.places, "L": self.lanes, "STAGES": self.stages}


def ahead_of(size: int, state_bytes: int) -> Ahead:
    """Return how maps of blocks of size m are followed.

    A thread has one entry of a state, or a few: so few lanes take the fewest instructions for a
    map. The maps in flight are in shared memory, of which every GPU has 48 KB for a program. If not
    even one fits, with one stage, none is read ahead. More of large ones compile for long.
    """
    places = 1 << (size - 1).bit_length()
    lanes = max(4, 32 // places)
    of_map = state_bytes * (size + 1) * places * lanes
    most = 15 if size <= 4 else 11 if size <= 8 else 7
    return Ahead(places, lanes, 1 + min(most, 49_152 // of_map))


def alignment(*strides: int) -> int:
    """Return the power of two, at most 16, that divides H and all strides but that of lanes.

    So many neighbouring lanes can be one load.
    """
    return math.gcd(16, *strides)


def shape_of(
    kernels: str,
    kernel: str,
    size: int,
    element_bytes: int,
    *,
    align: int = 16,
    full: bool = False,
) -> Shape:
    """Return how much one thread of a kernel holds.

    Args:
        kernels: "block", "lag" or "reflect", from :func:`kernels_of`.
        kernel: name of the kernel.
        size: m. Above 16, registers spill.
        element_bytes: bytes of a gate.
        align: what :func:`alignment` returns. Lanes that several loads read take more registers.
        full: what :func:`fills` returns.
    """
    maps = kernel == "chunk_forward"
    if element_bytes > 4:
        # For checks: no kernel of such numbers is fast, and with one row at once few spill.
        columns = 3 if size <= 8 else 1
        return Shape(1, columns=min(columns, size + 1) if maps else 0)
    shapes = _SHAPES[kernels, kernel]
    if full and kernel.startswith("local"):
        shapes = _FULL[kernels, kernel] + shapes
    shape = next((shape for most, shape in shapes if size <= most), None)
    if shape is None:
        shape = Shape(1, columns=1 if maps else 0)
    lanes, steps, rows, columns = shape
    if kernels == "block" and kernel.startswith("local"):
        rows = min(size, rows)
    elif kernels != "lag":
        rows = size if size <= rows else math.gcd(size, rows)
    return Shape(
        min(max(1, 2 * lanes // element_bytes), align), steps, rows, min(columns, size + 1)
    )


# Local scans, whether gates have 16 bits, and the m at which the compiler is left to itself: more
# loads are in flight so. Elsewhere it would save registers by putting loads off, which then wait
# one after another, or by spilling some (backward at m = 3, and at 4 in float32).
_SPARING = {
    ("local_forward", True): (1, 2, 3),
    ("local_forward", False): (1, 2, 3),
    ("local_backward", True): (1, 2, 4),
    ("local_backward", False): (1, 2),
}


def options_of(kernel: str, size: int, element_bytes: int, *, nvidia: bool) -> dict[str, Any]:
    """Return the options of the compiler.

    Args:
        kernel: name of the kernel.
        size: m.
        element_bytes: bytes of a gate.
        nvidia: whether the target is NVIDIA's.
    """
    sparing = _SPARING.get((kernel, element_bytes == 2), ())
    # Warps that share nothing need not wait for each other.
    options: dict[str, Any] = {"num_warps": 1, "enable_fp_fusion": True}
    if nvidia and not kernel.startswith("carries") and size not in sparing:
        options["maxnreg"] = 255
    return options


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
