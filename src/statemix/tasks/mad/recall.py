"""In-context recall, without and with noise: repeat the value that a key had earlier."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.mad import dubinin_presets
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import DrawnTask, Raw, Tokens


class Recall(DrawnTask):
    """Answer keys by the values that they had earlier in the sequence.

    A sequence consists of pairs of a key (the first half of the tokens) and a value. A key that
    occurs for the first time draws a value uniformly, so that keys may share one; later it repeats
    it. The last key is one of those shown before. The model reads all tokens but the last.

    In training every next token is a target, new keys and values included. Validation and test
    score only the values of keys shown before. With ``multi_query=False`` they score only the last
    value, and token ``vocab_size - 1`` announces the last key.

    Source: MAD, "in-context recall". Dubinin et al. call it "associative recall"; its benchmarks
    have several queries.

    Args:
        vocab_size: number of tokens, an even number of at least 2; any of at least 3 with a single
            query.
        num_pairs: pairs of a sequence, at least 2; its length is ``2 * num_pairs - 1``, and one
            more with a single query.
        multi_query: score every repeated key, not only the last one.
    """

    name: ClassVar[str] = "recall"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = dubinin_presets(num_pairs=32)

    def __init__(
        self,
        *,
        vocab_size: int = 16,
        num_pairs: int = 32,
        multi_query: bool = True,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(multi_query, bool):
            raise OptionError(f"multi_query must be True or False, got {multi_query!r}")
        self.multi_query = multi_query
        self.title = "recall" if multi_query else "recall of a single query"
        self.vocab_size = addressing.check_vocabulary(vocab_size, 2)
        if multi_query and self.vocab_size % 2:
            raise OptionError(f"vocab_size must be even, got {vocab_size}")
        if self._num_keys < 1:
            least = "at least 3 with multi_query=False"
            raise OptionError(f"vocab_size must be {least}, got {vocab_size}")
        self.num_pairs = addressing.check_integer("num_pairs", num_pairs, minimum=2, maximum=2**22)
        length = 2 * self.num_pairs - multi_query
        super().__init__(length=length, train_size=train_size, seed=seed)

    @property
    def guessing(self) -> float:
        return 1 / self._num_values

    @property
    def _num_keys(self) -> int:
        return (self.vocab_size - (not self.multi_query)) // 2

    @property
    def _num_values(self) -> int:
        return self.vocab_size - (not self.multi_query) - self._num_keys

    def word(self, token: int) -> str:
        if token == self._num_keys + self._num_values:
            return "?"
        return f"k{token}" if token < self._num_keys else f"v{token - self._num_keys}"

    def _check_length(self, length: int) -> None:
        kind, least = ("odd", 3) if self.multi_query else ("even", 4)
        if length < least or length % 2 != least % 2:
            raise OptionError(f"length must be {kind} and at least {least}, got {length}")

    def _count(self, length: int) -> int:
        return length + self.multi_query

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        full, shown = pairs(raw, self._num_keys, self._num_values)
        if not self.multi_query:
            full = np.insert(full, length - 2, self.vocab_size - 1, axis=1)
        tokens, targets = full[:, :-1], full[:, 1:].copy()
        if split != "train" and self.multi_query:
            targets[:, 1::2] = IGNORED
            targets[:, ::2][~shown] = IGNORED
        elif split != "train":
            targets[:, :-1] = IGNORED
        return Examples(tokens, {self.head: targets})


def pairs(
    raw: Raw, num_keys: int, num_values: int, *, absent: NDArray[np.bool_] | None = None
) -> tuple[Tokens, NDArray[np.bool_]]:
    """Draw sequences of key-value pairs; keys are 0 ... num_keys - 1, values the next tokens.

    Args:
        raw: random values, two per pair, shape (N, 2 P) with P of at least 2.
        num_keys: number of keys.
        num_values: number of values.
        absent: pairs that are not shown, shape (N, P); False for the last and another one of each
            sequence. None means that all are shown.

    Returns:
        tokens: shape (N, 2 P).
        shown: whether the pair is present and its key was shown before, shape (N, P).
    """
    number, rows = len(raw), np.arange(len(raw))
    keys = addressing.below(raw[:, ::2], num_keys)
    values = addressing.below(raw[:, 1::2], num_values) + num_keys
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


class NoisyRecall(DrawnTask):
    """Answer keys by their earlier values, past tokens of noise.

    As ``recall``, but each pair except the last is replaced by two tokens of noise with probability
    ``noise``; at least one is not. Tokens are keys (a quarter of the vocabulary), values (a
    quarter) and noise (half). MAD's generator protects one pair, which may be the last, so that a
    few of its sequences have no answer. Ours always have one.

    Source: MAD, "noisy in-context recall".

    Args:
        vocab_size: number of tokens, a multiple of 4.
        num_pairs: pairs of a sequence, at least 2; its length is ``2 * num_pairs - 1``.
        noise: probability that a pair is noise, 0 <= noise < 1.
    """

    name: ClassVar[str] = "noisy_recall"
    title = "noisy recall"

    def __init__(
        self,
        *,
        vocab_size: int = 32,
        num_pairs: int = 64,
        noise: float = 0.2,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.vocab_size = addressing.check_vocabulary(vocab_size, 4)
        if self.vocab_size % 4:
            raise OptionError(f"vocab_size must be a multiple of 4, got {vocab_size}")
        self.noise = addressing.check_share("noise", noise)
        self.num_pairs = addressing.check_integer("num_pairs", num_pairs, minimum=2, maximum=2**22)
        super().__init__(length=2 * self.num_pairs - 1, train_size=train_size, seed=seed)

    @property
    def guessing(self) -> float:
        return 4 / self.vocab_size

    def word(self, token: int) -> str:
        quarter = self.vocab_size // 4
        if token >= 2 * quarter:
            return "~"
        return f"k{token}" if token < quarter else f"v{token - quarter}"

    def _check_length(self, length: int) -> None:
        if length < 3 or length % 2 == 0:
            raise OptionError(f"length must be odd and at least 3, got {length}")

    def _count(self, length: int) -> int:
        # Per pair: key, value, whether it is noise, and two tokens of noise; and the kept pair.
        return 5 * (length + 1) // 2 + 1

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        number, count = len(raw), (length + 1) // 2
        parts = raw[:, :-1].reshape(number, count, 5)
        # In units of 2^-53, which hold the probability exactly enough.
        noisy = (parts[..., 2] >> np.uint64(11)) < np.uint64(int(self.noise * 2**53))
        noisy[:, -1] = False
        noisy[np.arange(number), addressing.below(raw[:, -1], count - 1)] = False
        quarter = self.vocab_size // 4
        drawn = parts[..., :2].reshape(number, 2 * count)
        full, shown = pairs(drawn, quarter, quarter, absent=noisy)
        noise = addressing.below(parts[..., 3:], 2 * quarter) + 2 * quarter
        full = np.where(noisy.repeat(2, axis=1), noise.reshape(number, 2 * count), full)
        tokens, targets = full[:, :-1], full[:, 1:].copy()
        if split != "train":
            targets[:, 1::2] = IGNORED
            targets[:, ::2][~shown] = IGNORED
        return Examples(tokens, {self.head: targets})
