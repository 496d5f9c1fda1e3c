"""Compression, selective copying and memorization: what a state or the weights can hold."""

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.mad import dubinin_presets
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import DrawnTask, Raw, Tokens


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
    """

    name: ClassVar[str] = "memorization"
    title = "memorization"

    def __init__(
        self,
        *,
        vocab_size: int = 256,
        length: int = 32,
        train_size: int | None = 256,
        seed: int = 0,
    ) -> None:
        self.vocab_size = addressing.check_vocabulary(vocab_size, 3)
        super().__init__(length=length, train_size=train_size, seed=seed)

    @property
    def guessing(self) -> float:
        return 1 / (self.vocab_size - 1 - self._num_keys)

    def word(self, token: int) -> str:
        if token == self.vocab_size - 1:
            return "?"
        return f"k{token}" if token < self._num_keys else f"v{token - self._num_keys}"

    @property
    def _num_keys(self) -> int:
        return (self.vocab_size - 1) // 2

    @cached_property
    def values(self) -> Tokens:
        """The value of every key, shape (number of keys,), int64."""
        count = self.vocab_size - 1 - self._num_keys
        raw = addressing.draws(
            f"{self.name}: map", count, seed=self.seed, split="train", start=0, stop=1
        )
        return np.argsort(raw[0], kind="stable")[: self._num_keys] + self._num_keys

    def _check_length(self, length: int) -> None:
        if length % 2:
            raise OptionError(f"length must be even, got {length}")

    def _count(self, length: int) -> int:
        return length // 2

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:  # noqa: ARG002
        keys = addressing.below(raw, self._num_keys)
        tokens = np.full((len(raw), length), self.vocab_size - 1)
        tokens[:, ::2] = keys
        targets = np.full_like(tokens, IGNORED)
        targets[:, 1::2] = self.values[keys]
        return Examples(tokens, {self.head: targets})


class Compression(DrawnTask):
    """Compress a random sequence into one vector, from which every token is read back.

    Token ``vocab_size - 1`` ends the sequence; the others are uniform over the rest. The targets
    are the tokens themselves, the last one included. The task is meant for a model that decodes
    the output at the last position alone.

    Source: MAD, "compression".

    Args:
        vocab_size: number of tokens, at least 2.
        length: tokens of an example, the ending token included.
    """

    name: ClassVar[str] = "compression"
    title = "compression"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = dubinin_presets(length=64)

    def __init__(
        self,
        *,
        vocab_size: int = 16,
        length: int = 64,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.vocab_size = addressing.check_vocabulary(vocab_size, 2)
        super().__init__(length=length, train_size=train_size, seed=seed)

    @property
    def guessing(self) -> float:
        return (1 + (self.length - 1) / (self.vocab_size - 1)) / self.length

    def word(self, token: int) -> str:
        return "end" if token == self.vocab_size - 1 else str(token)

    def _count(self, length: int) -> int:
        return length

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:  # noqa: ARG002
        tokens = addressing.below(raw, self.vocab_size - 1)
        tokens[:, length - 1 :] = self.vocab_size - 1
        return Examples(tokens, {self.head: tokens.copy()})


class SelectiveCopying(DrawnTask):
    """Copy the content tokens of a sequence in order, without the blanks between them.

    Tokens are content (0 to ``vocab_size - 3``), blanks (``vocab_size - 2``) and the request to
    copy (``vocab_size - 1``). ``num_copied`` content tokens stand first, each preceded by a random
    number of blanks: every blank chooses one of the content tokens uniformly. Then come the request
    and ``num_copied`` blanks, whose targets are the content tokens.

    Source: MAD, "selective copying".

    Args:
        vocab_size: number of tokens, at least 3.
        length: tokens of an example, at least ``2 * num_copied + 1``.
        num_copied: content tokens of an example.
    """

    name: ClassVar[str] = "selective_copying"
    title = "selective copying"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = dubinin_presets(length=64)

    def __init__(
        self,
        *,
        vocab_size: int = 16,
        length: int = 64,
        num_copied: int = 16,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.vocab_size = addressing.check_vocabulary(vocab_size, 3)
        self.num_copied = addressing.check_integer("num_copied", num_copied, minimum=1)
        super().__init__(length=length, train_size=train_size, seed=seed)

    @property
    def guessing(self) -> float:
        return 1 / (self.vocab_size - 2)

    def word(self, token: int) -> str:
        return {self.vocab_size - 2: "_", self.vocab_size - 1: "copy"}.get(token, str(token))

    def _check_length(self, length: int) -> None:
        if length < 2 * self.num_copied + 1:
            raise OptionError(
                f"length must be at least {2 * self.num_copied + 1} (num_copied content tokens, "
                f"the request and num_copied blanks), got {length}"
            )

    def _count(self, length: int) -> int:
        return length - self.num_copied - 1

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:  # noqa: ARG002
        number, copied = len(raw), self.num_copied
        content = addressing.below(raw[:, :copied], self.vocab_size - 2)
        gaps = addressing.below(raw[:, copied:], copied)
        # Content token i stands behind the i tokens before it and all blanks of gaps 0 ... i.
        before = (gaps[:, :, None] <= np.arange(copied)).sum(1)
        tokens = np.full((number, length), self.vocab_size - 2)
        np.put_along_axis(tokens, before + np.arange(copied), content, axis=1)
        tokens[:, length - copied - 1] = self.vocab_size - 1
        targets = np.full_like(tokens, IGNORED)
        targets[:, length - copied :] = content
        return Examples(tokens, {self.head: targets})
