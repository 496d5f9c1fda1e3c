"""Common parts of the tasks whose examples have addresses, and are drawn independently."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.task import Examples

Raw = NDArray[np.uint64]
Tokens = NDArray[np.int64]


class AddressedTask(ABC):
    """A task whose example is a function of its address: (seed, split, index, length).

    Args:
        length: tokens of the longest training example.
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.

    Subclasses, which have the same options, describe only those of their own.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}

    def __init__(self, *, length: int, train_size: int | None, seed: int) -> None:
        self.length = addressing.check_length(length)
        self._check_length(self.length)
        self.seed = addressing.check_seed(seed)
        self.train_size: int | None = None
        if train_size is not None:
            self.train_size = addressing.check_integer("train_size", train_size, minimum=1)

    def examples(
        self, split: addressing.Split, start: int, stop: int, length: int | None = None
    ) -> Examples:
        """Make examples, as :meth:`Task.examples` says: a pure function of their address."""
        addressing.check_choice("split", split, addressing.SPLITS)
        start = addressing.check_integer("start", start, minimum=0)
        stop = addressing.check_integer("stop", stop, minimum=start)
        length = self.length if length is None else addressing.check_length(length)
        self._check_length(length)
        addressing.check_range(start, stop, length)
        if split == "train" and self.train_size is not None and stop > self.train_size:
            raise OptionError(f"stop must be at most train_size={self.train_size}, got {stop}")
        return self._examples(split, start, stop, length)

    @abstractmethod
    def _examples(self, split: addressing.Split, start: int, stop: int, length: int) -> Examples:
        """Make examples whose address has been checked."""

    def _check_length(self, length: int) -> None:  # noqa: B027  any length will do by default
        """Check that there are examples of this length."""


def example_text(task: Any, index: int, split: addressing.Split) -> str:
    """Return an example of a task as text: tokens over targets of its first head."""
    index = addressing.check_integer("index", index, minimum=0)
    tokens, targets, lengths = task.examples(split, index, index + 1)
    length = tokens.shape[1] if lengths is None else int(lengths[0])
    words = [task.word(token) for token in tokens[0, :length].tolist()]
    shown = next(iter(targets.values()))[0, :length].tolist()
    labels = ["." if label == IGNORED else task.label(label) for label in shown]
    width = max(map(len, (*words, *labels)))
    lines = [f"{split} example {index} of {task.title}, {length} tokens"]
    per_line = max(1, 72 // (width + 1))
    for first in range(0, length, per_line):
        here = slice(first, first + per_line)
        lines.append("  tokens   " + " ".join(word.rjust(width) for word in words[here]))
        lines.append("  targets  " + " ".join(label.rjust(width) for label in labels[here]))
        lines.append("")
    return "\n".join(lines[:-1])


class DrawnTask(AddressedTask):
    """A task with one head whose example i is a function of a stretch of random numbers.

    So any example can be made without the ones before it. A smaller training set is the beginning
    of a larger one.

    Attributes:
        vocab_size: number of tokens.
        title: short name of the subject, for figures.
    """

    vocab_size: int
    title: str
    head: ClassVar[str] = "token"

    @property
    def num_classes(self) -> int:
        """Number of classes of the head: unless a task says otherwise, they are the tokens."""
        return self.vocab_size

    @property
    @abstractmethod
    def guessing(self) -> float:
        """Token accuracy of the best guess that does not read the example."""

    @abstractmethod
    def _count(self, length: int) -> int:
        """Number of random values that an example of at most ``length`` tokens needs."""

    @abstractmethod
    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        """Make examples from random values of shape (N, count)."""

    @abstractmethod
    def word(self, token: int) -> str:
        """Return a token as text, for listings."""

    @property
    def heads(self) -> dict[str, int]:
        return {self.head: self.num_classes}

    @property
    def chance(self) -> dict[str, float]:
        return {self.head: self.guessing}

    def _examples(self, split: addressing.Split, start: int, stop: int, length: int) -> Examples:
        raw = addressing.draws(
            self.name, self._count(length), seed=self.seed, split=split, start=start, stop=stop
        )
        return self._make(raw, length, split)

    def describe(self, index: int, split: addressing.Split = "train") -> str:
        """Return one example as text: its tokens, and the target under each scored one."""
        return example_text(self, index, split)

    def label(self, target: int) -> str:
        """Return a class as text, for listings; classes are tokens unless a task says otherwise."""
        return self.word(target)


class PlacesTask(DrawnTask):
    """A drawn task that asks for the content of each of the first places after every token."""

    @property
    def num_classes(self) -> int:
        """Largest number of classes of a head."""
        return max(self.heads.values())

    @property
    def guessing(self) -> float:
        return 1 / self.num_classes

    @property
    def chance(self) -> dict[str, float]:
        return {head: 1 / classes for head, classes in self.heads.items()}

    def _labelled(self, tokens: NDArray[np.int64], contents: NDArray[np.int64]) -> Examples:
        """Return examples from tokens, shape (N, T), and contents, shape (N, T, places)."""
        targets = {
            head: np.ascontiguousarray(contents[..., place])
            for place, head in enumerate(self.heads)
        }
        return Examples(tokens, targets)
