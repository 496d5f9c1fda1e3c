"""Memorization: a fixed map from keys to values that only the weights can hold."""

from functools import cached_property
from typing import ClassVar

import numpy as np

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing, checks
from statemix.tasks.drawn import DrawnTask, Raw, Tokens
from statemix.tasks.task import Examples


class Memorization(DrawnTask):
    """Answer keys by the values of a fixed map, which no sequence shows.

    Tokens are keys (0 to ``(vocab_size - 1) // 2 - 1``), values, and ``vocab_size - 1``, which asks
    for the value of the key before it. The seed alone determines the map, which gives every key a
    value of its own; it is the same in all splits.

    Source: MAD, "memorization".

    Args:
        vocab_size: number of tokens, at least 3.
        length: tokens of an example, an even number.
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the map and of the examples, 0 <= seed < 2^64.

    Raises:
        OptionError: if an option is out of range or has the wrong type.

    Example:
        >>> Memorization(vocab_size=16, length=8).examples("train", 0, 1).tokens[0, 1::2].tolist()
        [15, 15, 15, 15]
    """

    name: ClassVar[str] = "memorization"

    def __init__(
        self,
        *,
        vocab_size: int = 256,
        length: int = 32,
        train_size: int | None = 256,
        seed: int = 0,
    ) -> None:
        self._vocab_size = checks.integer("vocab_size", vocab_size, minimum=3, maximum=2**20)
        super().__init__(length=length, train_size=train_size, seed=seed)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def num_classes(self) -> int:
        return self._vocab_size

    @property
    def guessing(self) -> float:
        return 1 / (self._vocab_size - 1 - self._num_keys)

    @property
    def title(self) -> str:
        return "memorization"

    def word(self, token: int) -> str:
        if token == self._vocab_size - 1:
            return "?"
        return f"k{token}" if token < self._num_keys else f"v{token - self._num_keys}"

    @property
    def _num_keys(self) -> int:
        return (self._vocab_size - 1) // 2

    @cached_property
    def values(self) -> Tokens:
        """The value of every key, shape (number of keys,), int64."""
        count = self._vocab_size - 1 - self._num_keys
        raw = addressing.draws(
            f"{self.name}: map", count, seed=self.seed, split="train", start=0, stop=1
        )
        return np.argsort(raw[0], kind="stable")[: self._num_keys] + self._num_keys

    def _check_length(self, length: int) -> None:
        if length % 2:
            raise OptionError(f"length must be even, got {length}")

    def _count(self, length: int) -> int:
        return length // 2

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        del split
        keys = addressing.below(raw, self._num_keys)
        tokens = np.full((len(raw), length), self._vocab_size - 1)
        tokens[:, ::2] = keys
        targets = np.full_like(tokens, IGNORED)
        targets[:, 1::2] = self.values[keys]
        return Examples(tokens, {self.head: targets})
