"""The first calls of the operators in a process without compiled kernels, as rows of results.

    python benchmarks/cold_start.py results/bench/cold.jsonl

A row has the seconds of the first and the second call, and the kernels that the first one compiled.
The forward pass comes before the backward pass, so that together they are a first step; the first
row includes what Triton sets up once per process and machine. A case that fails is named, and ends
no other.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import torch

from statemix.bench import ops, rows
from statemix.bench.devices import BenchDevice, device_of

_SHAPES = ["8x2048x192x4"]
# Machine code of NVIDIA's and AMD's devices.
_COMPILED = (".cubin", ".hsaco")


def main() -> int:
    """Measure, append and print a row for each direction of each operator and shape.

    Returns:
        1 if a case failed, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--shapes", nargs="+", default=_SHAPES)
    asked = parser.parse_args()
    device = device_of(asked.device, graphs=False)
    process = rows.describe_process(device)
    # The libraries of the device are loaded before the clock runs.
    torch.ones(64, 64, device=asked.device) @ torch.ones(64, 64, device=asked.device)
    shapes = [ops.parse_shape(text) for text in asked.shapes]
    failed = 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for case in ops.cases(get_args(ops.Recurrence), shapes, (4,), (4,)):
            try:
                row = _row(case, getattr(torch, asked.dtype), device, Path(cache))
            except Exception:  # noqa: BLE001 - the others are measured
                traceback.print_exc()
                print(f"{case.recurrence} {case.direction} failed")
                failed = 1
                continue
            rows.append(asked.output, [row], process)
            kernels = row["kernels"]
            print(
                f"{case.recurrence} {case.direction:16} {case.batch_size}x{case.length}x"
                f"{case.num_blocks}x{case.block_size}: first {row['first_call_s']:.2f} s, second "
                f"{1e3 * row['second_call_s']:.2f} ms, compiled {len(kernels)}: {' '.join(kernels)}"
            )
    return failed


def _row(case: ops.Case, dtype: torch.dtype, device: BenchDevice, cache: Path) -> dict[str, Any]:
    known = set(_machine_code(cache))
    every = ops.providers(case, dtype, compiled=False, device=device.name)
    (ours,) = (one for one in every if one.name == ops.OURS)
    call = device.waiting(ours.prepare())
    first, second = _seconds(call), _seconds(call)
    return {
        "benchmark": "cold_start",
        "case": asdict(case),
        "dtype": str(dtype).removeprefix("torch."),
        "first_call_s": first,
        "second_call_s": second,
        "kernels": sorted(path.stem for path in set(_machine_code(cache)) - known),
    }


def _machine_code(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.suffix in _COMPILED]


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
