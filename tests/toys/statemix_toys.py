"""Layers and a task that a user could have written, for tests; ``imports`` names this module."""

from typing import ClassVar

import numpy as np
import torch
from torch import nn

from statemix.errors import OptionError
from statemix.layers import LAYERS, Layer
from statemix.tasks import IGNORED, TASKS, Examples
from statemix.tasks.addressing import SPLITS


class Toy(Layer):
    """Position-wise: its state is a number that nothing reads."""

    def __init__(self, hidden_size, *, device=None, dtype=None):
        super().__init__()
        self.hidden_size = hidden_size
        self.proj = nn.Linear(hidden_size, hidden_size, device=device, dtype=dtype)

    def reset_parameters(self, generator=None):
        bound = self.hidden_size**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def init_state(self, batch_size, device=None, dtype=None):
        weight = self.proj.weight
        return torch.zeros((batch_size, 1), device=device or weight.device, dtype=dtype)

    def forward(self, x, state=None, cu_seqlens=None):
        rows = self._check_sequence(x, state, cu_seqlens)
        return self._map(x), self.init_state(rows) if state is None else state

    def step(self, x_t, state):
        return self._map(x_t), state

    def _map(self, x):
        return self.proj(x)


@LAYERS.register
class Solver(Toy):
    """Repeats a map, reports about it, and has attributes that may be scheduled."""

    name = "solver"
    schedulable = ("iterations", "gain")

    def __init__(
        self, hidden_size, *, iterations: int = 1, gain: float = 1.0, device=None, dtype=None
    ):
        super().__init__(hidden_size, device=device, dtype=dtype)
        self.iterations = iterations
        self.gain = gain
        self.seen = []

    @property
    def iterations(self):
        return self._iterations

    @iterations.setter
    def iterations(self, value):
        if not isinstance(value, int):
            raise OptionError(f"iterations must be an int, got {value!r}")
        if value < 1:
            raise OptionError(f"iterations must be at least 1, got {value}")
        self._iterations = value

    def _map(self, x):
        self.seen.append((self.training, self.iterations, self.gain))
        for _ in range(self.iterations):
            x = torch.tanh(self.gain * self.proj(x))
        self._size = x.detach().abs().mean()
        return x

    def reports(self):
        return {"iterations": torch.tensor(float(self.iterations)), "size": self._size}


@LAYERS.register
class Raising(Toy):
    """Raises in a training step."""

    name = "raising"

    def __init__(self, hidden_size, *, at: int = 3, device=None, dtype=None):
        super().__init__(hidden_size, device=device, dtype=dtype)
        self.at = at
        self.calls = 0

    def _map(self, x):
        self.calls += self.training
        if self.calls == self.at:
            raise LookupError("no such neuron")
        return self.proj(x)


@TASKS.register
class Ragged:
    """Say the sum so far modulo 5, and at even places its parity; no two lengths are alike.

    Args:
        length: tokens of the longest.
        train_size: as in every task.
        seed: likewise.
    """

    name = "ragged"
    presets: ClassVar = {}
    vocab_size = 5
    heads: ClassVar = {"sum": 5, "parity": 2}
    chance: ClassVar = {"sum": 1 / 5, "parity": 1 / 2}
    title = "sums"

    def __init__(self, *, length: int = 6, train_size: int | None = None, seed: int = 0):
        self.length, self.train_size, self.seed = length, train_size, seed

    def examples(self, split, start, stop, length=None):
        longest = self.length if length is None else length
        count = stop - start
        # The padding must not matter, so it is a token like others.
        tokens = np.full((count, longest), 4)
        targets = {head: np.full((count, longest), IGNORED) for head in self.heads}
        lengths = np.empty(count, dtype=np.int64)
        for row, index in enumerate(range(start, stop)):
            draws = np.random.default_rng([self.seed, SPLITS.index(split), longest, index])
            lengths[row] = n = 1 + index % longest
            tokens[row, :n] = draws.integers(5, size=n)
            sums = tokens[row, :n].cumsum() % 5
            targets["sum"][row, :n] = sums
            targets["parity"][row, :n:2] = sums[::2] % 2
        return Examples(tokens, targets, lengths)

    def describe(self, index, split="train"):
        return f"{split} {self.examples(split, index, index + 1).tokens[0].tolist()}"
