"""Fuzzy recall: in-context recall of keys and values that are several tokens each."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.mad import of_mad
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import DrawnTask, Raw, Tokens

# Drawing different tokens takes time in the square of their number: so much is seconds an example.
_MOST_WORK = 2**31


class FuzzyRecall(DrawnTask):
    """Answer keys of several tokens by the values of several tokens that they had earlier.

    A sequence consists of pairs of a key and a value. A key has one to ``key_size`` different
    tokens of the first half of the vocabulary, all numbers being equally likely, and a value one to
    ``value_size`` of the second half. In validation and test every key has ``key_size``. A key that
    occurs again repeats its value. The last pair repeats one of those before, each equally likely.
    Token ``vocab_size - 1`` fills the sequence from the left; the model reads all tokens but the
    last.

    In training every next token is a target, fillers included. Validation and test score the tokens
    of values whose key was shown before.

    Source: MAD, "fuzzy in-context recall" with several queries. In about 2 % of the test sequences
    of MAD's generator the last key never occurs earlier, so that they have no answer. Ours always
    have one: the last pair is chosen among those shown instead of being placed among them.

    Args:
        vocab_size: number of tokens.
        length: tokens of an example, at least ``2 * (key_size + value_size) - 1``.
        key_size: most tokens of a key.
        value_size: most tokens of a value.
    """

    name: ClassVar[str] = "fuzzy_recall"
    title = "fuzzy recall"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = of_mad(
        vocabularies=(16, 32, 64, 128), lengths=(128, 256, 512, 1024)
    )

    def __init__(
        self,
        *,
        vocab_size: int = 16,
        length: int = 128,
        key_size: int = 3,
        value_size: int = 3,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.key_size = addressing.check_integer("key_size", key_size, minimum=1, maximum=2**10)
        self.value_size = addressing.check_integer(
            "value_size", value_size, minimum=1, maximum=2**10
        )
        # The fewest tokens that leave enough different ones to keys and values, and a filler.
        least = 1 + max(2 * self.key_size, 2 * self.value_size - 1)
        self.vocab_size = addressing.check_vocabulary(vocab_size, least)
        super().__init__(length=length, train_size=train_size, seed=seed)

    @property
    def guessing(self) -> float:
        return 1 / (self._filler - self._num_keys)

    @property
    def _filler(self) -> int:
        return self.vocab_size - 1

    @property
    def _num_keys(self) -> int:
        return self._filler // 2

    @property
    def _longest(self) -> int:
        """Tokens of the longest pair."""
        return self.key_size + self.value_size

    def word(self, token: int) -> str:
        if token == self._filler:
            return "_"
        return f"k{token}" if token < self._num_keys else f"v{token - self._num_keys}"

    def _check_length(self, length: int) -> None:
        if length < 2 * self._longest - 1:
            raise OptionError(
                f"length must be at least {2 * self._longest - 1} (two of the longest pairs, of "
                f"which the model does not read the last token), got {length}"
            )
        most = _MOST_WORK // (self.key_size**2 + self.value_size**2)
        if self._most_pairs(length) > most:
            raise OptionError(
                f"length must be at most {2 * most + self._longest} with key_size={self.key_size} "
                f"and value_size={self.value_size}, got {length}"
            )

    def _most_pairs(self, length: int) -> int:
        """Return the most pairs before the last one, for which the longest pair is kept free."""
        return (length + 1 - self._longest) // 2

    def _count(self, length: int) -> int:
        # Per pair: the size and the tokens of key and value; and the pair that is repeated.
        return self._most_pairs(length) * (2 + self._longest) + 1

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        number, most = len(raw), self._most_pairs(length)
        parts = raw[:, :-1].reshape(number, most, 2 + self._longest)
        of_keys, of_values = np.split(parts, [1 + self.key_size], axis=-1)
        keys = self._motifs(of_keys, range(self._num_keys), whole=split != "train")
        values = self._motifs(of_values, range(self._num_keys, self._filler), whole=False)
        first = first_places(keys)
        repeated = first < np.arange(most)
        units = np.concatenate([keys, _taken(values, first)], axis=-1)
        stops = (units != self._filler).sum(-1).cumsum(1)
        shown = stops <= length + 1 - self._longest
        units[~shown] = self._filler
        chosen = addressing.below(raw[:, -1], shown.sum(1))
        units = np.concatenate([units, _taken(units, chosen[:, None])], axis=1)
        asked = np.zeros(units.shape, dtype=np.bool_)
        asked[:, :-1, self.key_size :] = repeated[..., None]
        asked[:, -1, self.key_size :] = True

        full, scored = joined(units, asked, length + 1, self._filler)
        tokens, targets = full[:, :-1], full[:, 1:].copy()
        if split != "train":
            targets[~scored[:, 1:]] = IGNORED
        return Examples(tokens, {self.head: targets})

    def _motifs(self, raw: Raw, tokens: range, *, whole: bool) -> Tokens:
        """Draw keys or values: (..., 1 + n) -> (..., n), with fillers after shorter ones."""
        drawn = distinct(raw[..., 1:], len(tokens)) + tokens.start
        if not whole:
            most = drawn.shape[-1]
            sizes = addressing.below(raw[..., 0], most) + 1
            drawn[np.arange(most) >= sizes[..., None]] = self._filler
        return drawn


def distinct(raw: Raw, size: int) -> Tokens:
    """Draw sequences of n <= ``size`` different numbers below it, each sequence equally likely."""
    drawn = np.empty(raw.shape, dtype=np.int64)
    # Of each number that is taken: how many smaller ones are left.
    left_below = np.empty((raw.shape[-1], *raw.shape[:-1]), dtype=np.int64)
    for place in range(raw.shape[-1]):
        # The rank among the numbers that are left; every smaller one that is taken shifts it.
        rank = addressing.below(raw[..., place], size - place)
        above = left_below[:place] > rank
        drawn[..., place] = rank + place - above.sum(0)
        left_below[:place] -= above
        left_below[place] = rank
    return drawn


def first_places(keys: Tokens) -> Tokens:
    """Return where each key of a sequence occurs first: (N, P, n) -> (N, P)."""
    number, most, _ = keys.shape
    # Equal keys get equal numbers, token by token, so that no number outgrows 64 bits.
    names = np.zeros((number, most), dtype=np.int64)
    for column in np.moveaxis(keys, -1, 0):
        pairs = names * (int(column.max(initial=0)) + 1) + column
        names = np.unique(pairs, return_inverse=True)[1].reshape(number, most)
    order = np.argsort(names, axis=1, kind="stable")
    ordered = np.take_along_axis(names, order, axis=1)
    begins = np.ones(ordered.shape, dtype=np.bool_)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    latest = np.maximum.accumulate(np.where(begins, np.arange(most), 0), axis=1)
    first = np.empty_like(order)
    np.put_along_axis(first, order, np.take_along_axis(order, latest, axis=1), axis=1)
    return first


def joined(
    units: Tokens, marks: NDArray[np.bool_], length: int, filler: int
) -> tuple[Tokens, NDArray[np.bool_]]:
    """Join the tokens of units, at the right end of rows that are filled from the left.

    Units have shape (N, P, n), and ``filler`` where one has fewer than n tokens. Returns the tokens
    of the rows, shape (N, length), and their marks, which are False at fillers.
    """
    number, width = len(units), units.shape[1] * units.shape[2]
    flat, flat_marks = units.reshape(number, width), marks.reshape(number, width)
    present = flat != filler
    place = length - present.sum(1, keepdims=True) + present.cumsum(1) - 1
    rows = np.nonzero(present)[0]
    full = np.full((number, length), filler)
    full_marks = np.zeros(full.shape, dtype=np.bool_)
    full[rows, place[present]] = flat[present]
    full_marks[rows, place[present]] = flat_marks[present]
    return full, full_marks


def _taken(units: Tokens, places: NDArray[np.int64]) -> Tokens:
    """Return the units at places: (N, P, n), (N, M) -> (N, M, n)."""
    return np.take_along_axis(units, places[..., None], axis=1)
