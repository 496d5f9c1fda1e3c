"""What the Triton kernels should take on an H200: a model of bytes, instructions and waiting.

A kernel takes the longest of four times: that of the bytes that must move, that of the instructions
that must be issued, that of the special functions among them, which have units of their own, and
that for which its warps wait for what they read, one read after another. No GPU has judged it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from statemix.ops.triton.plan import ahead_of, chunk_of

CARRIES = ("carries", "carries_back")
KERNELS = ("local_forward", "local_backward", "chunk_forward", "chunk_backward", *CARRIES)
"""Local scans, the maps of chunks, what leaves chunks backward, and what follows the maps."""

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
"""Bytes of a number."""

# Assumed bytes per second of a copy, multiplications of matrices, and seconds of a load.
_BYTES_PER_S = 4.3e12
_FLOPS_PER_S = 790e12
_LATENCY_S = 0.8e-6
# Processors, each of which issues for four warps of 32 lanes at a time, has so many registers, and
# keeps so many programs, of one warp here.
_PROCESSORS, _SCHEDULERS, _HERTZ = 132, 4, 1.755e9
# Lanes of a warp whose powers, roots, reciprocals or tanh a scheduler's unit begins at a time.
_SPECIAL_LANES = 4
_REGISTERS, _PROGRAMS = 65_536, 32
# The problem: sequences, steps of each, and entries of the state. m need not divide these.
_SEQUENCES, _STEPS, _STATE = 8, 2048, 768
# The problem of one pass, with as many lanes as fill the device at every m.
_MANY_SEQUENCES, _FEW_STEPS = 8192, 128
# The layer: entries of its weights, and its width.
_PARAMETERS, _HIDDEN_SIZE = 33_000_000, 1024
_ELEMENT_BYTES = 2


class Problem(NamedTuple):
    """A problem, as it is cut.

    Attributes:
        lanes: sequences times units.
        length: steps.
        chunk: steps of a chunk.
    """

    lanes: float
    length: int
    chunk: int

    @property
    def maps(self) -> int:
        """Maps of chunks of a lane."""
        return -(-self.length // self.chunk) - 1


def problem_of(operator: str, size: int, *, full: bool = False) -> Problem:
    """Return 16,384 tokens with 768 entries of state, as the rule of plan.py cuts them.

    Args:
        operator: "block" or "lag".
        size: m.
        full: return 64 times as many tokens of short sequences instead, in one pass.
    """
    units = _STATE / size if operator == "block" else _STATE
    if full:
        return Problem(_MANY_SEQUENCES * units, _FEW_STEPS, _FEW_STEPS)
    lanes = _SEQUENCES * units
    return Problem(lanes, _STEPS, chunk_of(_STEPS, int(lanes), size))


class Code(NamedTuple):
    """A kernel of an operator at one m, and what its machine code says.

    Attributes:
        operator: "block" or "lag".
        kernel: a name in :data:`KERNELS`.
        size: m.
        element_bytes: bytes of a gate.
        lanes: lanes of a program, which is one warp.
        steps: steps that are read at once.
        rows: rows of a step of blocks that are read at once.
        columns: columns of maps of a thread; 0 if it has none.
        registers: registers of a thread.
        loads: loads that a thread reads at once by its plan.
        in_flight: how many of them the compiler lets wait at once; 0 if they wait in shared memory.
        instructions: instructions of a step, per gate and lane, over all columns of maps.
        functions: powers, roots, reciprocals and tanh among them.
    """

    operator: str
    kernel: str
    size: int
    element_bytes: int
    lanes: int
    steps: int
    rows: int
    columns: int
    registers: int
    loads: int
    in_flight: int
    instructions: float
    functions: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Code":
        """Return what a row of ``statemix bench kernels`` says, of a target of NVIDIA's."""
        found = {name: row[name] for name in cls._fields if name in row}
        return cls(**found, element_bytes=BYTES[row["dtype"]])


class Times(NamedTuple):
    """Seconds of a pass of a kernel over a problem.

    Attributes:
        moved: to move the bytes.
        issued: to issue the instructions.
        special: to compute powers, roots, reciprocals and tanh.
        waited: to wait for what is read.
    """

    moved: float
    issued: float
    special: float
    waited: float


def gates_of(operator: str, kernel: str, size: int) -> int:
    """Return the gates of a step of a lane; for carries, the entries of the map of a chunk."""
    return (size + 1) * (size if operator == "block" or kernel in CARRIES else 1)


def moved_s(operator: str, kernel: str, size: int, element_bytes: int, problem: Problem) -> float:
    """Return the seconds in which the bytes of a pass move."""
    gates, entries = gates_of(operator, kernel, size), size if operator == "block" else 1
    state_bytes, maps = max(4, element_bytes), problem.lanes * problem.maps
    if kernel in CARRIES:
        return maps * state_bytes * (gates + size) / _BYTES_PER_S
    of_gates, of_states = {
        "local_forward": (1, 2),
        "local_backward": (2, 4),
        "chunk_forward": (1, 1),
        "chunk_backward": (1, 1),
    }[kernel]
    step_bytes = element_bytes * (of_gates * gates + of_states * entries)
    if kernel.startswith("local"):
        return problem.lanes * problem.length * step_bytes / _BYTES_PER_S
    map_bytes = state_bytes * size * (size + 1 if kernel == "chunk_forward" else 1)
    return maps * (problem.chunk * step_bytes + map_bytes) / _BYTES_PER_S


def times_of(code: Code, problem: Problem) -> Times:
    """Return what a pass of a kernel should take."""
    gates = gates_of(code.operator, code.kernel, code.size)
    if code.kernel in CARRIES:
        places, steps = problem.lanes, problem.maps
    elif code.kernel.startswith("chunk"):
        places, steps = problem.lanes * problem.maps, problem.chunk
    else:
        places, steps = problem.lanes * (problem.maps + 1), problem.chunk
    groups = -(-(code.size + 1) // code.columns) if code.columns else 1
    warps = groups * places / code.lanes
    per_number = gates * code.lanes / 32 / groups / _HERTZ
    of_warp = code.instructions * per_number
    of_processor = min(_PROGRAMS, _REGISTERS // (32 * -(-code.registers // 8) * 8))
    turns = max(1, warps / (_PROCESSORS * of_processor))
    if code.kernel in CARRIES:
        ahead = ahead_of(code.size, max(4, code.element_bytes)).stages - 1
        waited = max(_LATENCY_S / ahead, of_warp)
    else:
        rounds = (-(-code.size // code.rows) if code.operator == "block" else 1) / code.steps
        waited = rounds * _LATENCY_S * max(1, code.loads / code.in_flight) + of_warp
    of_scheduler = warps * steps / (_PROCESSORS * _SCHEDULERS)
    return Times(
        moved_s(code.operator, code.kernel, code.size, code.element_bytes, problem),
        of_scheduler * of_warp,
        of_scheduler * code.functions * per_number * 32 / _SPECIAL_LANES,
        turns * steps * waited,
    )


class Predicted(NamedTuple):
    """Forward and backward, by the rows of the kernels.

    Attributes:
        whole: one pass over time, where lanes suffice, over a copy of as many bytes.
        chunked: chunks with maps, over that copy.
        layer: 10^6 tokens per second of a layer of 33M parameters, whose projections come first.
    """

    whole: float
    chunked: float
    layer: float


def predicted(rows: Iterable[Mapping[str, Any]], operator: str, size: int) -> Predicted:
    """Return what operator and layer should take.

    Args:
        rows: rows of ``statemix bench kernels`` for one target of NVIDIA's, dtype and family.
        operator: "block" or "lag".
        size: m.

    Raises:
        ValueError: if a kernel has no row.
    """
    of_size = [row for row in rows if (row["operator"], row["size"]) == (operator, size)]
    few, full = (
        {row["kernel"]: Code.of(row) for row in of_size if row["full"] == wanted}
        for wanted in (False, True)
    )
    missing = (set(KERNELS) - few.keys()) | (set(KERNELS[:2]) - full.keys())
    if missing:
        raise ValueError(f"rows must have {sorted(missing)} of {operator} at m = {size}")
    whole = _over_a_copy(full, problem_of(operator, size, full=True))
    chunked = _over_a_copy(few, problem_of(operator, size))
    # A layer projects to m + 1 gates, and to and from one value, for each entry of the state.
    state = _PARAMETERS / _HIDDEN_SIZE / (size + 3)
    lanes = _SEQUENCES * state / (size if operator == "block" else 1)
    scan = _over_a_copy(few, Problem(lanes, _STEPS, chunk_of(_STEPS, int(lanes), size)))
    tokens = _SEQUENCES * _STEPS
    scan_s = scan * 3 * _ELEMENT_BYTES * _PARAMETERS / _HIDDEN_SIZE * tokens / _BYTES_PER_S
    projections_s = 6 * _PARAMETERS * tokens / _FLOPS_PER_S
    return Predicted(whole, chunked, tokens / 1e6 / (projections_s + scan_s))


def _over_a_copy(codes: Mapping[str, Code], problem: Problem) -> float:
    """Return the time of all kernels that a problem needs over that of the bytes of one pass."""
    needed = KERNELS if problem.maps else KERNELS[:2]
    times = {kernel: times_of(codes[kernel], problem) for kernel in needed}
    return sum(map(max, times.values())) / sum(times[kernel].moved for kernel in KERNELS[:2])
