"""Gradients of the Triton kernels against the float64 reference at every m, as rows of results.

    python benchmarks/gradients.py results/bench/gradients.jsonl

A row has the largest error of each result relative to its largest entry, and says whether a second
run gave the same bits. Memory that is allocated while the kernels run is NaN before they write to
it. Kernels are compiled in processes of their own, --workers at a time; rows are appended as they
come. What fails is tried again in a process of its own: an error of a GPU spoils all that its
process does later.
"""

import argparse
import math
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from statemix import ops
from statemix.bench import rows
from statemix.bench.devices import device_of

_KERNELS = (("bd_lru", "softmax"), ("h_lru", "softmax"), ("bd_lru", "householder"))
# m at which time is also cut into chunks, in float32: maps take longest to compile.
_CHUNKED = (1, 2, 3, 4, 5, 6, 8, 16)
_NAMES = ("states", "final_state", "d_gates", "d_values", "d_initial_state")


@dataclass(frozen=True)
class Case:
    """One problem. For H-LRU, blocks are channels and the block size is the order.

    Attributes:
        chunk: steps of a chunk; 0 for one chunk.
    """

    recurrence: str
    gate: str
    block_size: int
    dtype: str
    chunk: int
    batch_size: int = 2
    length: int = 256
    num_blocks: int = 80


def main() -> int:
    """Check, append and print a row for each problem, and return 1 if one could not be run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(range(1, 17)))
    parser.add_argument("--workers", type=int, default=8)
    asked = parser.parse_args()
    process = rows.describe_process(device_of(asked.device, graphs=False))
    # What takes longest begins first.
    groups = [
        (recurrence, gate, size)
        for size in sorted(asked.sizes, reverse=True)
        for recurrence, gate in _KERNELS
    ]

    def failed(begun: Mapping[Future[list[dict[str, Any]]], tuple[str, str, int]]) -> list[Any]:
        """Append and print what comes, and return the groups that failed."""
        lost = []
        for one in as_completed(begun):
            if error := one.exception():
                print(*begun[one], "failed:", error)
                lost.append(begun[one])
                continue
            found = one.result()
            rows.append(asked.output, found, process)
            for row in found:
                case = row["case"].values()
                print(*case, row["dtype"], row["status"], row["errors"], row["repeats"])
        return lost

    where = asked.device, asked.backend
    with ThreadPoolExecutor(asked.workers) as threads:
        again = failed({threads.submit(_beside, *group, *where): group for group in groups})
        # Threads that end leave their processes without work, which then end, too.
    with ThreadPoolExecutor(asked.workers) as threads:
        return int(bool(failed({threads.submit(_alone, *one, *where): one for one in again})))


_of_thread = threading.local()


def _beside(*arguments: Any) -> list[dict[str, Any]]:
    """Check in the process of this thread.

    One pool of all processes would end if one of them dies, and may hang if others are being
    started.
    """
    if not hasattr(_of_thread, "process"):
        _of_thread.process = _process()
    try:
        return _of_thread.process.submit(_checked, *arguments).result()
    except BrokenProcessPool:
        del _of_thread.process
        raise


def _alone(*arguments: Any) -> list[dict[str, Any]]:
    with _process() as process:
        return process.submit(_checked, *arguments).result()


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def cases(recurrence: str, gate: str, size: int) -> Iterator[Case]:
    """Yield the problems of one kernel at one m."""
    yield Case(recurrence, gate, size, "bfloat16", 0)
    yield Case(recurrence, gate, size, "float32", 0)
    if size in _CHUNKED:
        yield Case(recurrence, gate, size, "float32", 48)


def _checked(
    recurrence: str, gate: str, size: int, device: str, backend: str
) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    return [_row(case, device, backend) for case in cases(recurrence, gate, size)]


def _row(case: Case, device: str, backend: str) -> dict[str, Any]:
    arguments = _problem(case, device)
    exact = [part.double() for part in arguments]
    expected = _outcome(case, exact, "reference")
    run = ops.in_chunks(case.chunk) if backend == "triton" else backend
    with poisoned():
        first, second = (_outcome(case, arguments, run) for _ in range(2))
    errors = {name: _error(first[name], expected[name]) for name in _NAMES}
    whole = all(map(math.isfinite, errors.values()))
    return {
        "benchmark": "gradients",
        "case": {name: value for name, value in asdict(case).items() if name != "dtype"},
        "dtype": case.dtype,
        "provider": backend,
        # JSON has no NaN.
        "status": "measured" if whole else "wrong",
        "errors": errors if whole else {},
        "repeats": all(torch.equal(first[name], second[name]) for name in _NAMES),
    }


def _problem(case: Case, device: str) -> list[Tensor]:
    """Return gates, values, initial state, and the gradients of states and final state."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.float32
    size, narrow = case.block_size, getattr(torch, case.dtype)
    entries = (size,) if case.recurrence == "bd_lru" else ()
    rows_of = (case.batch_size, case.length, *entries)

    def normal(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    # Blocks are innermost in memory.
    gates = normal(*rows_of, size + 1, case.num_blocks, dtype=narrow).movedim(-1, 2)
    values, d_states = (
        normal(*rows_of, case.num_blocks, dtype=narrow).movedim(-1, 2) for _ in range(2)
    )
    initial, d_final = (
        normal(case.batch_size, case.num_blocks, size, dtype=wide) for _ in range(2)
    )
    return [gates, values, initial, d_states, d_final]


def _outcome(case: Case, arguments: list[Tensor], backend: str) -> Mapping[str, Tensor]:
    operator = getattr(ops, case.recurrence)
    leaves = [part.detach().requires_grad_() for part in arguments[:3]]
    gates, values, initial = leaves
    states, final = operator(gates, values, case.gate, initial, backend=backend)
    gradients = torch.autograd.grad([states, final], leaves, arguments[3:])
    found = (states.detach(), final.detach(), *gradients)
    return dict(zip(_NAMES, found, strict=True))


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill what Python allocates without values with NaN."""

    def poison(allocate: Any) -> Any:
        def filled(*arguments: Any, **options: Any) -> Tensor:
            tensor: Tensor = allocate(*arguments, **options)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return filled

    owners = [(torch, "empty"), (torch, "empty_like"), (torch, "empty_strided")]
    patches = [
        mock.patch.object(owner, name, poison(getattr(owner, name)))
        for owner, name in [*owners, (torch.Tensor, "new_empty")]
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


if __name__ == "__main__":
    sys.exit(main())
