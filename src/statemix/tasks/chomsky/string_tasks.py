"""Strings with one answer at the end: the common part, parity and cycle navigation."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED, Automaton
from statemix.tasks import addressing
from statemix.tasks.drawn import DrawnTask, Raw, Tokens
from statemix.tasks.task import Examples


class StringTask(DrawnTask):
    """A task of strings with one answer, which the model gives at the last token.

    Lengths are uniform. They begin at ``min_length`` up to the training length. Beyond it they
    begin one after it, as in tests of generalisation: with ``length=39``, test examples of length
    255 have 40 ... 255 tokens.

    Args:
        min_length: tokens of the shortest training string.
        length: tokens of the longest training string.
    """

    head: ClassVar[str] = "answer"

    def __init__(
        self, *, min_length: int = 2, length: int = 39, train_size: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(length=length, train_size=train_size, seed=seed)
        self.min_length = addressing.check_min_length(min_length, self.length, self._shortest)

    _shortest: ClassVar[int] = 1
    """Tokens of the shortest string that there is."""

    _longest: ClassVar[int] = addressing.MAX_LENGTH
    """Tokens of the longest string that is made in a reasonable time."""

    def _check_length(self, length: int) -> None:
        addressing.check_integer("length", length, minimum=self._shortest, maximum=self._longest)

    @property
    def guessing(self) -> float:
        return 1 / self.num_classes

    def label(self, target: int) -> str:
        return str(target)

    @abstractmethod
    def _strings(self, raw: Raw, lengths: NDArray[np.int64], length: int) -> tuple[Tokens, Tokens]:
        """Return tokens (N, length) and answers (N,) of strings of at most the given lengths.

        Strings may be shorter than asked: ``lengths`` is changed in place.
        """

    def _count(self, length: int) -> int:
        return length + 1

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:  # noqa: ARG002
        low = self.min_length if length <= self.length else self.length + 1
        low = min(low, length)
        lengths = low + addressing.below(raw[:, -1], length - low + 1)
        tokens, answers = self._strings(raw[:, :-1], lengths, length)
        targets = np.full_like(tokens, IGNORED)
        targets[np.arange(len(raw)), lengths - 1] = answers
        return Examples(tokens, {self.head: targets}, lengths)


class _Sum(StringTask):
    """The sum of what the tokens stand for, modulo the number of classes."""

    steps: ClassVar[tuple[int, ...]]
    """What token 0, 1, ... adds."""

    def automaton(self) -> Automaton:
        """Return the automaton whose states are the sums; every prefix is a string of its own."""
        sums = np.arange(self.num_classes)[:, None] + np.array(self.steps)
        return Automaton(0, sums % self.num_classes, sums % self.num_classes)

    def _strings(self, raw: Raw, lengths: NDArray[np.int64], length: int) -> tuple[Tokens, Tokens]:
        tokens = addressing.below(raw, self.vocab_size)
        added = np.array(self.steps)[tokens]
        added[np.arange(length) >= lengths[:, None]] = 0
        return tokens, added.sum(1) % self.num_classes


class Parity(_Sum):
    """Tell whether a string of bits has an odd number of ones.

    Source: Deletang et al., "parity check".

    Args:
        min_length: bits of the shortest training string.
        length: bits of the longest training string; tests may go beyond.

    Example:
        >>> tokens, targets, lengths = Parity().examples("train", 0, 1)
        >>> n = lengths[0]
        >>> bool(targets["answer"][0, n - 1] == tokens[0, :n].sum() % 2)
        True
    """

    name: ClassVar[str] = "parity"
    title = "parity"
    steps: ClassVar[tuple[int, ...]] = (0, 1)
    vocab_size = num_classes = 2

    def word(self, token: int) -> str:
        return str(token)


class CycleNavigation(_Sum):
    """Tell where a walk on a cycle of five places ends that starts at place 0.

    Tokens are 0 (stay), 1 (one place forward) and 2 (one place back).

    Source: Deletang et al., "cycle navigation".

    Args:
        min_length: moves of the shortest training walk.
        length: moves of the longest training walk; tests may go beyond.
    """

    name: ClassVar[str] = "cycle_navigation"
    title = "cycle navigation"
    steps: ClassVar[tuple[int, ...]] = (0, 1, -1)
    vocab_size, num_classes = 3, 5

    def word(self, token: int) -> str:
        return ("0", "+1", "-1")[token]
