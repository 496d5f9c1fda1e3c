"""Forward and backward of one layer on a very long sequence: time and memory, as rows of results.

    python benchmarks/long_context.py results/bench/long.jsonl

One row keeps what the backward pass needs, the other computes it again every 65,536 tokens.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from statemix.bench import rows
from statemix.bench.devices import device_of
from statemix.bench.harness import Provider, measure
from statemix.layers import BDLRU

_EVERY = {"kept": None, "computed again": 2**16}


def main() -> None:
    """Measure, and append and print a row for each provider."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--length", type=int, default=2**20)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--block-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    device = device_of(asked.device, graphs=False)
    process = rows.describe_process(device)
    found = measure(
        [Provider(name, partial(_prepare, asked, every)) for name, every in _EVERY.items()],
        relative_to=("kept",),
        rounds=asked.rounds,
        budget_s=20.0,
        tolerance=0.0,
        seed=0,
        device=device,
    )
    case = {name: value for name, value in vars(asked).items() if name != "output"}
    for one in found:
        time_s = one.time_s and one.time_s._asdict()
        row = {"benchmark": "long_context", "case": case, "dtype": "bfloat16", "time_s": time_s}
        row |= {"provider": one.provider, "status": one.status, "reason": one.reason}
        row |= {"checkpoint_every": _EVERY[one.provider], "memory_bytes": one.memory_bytes}
        rows.append(asked.output, [row], process)
        print(one.provider, one.status, one.reason, time_s, one.memory_bytes)


def _prepare(asked: argparse.Namespace, every: int | None) -> Callable[[], Any]:
    layer = BDLRU(
        asked.hidden_size,
        asked.hidden_size // asked.block_size,
        asked.block_size,
        checkpoint_every=every,
        backend=asked.backend,
        device=asked.device,
        dtype=torch.bfloat16,
    )
    shape = (1, asked.length, asked.hidden_size)
    x = torch.randn(shape, device=asked.device, dtype=torch.bfloat16, requires_grad=True)
    d_y = torch.randn_like(x)

    def call() -> Any:
        y, _ = layer(x)
        return torch.autograd.grad(y, [x, *layer.parameters()], d_y)

    return call


if __name__ == "__main__":
    main()
