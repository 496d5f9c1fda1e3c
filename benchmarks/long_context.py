"""Forward and backward of one layer on a million tokens: time and memory, as a row of results."""

import argparse
import time
from pathlib import Path

import torch

from statemix.bench import rows
from statemix.bench.devices import Cuda
from statemix.layers import BDLRU

_ROUNDS = 3


def main() -> None:
    """Measure, and append a row for every way to keep what the backward pass needs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--length", type=int, default=2**20)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--block-size", type=int, default=4)
    arguments = parser.parse_args()
    device = Cuda(graphs=False)
    process = rows.describe_process(device)
    for every in (None, 2**16):
        layer = BDLRU(
            arguments.hidden_size,
            arguments.hidden_size // arguments.block_size,
            arguments.block_size,
            checkpoint_every=every,
            backend="triton",
            device="cuda",
            dtype=torch.bfloat16,
        )
        x = torch.randn(
            1, arguments.length, arguments.hidden_size, device="cuda", dtype=torch.bfloat16
        ).requires_grad_()

        def call(layer: BDLRU = layer, x: torch.Tensor = x) -> None:
            y, _ = layer(x)
            torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y))

        waiting = device.waiting(call)
        waiting()
        peak = device.peak_bytes(call)
        times = []
        for _ in range(_ROUNDS):
            begun = time.perf_counter()
            waiting()
            times.append(time.perf_counter() - begun)
        row = {
            "benchmark": "long_context",
            "case": vars(arguments) | {"output": None, "checkpoint_every": every},
            "dtype": "bfloat16",
            "time_s": sorted(times),
            "memory_bytes": peak,
        }
        rows.append(arguments.output, [row], process)
        print(
            f"T = {arguments.length:,}, checkpoint_every={every}: "
            f"{1e3 * sorted(times)[1]:.1f} ms, {peak / 1e9:.1f} GB above the input"
        )


if __name__ == "__main__":
    main()
