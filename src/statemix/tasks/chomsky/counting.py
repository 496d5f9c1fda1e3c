"""Parity and cycle navigation: add up the tokens modulo a number."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import Automaton
from statemix.tasks import addressing
from statemix.tasks.chomsky.strings import StringTask
from statemix.tasks.drawn import Raw, Tokens


class _Sum(StringTask):
    """The sum of what the tokens stand for, modulo the number of classes."""

    steps: ClassVar[tuple[int, ...]]
    """What token 0, 1, ... adds."""

    modulus: ClassVar[int]

    def __init__(
        self,
        *,
        min_length: int = 2,
        length: int = 39,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(min_length=min_length, length=length, train_size=train_size, seed=seed)

    @property
    def vocab_size(self) -> int:
        return len(self.steps)

    @property
    def num_classes(self) -> int:
        return self.modulus

    def automaton(self) -> Automaton:
        """Return the automaton whose states are the sums; every prefix is a string of its own."""
        sums = np.arange(self.modulus)[:, None] + np.array(self.steps)
        return Automaton(0, sums % self.modulus, sums % self.modulus)

    def _strings(self, raw: Raw, lengths: NDArray[np.int64], length: int) -> tuple[Tokens, Tokens]:
        tokens = addressing.below(raw, self.vocab_size)
        added = np.array(self.steps)[tokens]
        added[np.arange(length) >= lengths[:, None]] = 0
        return tokens, added.sum(1) % self.modulus


class Parity(_Sum):
    """Tell whether a string of bits has an odd number of ones.

    Source: Deletang et al., "parity check".

    Args:
        min_length: bits of the shortest training string.
        length: bits of the longest training string; tests may go beyond.
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.

    Raises:
        OptionError: if an option is out of range or has the wrong type.

    Example:
        >>> tokens, targets, lengths = Parity().examples("train", 0, 1)
        >>> n = lengths[0]
        >>> bool(targets["answer"][0, n - 1] == tokens[0, :n].sum() % 2)
        True
    """

    name: ClassVar[str] = "parity"
    steps: ClassVar[tuple[int, ...]] = (0, 1)
    modulus: ClassVar[int] = 2

    @property
    def title(self) -> str:
        return "parity"

    def word(self, token: int) -> str:
        return str(token)


class CycleNavigation(_Sum):
    """Tell where a walk on a cycle of five places ends that starts at place 0.

    Tokens are 0 (stay), 1 (one place forward) and 2 (one place back).

    Source: Deletang et al., "cycle navigation".

    Args:
        min_length: moves of the shortest training walk.
        length: moves of the longest training walk; tests may go beyond.
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.

    Raises:
        OptionError: if an option is out of range or has the wrong type.

    Example:
        >>> CycleNavigation(min_length=5, length=5).examples("train", 0, 3).tokens.shape
        (3, 5)
    """

    name: ClassVar[str] = "cycle_navigation"
    steps: ClassVar[tuple[int, ...]] = (0, 1, -1)
    modulus: ClassVar[int] = 5

    @property
    def title(self) -> str:
        return "cycle navigation"

    def word(self, token: int) -> str:
        return ("0", "+1", "-1")[token]
