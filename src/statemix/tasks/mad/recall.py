"""In-context recall: repeat the value that a key had earlier in the sequence."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.tasks import addressing, checks
from statemix.tasks.drawn import DrawnTask, Raw, Tokens
from statemix.tasks.mad.configurations import four
from statemix.tasks.task import IGNORED, Examples


class Recall(DrawnTask):
    """Answer keys by the values that they had earlier in the sequence.

    A sequence consists of pairs of a key (0 to ``vocab_size / 2 - 1``) and a value. A key that
    occurs for the first time draws a value uniformly, so that keys may share one; later it repeats
    it. The last key is one of those shown before. The model reads all tokens but the last.

    In training every next token is a target, new keys and values included. Validation and test
    score only the values of keys shown before.

    Source: MAD, "in-context recall" with several queries ("associative recall" in Dubinin et al.).

    Args:
        vocab_size: number of tokens, an even number of at least 2.
        num_pairs: pairs of a sequence, at least 2; its length is ``2 * num_pairs - 1``.
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.

    Raises:
        ValueError: if an option is out of range.
        TypeError: if an option has the wrong type.

    Example:
        >>> Recall(num_pairs=32).examples("test", 0, 3).tokens.shape
        (3, 63)
    """

    name: ClassVar[str] = "recall"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = four(num_pairs=32)

    def __init__(
        self,
        *,
        vocab_size: int = 16,
        num_pairs: int = 32,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self._vocab_size = checks.integer("vocab_size", vocab_size, minimum=2, maximum=2**20)
        if self._vocab_size % 2:
            raise ValueError(f"vocab_size must be even, got {vocab_size}")
        self.num_pairs = checks.integer("num_pairs", num_pairs, minimum=2, maximum=2**22)
        super().__init__(length=2 * self.num_pairs - 1, train_size=train_size, seed=seed)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def num_classes(self) -> int:
        return self._vocab_size

    @property
    def guessing(self) -> float:
        return 2 / self._vocab_size

    @property
    def title(self) -> str:
        return "recall"

    def word(self, token: int) -> str:
        half = self._vocab_size // 2
        return f"k{token}" if token < half else f"v{token - half}"

    def _check_length(self, length: int) -> None:
        if length < 3 or length % 2 == 0:
            raise ValueError(f"length must be odd and at least 3, got {length}")

    def _count(self, length: int) -> int:
        return length + 1

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        del length
        full, shown = pairs(raw, self._vocab_size // 2)
        tokens, targets = full[:, :-1], full[:, 1:].copy()
        if split != "train":
            targets[:, 1::2] = IGNORED
            targets[:, ::2][~shown] = IGNORED
        return Examples(tokens, {self.head: targets})


def pairs(
    raw: Raw, num_keys: int, *, absent: NDArray[np.bool_] | None = None
) -> tuple[Tokens, NDArray[np.bool_]]:
    """Draw sequences of key-value pairs; keys are 0 ... num_keys - 1, values the next num_keys.

    Args:
        raw: random values, two per pair, shape (N, 2 P) with P of at least 2.
        num_keys: number of keys and of values.
        absent: pairs that are not shown, shape (N, P); False for the last and another one of each
            sequence. None means that all are shown.

    Returns:
        tokens: shape (N, 2 P).
        shown: whether the pair is present and its key was shown before, shape (N, P).
    """
    number, rows = len(raw), np.arange(len(raw))
    keys = addressing.below(raw[:, ::2], num_keys)
    values = addressing.below(raw[:, 1::2], num_keys) + num_keys
    known = np.full((number, num_keys), -1)
    shown = np.empty(keys.shape, dtype=np.bool_)
    last = keys.shape[1] - 1
    for pair in range(last + 1):
        if pair == last:
            # One of the keys shown so far, uniformly: the first whose rank exceeds the draw.
            seen = known >= 0
            rank = addressing.below(raw[:, 2 * last], seen.sum(1))
            keys[:, last] = (seen.cumsum(1) > rank[:, None]).argmax(1)
        key = keys[:, pair]
        before = known[rows, key]
        values[:, pair] = np.where(before >= 0, before, values[:, pair])
        present = np.ones(number, np.bool_) if absent is None else ~absent[:, pair]
        shown[:, pair] = present & (before >= 0)
        known[rows, key] = np.where(present, values[:, pair], before)
    return np.stack([keys, values], -1).reshape(number, 2 * (last + 1)), shown
