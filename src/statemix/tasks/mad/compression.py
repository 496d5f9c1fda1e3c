"""Compression: rebuild a sequence from the state at its last token."""

from collections.abc import Mapping
from typing import ClassVar

from statemix.tasks import addressing, checks
from statemix.tasks.drawn import DrawnTask, Raw
from statemix.tasks.mad.configurations import four
from statemix.tasks.task import Examples


class Compression(DrawnTask):
    """Compress a random sequence into one vector, from which every token is read back.

    Token ``vocab_size - 1`` ends the sequence; the others are uniform over the rest. The targets
    are the tokens themselves, the last one included. The task is meant for a model that decodes
    the output at the last position alone.

    Source: MAD, "compression".

    Args:
        vocab_size: number of tokens, at least 2.
        length: tokens of an example, the ending token included.
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.

    Raises:
        OptionError: if an option is out of range or has the wrong type.

    Example:
        >>> tokens, targets, _ = Compression(length=8).examples("train", 0, 2)
        >>> tokens[:, -1].tolist(), bool((tokens == targets["token"]).all())
        ([15, 15], True)
    """

    name: ClassVar[str] = "compression"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = four(length=64)

    def __init__(
        self,
        *,
        vocab_size: int = 16,
        length: int = 64,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self._vocab_size = checks.integer("vocab_size", vocab_size, minimum=2, maximum=2**20)
        super().__init__(length=length, train_size=train_size, seed=seed)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def num_classes(self) -> int:
        return self._vocab_size

    @property
    def guessing(self) -> float:
        return (1 + (self.length - 1) / (self._vocab_size - 1)) / self.length

    @property
    def title(self) -> str:
        return "compression"

    def word(self, token: int) -> str:
        return "end" if token == self._vocab_size - 1 else str(token)

    def _count(self, length: int) -> int:
        return length

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        del split
        tokens = addressing.below(raw, self._vocab_size - 1)
        tokens[:, length - 1 :] = self._vocab_size - 1
        return Examples(tokens, {self.head: tokens.copy()})
