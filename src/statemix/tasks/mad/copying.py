"""Selective copying: repeat the content tokens and forget the blanks between them."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing, checks
from statemix.tasks.drawn import DrawnTask, Raw
from statemix.tasks.mad.configurations import four
from statemix.tasks.task import Examples


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
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.

    Raises:
        OptionError: if an option is out of range or has the wrong type.

    Example:
        >>> tokens, targets, _ = SelectiveCopying(length=16, num_copied=4).examples("train", 0, 1)
        >>> content = tokens[0, :11][tokens[0, :11] < 14]
        >>> tokens[0, 11:].tolist(), bool((targets["token"][0, 12:] == content).all())
        ([15, 14, 14, 14, 14], True)
    """

    name: ClassVar[str] = "selective_copying"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = four(length=64)

    def __init__(
        self,
        *,
        vocab_size: int = 16,
        length: int = 64,
        num_copied: int = 16,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self._vocab_size = checks.integer("vocab_size", vocab_size, minimum=3, maximum=2**20)
        self.num_copied = checks.integer("num_copied", num_copied, minimum=1)
        super().__init__(length=length, train_size=train_size, seed=seed)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def num_classes(self) -> int:
        return self._vocab_size

    @property
    def guessing(self) -> float:
        return 1 / (self._vocab_size - 2)

    @property
    def title(self) -> str:
        return "selective copying"

    def word(self, token: int) -> str:
        return {self._vocab_size - 2: "_", self._vocab_size - 1: "copy"}.get(token, str(token))

    def _check_length(self, length: int) -> None:
        if length < 2 * self.num_copied + 1:
            raise OptionError(
                f"length must be at least {2 * self.num_copied + 1} (num_copied content tokens, "
                f"the request and num_copied blanks), got {length}"
            )

    def _count(self, length: int) -> int:
        return length - self.num_copied - 1

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        del split
        number, copied = len(raw), self.num_copied
        content = addressing.below(raw[:, :copied], self._vocab_size - 2)
        gaps = addressing.below(raw[:, copied:], copied)
        # Content token i stands behind the i tokens before it and all blanks of gaps 0 ... i.
        before = (gaps[:, :, None] <= np.arange(copied)).sum(1)
        tokens = np.full((number, length), self._vocab_size - 2)
        np.put_along_axis(tokens, before + np.arange(copied), content, axis=1)
        tokens[:, length - copied - 1] = self._vocab_size - 1
        targets = np.full_like(tokens, IGNORED)
        targets[:, length - copied :] = content
        return Examples(tokens, {self.head: targets})
