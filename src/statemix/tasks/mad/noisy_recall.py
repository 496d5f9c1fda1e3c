"""Noisy recall: in-context recall with pairs of noise between those of keys and values."""

from typing import ClassVar

import numpy as np

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing, checks
from statemix.tasks.drawn import DrawnTask, Raw
from statemix.tasks.mad.recall import pairs
from statemix.tasks.task import Examples


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
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.

    Raises:
        OptionError: if an option is out of range or has the wrong type.

    Example:
        >>> NoisyRecall(num_pairs=64).examples("test", 0, 3).tokens.shape
        (3, 127)
    """

    name: ClassVar[str] = "noisy_recall"

    def __init__(
        self,
        *,
        vocab_size: int = 32,
        num_pairs: int = 64,
        noise: float = 0.2,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self._vocab_size = checks.integer("vocab_size", vocab_size, minimum=4, maximum=2**20)
        if self._vocab_size % 4:
            raise OptionError(f"vocab_size must be a multiple of 4, got {vocab_size}")
        if isinstance(noise, bool) or not isinstance(noise, int | float):
            raise OptionError(f"noise must be a number, got {noise!r}")
        if not 0 <= noise < 1:
            raise OptionError(f"noise must be at least 0 and below 1, got {noise}")
        self.noise = float(noise)
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
        return 4 / self._vocab_size

    @property
    def title(self) -> str:
        return "noisy recall"

    def word(self, token: int) -> str:
        quarter = self._vocab_size // 4
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
        quarter = self._vocab_size // 4
        drawn = parts[..., :2].reshape(number, 2 * count)
        full, shown = pairs(drawn, quarter, quarter, absent=noisy)
        noise = addressing.below(parts[..., 3:], 2 * quarter) + 2 * quarter
        full = np.where(noisy.repeat(2, axis=1), noise.reshape(number, 2 * count), full)
        tokens, targets = full[:, :-1], full[:, 1:].copy()
        if split != "train":
            targets[:, 1::2] = IGNORED
            targets[:, ::2][~shown] = IGNORED
        return Examples(tokens, {self.head: targets})
