"""Trials of many words: the kinds of words, their batches and budget, and the shortening of one."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from statemix.proofs.candidate_words import (
    CandidateWords,
    Word,
    compress,
    count_removals,
    removals,
)
from statemix.proofs.driven_network import DrivenNetwork

# Rows of a batch, and those whose wrong answers are confirmed; words of a kind at each length.
_ROWS, _MOST_CONFIRMED, _MOST_WORDS = 2**12, 8, 64
# Letters of the first loops that are pumped; letters for which there is always time.
_SHORTEST, _LEAST = 32, 10_000


class Accuracy(NamedTuple):
    """How many answers are right at the letters ``first`` ... ``last`` of words, counted from 1."""

    first: int
    last: int
    right: int
    scored: int


def drive_alone(
    network: DrivenNetwork, candidates: CandidateWords, word: Word
) -> tuple[int | None, NDArray[np.int64], NDArray[np.float32] | None]:
    """Return the place of the first wrong answer, or None; all answers; and all margins."""
    expected = candidates.expected(word[None])
    parts = list(network.read(word[None], expected))
    right = np.concatenate([part.right[0] for part in parts])
    answers = np.concatenate([part.answers[0] for part in parts])
    wrong = np.flatnonzero(~right & (expected[0] >= 0))
    margins = [part.margins[0] for part in parts if part.margins is not None]
    return (
        int(wrong[0]) if len(wrong) else None,
        answers,
        np.concatenate(margins) if margins else None,
    )


class _SpentError(Exception):
    """The budget is spent."""


class _Steep(NamedTuple):
    """The share of the margin that is left in the second half of a word; the word; its margins."""

    left: float
    word: Word
    margins: NDArray[np.float32]


@dataclass
class WordTrials:
    """Words driven through a network, within a budget of letters and seconds."""

    network: DrivenNetwork
    candidates: CandidateWords
    budget: int
    seconds: float | None
    on_progress: Callable[[int], None] | None = None
    letters: int = field(default=0, init=False)
    unstable: int = field(default=0, init=False)
    # Right and scored answers by the number of binary digits of the position.
    _counts: NDArray[np.int64] = field(init=False)
    _turns: Iterator[tuple[int, Word, Word]] = field(init=False)
    _steep: list[_Steep] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._counts = np.zeros((64, 2), np.int64)
        self._turns = cycle(self.candidates.loops)
        self._began = time.monotonic()
        self._end = np.inf if self.seconds is None else self._began + self.seconds

    def accuracy(self) -> Iterator[Accuracy]:
        """Yield the accuracy by position."""
        for digits, (right, scored) in enumerate(self._counts.tolist()):
            if scored:
                yield Accuracy(2**digits // 2, 2**digits - 1, right, scored)

    def search(self, longest: int) -> tuple[str, Word] | None:
        """Return a word that fails, and the kind of words that it was found among."""
        try:
            for kind, words in self._kinds(longest):
                found = self._first_wrong(word[:longest] for word in words)
                if found is not None:
                    return kind, found
        except _SpentError:
            pass
        return None

    def _left(self) -> int:
        """Return the letters that the budget allows, and the time at the speed so far."""
        left = self.budget - self.letters
        if self.seconds is None:
            return left
        now = time.monotonic()
        # The clock may be coarse, and the first letters may be slow.
        speed = self.letters / max(now - self._began, 1e-9)
        return int(min(left, max(speed * (self._end - now), _LEAST)))

    def _kinds(self, longest: int) -> Iterator[tuple[str, Iterable[Word]]]:
        """Yield kinds of words, the cheapest first, until the budget is spent."""
        for words in self.candidates.short():
            is_dear = self.letters + words.size > (self.letters + self._left()) / 10
            if words.shape[1] > 1 and (words.shape[1] > longest or is_dear):
                break
            yield "short words", words
        tenth = (self.letters + self._left()) // 10
        yield "covering words", self._within(self.candidates.covering(), tenth)
        lengths = [*(2**k for k in range(64) if _SHORTEST <= 2**k < longest), longest]
        while self.candidates.loops or self.candidates.is_endless:
            for number, length in enumerate(lengths):
                left = self._left()
                if length > left:
                    return
                count = int(left / (len(lengths) - number) / 5 / length)
                yield from self._of_length(length, min(max(count, 1), _MOST_WORDS))

    def _of_length(self, length: int, count: int) -> Iterator[tuple[str, Iterable[Word]]]:
        candidates, steep, self._steep = self.candidates, self._steep, []
        # If there is no time for all loops, other ones are next.
        loops = list(islice(self._turns, min(2 * count, len(candidates.loops))))
        yield "loops", [candidates.pumped(candidates.access[q], v, length) for q, v, _ in loops]
        pairs = [loop for loop in loops if not np.array_equal(loop[1], loop[2])][:count]
        yield "alternating loops", [candidates.alternated(*pair, length) for pair in pairs]
        if candidates.is_endless:
            yield "random words", candidates.random(count, length)
        steep = steep[:count]
        yield "guided words", [candidates.steeper(w, margins, length) for _, w, margins in steep]

    def _within(self, words: Iterator[Word], letters: int) -> Iterator[Word]:
        for word in words:
            letters -= len(word)
            if letters < 0:
                return
            yield word

    def shorten(self, word: Word) -> tuple[Word, bool]:
        """Remove pieces of a wrong word while it stays wrong; return it, and whether it is minimal.

        Pieces of many sizes are removed first: powers of 2, with and without the length of the
        word's loop as a factor. Then all pieces are, if the budget allows.
        """
        try:
            loop = max(1, len(compress(word).loop))
            powers = [2**k for k in reversed(range(len(word).bit_length()))]
            for size in sorted({*powers, *(loop * power for power in powers)}, reverse=True):
                while size < len(word) and self._affords(word, [size]):
                    shorter = self._first_wrong(self._without(word, [size]))
                    if shorter is None:
                        break
                    word = shorter
            while self._affords(word, range(1, len(word))):
                shorter = self._first_wrong(self._without(word, range(len(word) - 1, 0, -1)))
                if shorter is None:
                    return word, True
                word = shorter
        except _SpentError:
            pass
        return word, False

    def _without(self, word: Word, sizes: Iterable[int]) -> Iterator[Word]:
        """Yield the words that pieces of some sizes leave, up to a letter that cannot follow."""
        for size in sizes:
            for shorter in removals(word, size):
                if len(allowed := self.candidates.allowed(shorter)):
                    yield allowed

    def _affords(self, word: Word, sizes: Iterable[int]) -> bool:
        """Return whether the budget allows to drive all words that pieces of some sizes leave."""
        left = self.budget - self.letters
        for size in sizes:
            left -= count_removals(word, size) * (len(word) - size)
            if left < 0:
                return False
        return True

    def _first_wrong(self, words: Iterable[Word]) -> Word | None:
        """Return the shortest beginning of a word that fails, also alone; None if there is none."""
        for group in _groups(words, self.network):
            lengths = np.array([len(word) for word in group])
            fits = int((lengths.cumsum() <= self.budget - self.letters).sum())
            if not fits:
                raise _SpentError
            group, lengths = group[:fits], lengths[:fits]
            padded = np.full((len(group), lengths.max()), self.candidates.automaton.num_tokens)
            for row, word in zip(padded, group, strict=True):
                row[: len(word)] = word
            expected = self.candidates.expected(padded)
            scored, read = expected >= 0, padded % self.candidates.automaton.num_tokens
            margins = np.full(padded.shape, np.nan, np.float32)
            for part in self.network.read(read, expected):
                columns = slice(part.start, part.start + part.right.shape[1])
                self._count(part.start, part.right, scored[:, columns], lengths)
                if part.margins is not None:
                    margins[:, columns] = np.where(scored[:, columns], part.margins, np.nan)
                wrong = scored[:, columns] & ~part.right
                rows = np.flatnonzero(wrong.any(1))
                ends = part.start + wrong[rows].argmax(1) + 1
                for place in islice(np.argsort(ends, kind="stable"), _MOST_CONFIRMED):
                    word = padded[rows[place], : ends[place]]
                    first, *_ = drive_alone(self.network, self.candidates, word)
                    if first is not None:
                        return word[: first + 1]
                    self.unstable += 1
                if self.letters >= self.budget or time.monotonic() > self._end:
                    raise _SpentError
            if padded.shape[1] >= _SHORTEST:
                self._remember(group, margins)
        return None

    def _count(
        self,
        start: int,
        right: NDArray[np.bool_],
        scored: NDArray[np.bool_],
        lengths: NDArray[np.int64],
    ) -> None:
        """Count letters that were read, and right answers by position."""
        count = right.shape[1]
        self.letters += int(np.clip(lengths - start, 0, count).sum())
        digits = np.frexp(np.arange(start + 1, start + count + 1))[1]
        for column, where in enumerate((right & scored, scored)):
            np.add.at(self._counts[:, column], digits, where.sum(0))
        if self.on_progress is not None:
            self.on_progress(self.letters)

    def _remember(self, words: Sequence[Word], margins: NDArray[np.float32]) -> None:
        """Keep the words whose margins fell fastest."""
        for word, row in zip(words, margins, strict=True):
            first, second = np.array_split(row[np.isfinite(row)], 2)
            if len(second) and first.mean() > 0:
                left = float(second.mean() / first.mean())
                self._steep.append(_Steep(left, word, row[: len(word)].copy()))
        self._steep = sorted(self._steep, key=lambda one: one.left)[:_MOST_WORDS]


def _groups(words: Iterable[Word], network: DrivenNetwork) -> Iterator[list[Word]]:
    """Yield words in groups that fit into memory together, padded or of one length."""
    waiting: dict[int, list[Word]] = {}
    for word in words:
        # Padding makes a word at most twice as long.
        width = 2 ** len(word).bit_length() if network.has_state else len(word)
        group = waiting.setdefault(width, [])
        group.append(word)
        if (len(group) + 1) * width > network.together or len(group) == _ROWS:
            yield waiting.pop(width)
    yield from waiting.values()
