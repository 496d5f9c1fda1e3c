"""Forward and backward of one layer on a very long sequence: time and memory, as rows of results.

    python benchmarks/long_context.py results/bench/long.jsonl

One row keeps what the backward pass needs, the other computes it again every 65,536 tokens. Output,
final state and gradient of the input are checked at the last tokens, against a reference in float64
that starts from the state before them.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from statemix.bench import rows
from statemix.bench.devices import device_of
from statemix.bench.harness import Provider, measure
from statemix.bench.ops import TOLERANCES
from statemix.layers import BDLRU

# Tokens that are checked.
_LAST = 256
_EVERY = {"kept": None, "computed again": 2**16}


def main() -> int:
    """Measure, append and print a row for each provider, and return 1 if one failed."""
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
        [
            Provider(name, partial(_prepare, asked, every), partial(_error, asked))
            for name, every in _EVERY.items()
        ],
        relative_to=("kept",),
        rounds=asked.rounds,
        budget_s=20.0,
        tolerance=TOLERANCES[torch.bfloat16],
        seed=0,
        device=device,
    )
    case = {name: value for name, value in vars(asked).items() if name != "output"}
    for one in found:
        time_s = one.time_s and one.time_s._asdict()
        row = {"benchmark": "long_context", "case": case, "dtype": "bfloat16", "time_s": time_s}
        row |= {"provider": one.provider, "status": one.status, "reason": one.reason}
        row |= {"checkpoint_every": _EVERY[one.provider], "memory_bytes": one.memory_bytes}
        row |= {"relative_error": one.relative_error}
        rows.append(asked.output, [row], process)
        shown = (time_s, one.memory_bytes, one.relative_error)
        print(one.provider, one.status, one.reason, *shown)
    return int(any(one.status == "failed" for one in found))


def _prepare(asked: argparse.Namespace, every: int | None) -> Callable[[], Sequence[Tensor]]:
    layer = _layer(asked, asked.backend, every)
    x, d_y = _problem(asked.length, asked.hidden_size, asked.device)

    def call() -> Sequence[Tensor]:
        y, state = layer(x)
        d_x, *_ = torch.autograd.grad(y, [x, *layer.parameters()], d_y)
        return y.detach(), state.detach(), d_x

    return call


def _error(asked: argparse.Namespace, result: Sequence[Tensor]) -> float:
    """Return the largest error at the last tokens, relative to the largest entry.

    No later token changes an output, so none of these depends on gradients of earlier tokens.
    """
    y, state, d_x = result
    x, d_y = _problem(asked.length, asked.hidden_size, asked.device)
    start = max(asked.length - _LAST, 0)
    with torch.no_grad():
        _, before = _layer(asked, asked.backend, None)(x[:, :start])
    exact = _layer(asked, "reference", None).double()
    last = x[:, start:].detach().double().requires_grad_()
    expected_y, expected_state = exact(last, before.double())
    (expected_d_x,) = torch.autograd.grad(expected_y, last, d_y[:, start:].double())
    pairs = ((y[:, start:], expected_y), (state, expected_state), (d_x[:, start:], expected_d_x))
    return max(
        float((found.double() - wanted.detach()).abs().max() / wanted.detach().abs().max())
        for found, wanted in pairs
    )


def _layer(asked: argparse.Namespace, backend: str, every: int | None) -> BDLRU:
    layer = BDLRU(
        asked.hidden_size,
        asked.hidden_size // asked.block_size,
        asked.block_size,
        checkpoint_every=every,
        backend=backend,
        dtype=torch.bfloat16,
    )
    layer.reset_parameters(torch.Generator().manual_seed(0))
    return layer.to(asked.device)


@cache
def _problem(length: int, hidden_size: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(1)
    shape = (1, length, hidden_size)
    x, d_y = (
        torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
        for _ in range(2)
    )
    return x.requires_grad_(), d_y


if __name__ == "__main__":
    sys.exit(main())
