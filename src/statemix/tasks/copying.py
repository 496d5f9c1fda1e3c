"""Copying: repeat a string of random letters."""

import string
from typing import ClassVar

import numpy as np

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import DrawnTask, Raw

_NUM_LETTERS = len(string.ascii_lowercase)
# Tokens: letters below _NUM_LETTERS, then these.
BEGIN, COPY, END = range(_NUM_LETTERS, _NUM_LETTERS + 3)
_WORDS: list[str] = [*string.ascii_lowercase, "^", "|", "$"]


class Copying(DrawnTask):
    """Repeat a string of random letters after a token that asks for the copy.

    An example of n letters has 2 n + 2 tokens: "^", the string, "|" and the string again. Targets
    are the next tokens from "|" on: the string and then "$", which ends it. So while the model
    copies, it reads the letters that it should have given. Letters are uniform.

    Training strings have random lengths, uniform over the range that ``min_length`` and ``length``
    give; by default they have 5 to 20 letters. Nothing else is mixed: validation examples, test
    examples and examples of another length than ``length`` have exactly the length asked for.

    Source: Jelassi et al., "Repeat After Me: Transformers are Better than State Space Models at
    Copying". The default lengths are those of the released code of Movahedi et al., "Fixed-Point
    RNNs". That code packs several examples into a training sequence and does not score "$" in
    tests; here every example stands alone, and "$" is scored.

    Args:
        min_length: tokens of the shortest training example, an even number of at least 4.
        length: tokens of the longest training example, an even number of at least 4.
    """

    name: ClassVar[str] = "copying"
    vocab_size = len(_WORDS)
    title = "copying"

    def __init__(
        self,
        *,
        min_length: int = 12,
        length: int = 42,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(length=length, train_size=train_size, seed=seed)
        self.min_length = addressing.check_min_length(min_length, self.length)
        _check("min_length", self.min_length)

    @property
    def guessing(self) -> float:
        # Tests at the training length are of one length, so "$" needs no guess.
        letters = _num_letters(self.length)
        return (letters / _NUM_LETTERS + 1) / (letters + 1)

    def word(self, token: int) -> str:
        return _WORDS[token]

    def _check_length(self, length: int) -> None:
        _check("length", length)

    def _count(self, length: int) -> int:
        return _num_letters(length) + 1

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        letters = addressing.below(raw[:, :-1], _NUM_LETTERS)
        most = letters.shape[1]
        mixed = split == "train" and length == self.length
        least = _num_letters(self.min_length) if mixed else most
        number = least + addressing.below(raw[:, -1:], most - least + 1)  # (N, 1)
        place = np.arange(length)
        copying = place > number
        source = place - np.where(copying, number + 2, 1)
        tokens = np.take_along_axis(letters, source.clip(0, most - 1), axis=1)
        tokens[:, 0] = BEGIN
        np.put_along_axis(tokens, number + 1, COPY, axis=1)
        ended = place > 2 * number + 1
        tokens[ended] = END
        targets = np.full_like(tokens, END)
        targets[:, :-1] = tokens[:, 1:]
        targets[~copying | ended] = IGNORED
        return Examples(tokens, {self.head: targets}, 2 * number[:, 0] + 2 if mixed else None)


def _num_letters(length: int) -> int:
    """Return the letters of an example of ``length`` tokens."""
    return length // 2 - 1


def _check(name: str, length: int) -> None:
    if length < 4 or length % 2:
        raise OptionError(
            f"{name} must be even and at least 4 (2 n + 2 tokens for n letters), got {length}"
        )
