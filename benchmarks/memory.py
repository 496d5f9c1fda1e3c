"""Measure the option ``memory`` of BDLRU and HLRU on four small tasks, with three seeds each.

    python benchmarks/memory.py OUTPUT.jsonl

The tasks are recall (the first of 200 tokens), copying (8 tokens among 64), s3 (products of
permutations) and text (bytes of the standard library's sources). A row holds the score and
everything that decided it.
"""

import math
import sys
import sysconfig
import time
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from statemix import layers
from statemix_lab.bench.harness import append_rows, describe_process

ARMS = {"default": None, "1 to 50": (1, 50), "1 to 500": (1, 500)}
SIZES = {"bd_lru": ("num_blocks", {"block_size": 4}, 4), "h_lru": ("num_channels", {"order": 2}, 1)}
STEPS = {"recall": 400, "copying": 800, "s3": 500, "text": 400}
SIZE = {"recall": 32, "copying": 64, "s3": 64, "text": 8}  # words of a batch


class Model(nn.Module):
    """Embedding, residual blocks of a layer and an MLP, and a readout."""

    def __init__(self, layer: str, vocabulary: int, width: int, depth: int, memory: object) -> None:
        super().__init__()
        count, options, channels = SIZES[layer]
        options = {**options, count: width // channels, "memory": memory}
        self.embed = nn.Embedding(vocabulary, width)
        self.mixers = nn.ModuleList(
            layers.build(layer, hidden_size=width, **options) for _ in range(depth)
        )
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * depth + 1))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for place, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps, strict=True)):
            x = x + mixer(self.norms[2 * place](x))[0]
            x = x + mlp(self.norms[2 * place + 1](x))
        return self.head(self.norms[-1](x))


def recall(rng: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    """Return words whose last token asks for the first; 7 symbols and a blank."""
    tokens = torch.full((size, 200), 7)
    tokens[:, 0] = torch.randint(7, (size,), generator=rng)
    targets = torch.full_like(tokens, -100)
    targets[:, -1] = tokens[:, 0]
    return tokens, targets


def copying(rng: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    """Return 8 symbols scattered among 64 places, then 8 places that ask for them in order."""
    tokens = torch.full((size, 72), 8)
    places = torch.rand(size, 64, generator=rng).argsort(-1)[:, :8].sort(-1).values
    symbols = torch.randint(8, (size, 8), generator=rng)
    tokens.scatter_(1, places, symbols)
    tokens[:, 64:] = 9
    targets = torch.full_like(tokens, -100)
    targets[:, 64:] = symbols
    return tokens, targets


def s3(rng: torch.Generator, size: int, length: int = 32) -> tuple[Tensor, Tensor]:
    """Return words of permutations of 3 points, and their products after each token."""
    group = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
    tokens = torch.randint(6, (size, length), generator=rng)
    point, products = torch.arange(3).expand(size, 3), []
    for t in range(length):
        point = group[tokens[:, t]].gather(1, point)
        products.append((group == point[:, None]).all(-1).int().argmax(-1))
    return tokens, torch.stack(products, 1)


def sources() -> Tensor:
    """Return the bytes of the standard library's modules, in the order of their names."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def text(rng: torch.Generator, size: int, data: Tensor) -> tuple[Tensor, Tensor]:
    """Return windows of 256 bytes and the bytes that follow each."""
    starts = torch.randint(len(data) - 257, (size, 1), generator=rng)
    window = data[starts + torch.arange(257)].long()
    return window[:, :-1], window[:, 1:]


def measure(task: str, layer: str, arm: str, seed: int) -> dict[str, float]:
    """Train one network and return its scores."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    draw = {"recall": recall, "copying": copying, "s3": s3}.get(task)
    if draw is None:
        data = sources()
        cut = len(data) * 9 // 10
        model = Model(layer, 256, 128, 2, ARMS[arm])
    else:
        model = Model(layer, 10, 64, 1, ARMS[arm])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS[task])
    for _ in range(STEPS[task]):
        tokens, targets = draw(rng, SIZE[task]) if draw else text(rng, SIZE[task], data[:cut])
        loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    rng = torch.Generator().manual_seed(1000)
    with torch.no_grad():
        if draw is None:
            tokens, targets = text(rng, 64, data[cut:])
            loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            return {"bits_per_byte": loss.item() / math.log(2)}
        scores = {"accuracy": accuracy(model, *draw(rng, 256))}
        if task == "s3":
            scores["accuracy_at_128"] = accuracy(model, *s3(rng, 256, 128))
        return scores


def accuracy(model: nn.Module, tokens: Tensor, targets: Tensor) -> float:
    """Return the share of right answers among the places that have a target."""
    scored = targets >= 0
    return (model(tokens).argmax(-1) == targets)[scored].float().mean().item()


def main() -> None:
    """Measure every layer, seed, task and value of the option."""
    torch.set_num_threads(1)
    process = describe_process()
    for layer, seed, task, arm in product(SIZES, range(3), STEPS, ARMS):
        start = time.perf_counter()
        row = {"layer": layer, "task": task, "memory": arm, "seed": seed}
        row |= {**measure(task, layer, arm, seed), "num_steps": STEPS[task]}
        row["time_s"] = round(time.perf_counter() - start, 1)
        append_rows(Path(sys.argv[1]), [row], process)


if __name__ == "__main__":
    main()
