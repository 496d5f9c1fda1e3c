"""What the Triton kernels should take on an H200: a model of bytes and instructions.

It counts bytes that must move and instructions that must be issued, as if memory and all processors
were always busy. It does not know how long loads are waited for: no GPU has judged it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from statemix.ops.triton.plan import SEQUENTIAL_LANES, chunk_of

CARRIES = ("carries", "carries_back")
KERNELS = ("local_forward", "local_backward", "chunk_forward", "chunk_backward", *CARRIES)
"""Local scans, the maps of chunks, and what follows the maps, forward and backward."""

# Assumed bytes per second of a copy and multiplications of matrices, and lanes of instructions
# issued per second (132 processors of 128 lanes at 1.755 GHz).
_BYTES_PER_S = 4.3e12
_FLOPS_PER_S = 790e12
_LANES_PER_S = 132 * 128 * 1.755e9
# The problem: sequences, steps of each, and entries of the state. m need not divide these.
_SEQUENCES, _STEPS, _STATE = 8, 2048, 768
# The layer: entries of its weights, and its width.
_PARAMETERS, _HIDDEN_SIZE = 33_000_000, 1024
_ELEMENT_BYTES = 2


class Pass(NamedTuple):
    """What a kernel does in a pass over a problem.

    Attributes:
        steps: steps of all lanes.
        step_bytes: bytes that a step of a lane moves.
        other_bytes: bytes that are moved besides.
    """

    steps: float
    step_bytes: int
    other_bytes: float


def moved_s(work: Pass) -> float:
    """Return the time to move the bytes of a pass."""
    return (work.steps * work.step_bytes + work.other_bytes) / _BYTES_PER_S


def issued_s(work: Pass, instructions: float) -> float:
    """Return the time to issue the instructions of a pass, so many for a step of a lane."""
    return work.steps * instructions / _LANES_PER_S


class Problem(NamedTuple):
    """16,384 tokens with 768 entries of state, as the rule of plan.py cuts them.

    Attributes:
        chunk: steps of a chunk.
        steps: steps of all lanes.
        maps: maps of chunks of all lanes.
    """

    chunk: int
    steps: float
    maps: float


def problem_of(operator: str, size: int, state: float = _STATE) -> Problem:
    """Return how the problem is cut.

    Args:
        operator: "block" or "lag".
        size: m.
        state: entries of the state.
    """
    lanes = _SEQUENCES * (state / size if operator == "block" else state)
    chunk = chunk_of(_STEPS, int(lanes), size)
    return Problem(chunk, lanes * _STEPS, lanes * (-(-_STEPS // chunk) - 1))


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
        rows: rows of ``statemix bench kernels`` for one target, dtype and family.
        operator: "block" or "lag".
        size: m.

    Raises:
        ValueError: if a kernel has no row.
    """
    found = {
        row["kernel"]: row for row in rows if (row["operator"], row["size"]) == (operator, size)
    }
    if missing := set(KERNELS) - found.keys():
        raise ValueError(f"rows must have {sorted(missing)} of {operator} at m = {size}")
    local = [row for kernel, row in found.items() if kernel.startswith("local")]
    copy_us = sum(row["roofline_us"] for row in local)
    whole = sum(row["predicted_us"] for row in local) / copy_us
    chunked = sum(row["predicted_us"] for row in found.values()) / copy_us
    # A layer projects to m + 1 gates, and to and from one value, for each entry of the state.
    state = _PARAMETERS / _HIDDEN_SIZE / (size + 3)
    lanes = _SEQUENCES * state / (size if operator == "block" else 1)
    one_chunk = chunk_of(_STEPS, int(lanes), size) == _STEPS
    scan = whole * max(1, SEQUENTIAL_LANES / lanes) if one_chunk else chunked
    tokens = _SEQUENCES * _STEPS
    scan_s = scan * 3 * _ELEMENT_BYTES * _PARAMETERS / _HIDDEN_SIZE * tokens / _BYTES_PER_S
    projections_s = 6 * _PARAMETERS * tokens / _FLOPS_PER_S
    return Predicted(whole, chunked, tokens / 1e6 / (projections_s + scan_s))
