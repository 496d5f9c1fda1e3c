"""Tasks of the Chomsky hierarchy (Deletang et al., "Neural Networks and the Chomsky Hierarchy").

Lengths and supervision follow their adaptation to recurrent language models in "xLSTM: Extended
Long Short-Term Memory" (Beck et al.): strings of random length, one answer, read at the last token.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED, NEVER, Automaton
from statemix.tasks import addressing
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import DrawnTask, Raw, Tokens


class StringTask(DrawnTask):
    """A task of strings with one answer, which the model gives at the last token.

    Lengths are uniform. They begin at ``min_length`` up to the training length. Beyond it they
    begin one after it, as in tests of generalisation: with ``length=39``, test examples of length
    255 have 40 ... 255 tokens.
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


MODULUS = 5
# A batch of a hundred strings of this length takes seconds.
_LONGEST = 2**16
# Tokens: digits below MODULUS, then these.
PLUS, MINUS, TIMES, EQUALS, OPEN, CLOSE = range(MODULUS, MODULUS + 6)
_WORDS = [*map(str, range(MODULUS)), "+", "-", "*", "=", "(", ")"]
_OPERATIONS: dict[int, Callable[[int, int], int]] = {
    PLUS: lambda a, b: a + b,
    MINUS: lambda a, b: a - b,
    TIMES: lambda a, b: a * b,
}


class ModularArithmetic(StringTask):
    """Compute an expression of digits, +, - and * modulo 5; products come before sums.

    A string is an expression and "=". Digits and operators are uniform.

    Source: Deletang et al., "modular arithmetic (simple)", with products.

    Args:
        min_length: tokens of the shortest training string.
        length: tokens of the longest training string, at most 65,536; tests may go beyond the
            training length. Strings have an even number of tokens: an odd length counts as one
            less.
    """

    name: ClassVar[str] = "modular_arithmetic"
    vocab_size = EQUALS + 1
    num_classes = MODULUS
    title = "modular arithmetic"
    _shortest: ClassVar[int] = 2
    _longest: ClassVar[int] = _LONGEST

    def word(self, token: int) -> str:
        return _WORDS[token]

    def automaton(self) -> Automaton:
        """Return the automaton whose states are a sum, a product under way and what may follow."""
        return _arithmetic()

    def _strings(self, raw: Raw, lengths: NDArray[np.int64], length: int) -> tuple[Tokens, Tokens]:
        lengths -= lengths % 2
        tokens = np.empty(raw.shape, np.int64)
        tokens[:, ::2] = addressing.below(raw[:, ::2], MODULUS)
        tokens[:, 1::2] = addressing.below(raw[:, 1::2], 3) + PLUS
        rows = np.arange(len(raw))
        tokens[rows, lengths - 1] = EQUALS
        automaton = self.automaton()
        state = np.full(len(raw), automaton.start)
        for place in range(length - 1):
            after = automaton.transitions[state, tokens[:, place]]
            state = np.where(place < lengths - 1, after, state)
        return tokens, automaton.outputs[state, EQUALS]


@cache
def _arithmetic() -> Automaton:
    # After a digit: (total, product). Before one: the same and "*", or a total and a sign.
    start, ended = ("", 0, 0), ("=", 0, 0)
    states = [start, ended]
    after: list[dict[int, tuple[str, int, int]]] = []
    answers: list[int] = []
    for kind, total, product in states:
        value = (total + product) % MODULUS
        moves: dict[int, tuple[str, int, int]] = {}
        if kind == "digit":
            moves = {TIMES: ("*", total, product), EQUALS: ended}
            moves |= {PLUS: ("+", value, 0), MINUS: ("-", value, 0)}
        elif kind != "=":
            factor = {"": 1, "+": 1, "-": -1, "*": product}[kind]
            for digit in range(MODULUS):
                moves[digit] = ("digit", total, factor * digit % MODULUS)
        after.append(moves)
        answers.append(value)
        states += [state for state in dict.fromkeys(moves.values()) if state not in states]
    transitions = np.full((len(states), EQUALS + 1), NEVER)
    for place, moves in enumerate(after):
        for token, state in moves.items():
            transitions[place, token] = states.index(state)
    outputs = np.full_like(transitions, IGNORED)
    outputs[:, EQUALS] = np.where(transitions[:, EQUALS] == NEVER, IGNORED, answers)
    return Automaton(0, transitions, outputs)


class BracketArithmetic(StringTask):
    """Compute an expression with brackets modulo 5.

    A string is an expression and "=". An expression of one to four tokens is a digit, its negative,
    or one of them in brackets; a longer one is two expressions in brackets with +, - or * between
    them. The length of the left one and the operator are uniform.

    Source: Deletang et al., "modular arithmetic" with brackets and products.

    Args:
        min_length: tokens of the shortest training string.
        length: tokens of the longest training string, at most 65,536; tests may go beyond the
            training length.
    """

    name: ClassVar[str] = "bracket_arithmetic"
    vocab_size = CLOSE + 1
    num_classes = MODULUS
    title = "arithmetic with brackets"
    _shortest: ClassVar[int] = 2
    _longest: ClassVar[int] = _LONGEST

    def __init__(
        self, *, min_length: int = 3, length: int = 38, train_size: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(min_length=min_length, length=length, train_size=train_size, seed=seed)

    def word(self, token: int) -> str:
        return _WORDS[token]

    def _strings(self, raw: Raw, lengths: NDArray[np.int64], length: int) -> tuple[Tokens, Tokens]:
        tokens = np.zeros((len(raw), length), np.int64)
        answers = np.empty(len(raw), np.int64)
        for row, (values, tokens_of_row) in enumerate(zip(raw.tolist(), tokens, strict=True)):
            expression, answers[row] = _expression(int(lengths[row]) - 1, iter(values))
            tokens_of_row[: lengths[row]] = [*expression, EQUALS]
        return tokens, answers


def _expression(length: int, draws: Iterator[int]) -> tuple[list[int], int]:
    """Draw an expression of ``length`` tokens; return it and its value."""

    def below(size: int) -> int:
        return next(draws) * size >> 64

    tokens: list[int] = []
    values: list[int] = []
    # Expressions to write, by length; tokens to write, as -token; operators to apply, as strings.
    todo: list[int | str] = [length]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            right, left = values.pop(), values.pop()
            values.append(_OPERATIONS[_WORDS.index(item)](left, right) % MODULUS)
        elif item < 0:
            tokens.append(-item)
        elif item > 4:
            left = 1 + below(item - 4)
            operator = PLUS + below(3)
            tokens.append(OPEN)
            todo += [-CLOSE, _WORDS[operator], item - 3 - left, -operator, left]
        else:
            digit = below(MODULUS)
            bare = [MINUS, digit] if item % 2 == 0 else [digit]
            tokens += [OPEN, *bare, CLOSE] if item > 2 else bare
            values.append((-digit if item % 2 == 0 else digit) % MODULUS)
    (value,) = values
    return tokens, value
