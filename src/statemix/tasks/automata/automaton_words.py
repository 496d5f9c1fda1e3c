"""Tasks whose answers an automaton gives."""

from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED, Automaton
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.automata.automaton_text import NamedAutomaton
from statemix.tasks.automata.word_kinds import BalancedWords, Walks, balanced_words, fractions
from statemix.tasks.drawn import DrawnTask, Raw
from statemix.tasks.task import Examples

Labels = Literal["all", "last"]
Lengths = Literal["uniform", "log-uniform"]
Words = Literal["covering", "distinguishing", "uniform", "balanced", "repeating"]

# Words that the frequency of the most common class is estimated from, and their letters at most.
_COUNTED, _COUNTED_LENGTH = 1000, 100
# Numbers of a table of balanced words at most: they fill 128 MiB.
_MOST_NUMBERS = 2**24


class AutomatonTask(DrawnTask):
    """A task whose answers an automaton gives.

    Args:
        language: the automaton and its names.
        length: letters of the longest training word.
        min_length: letters of the shortest training word; None means ``length`` if every position
            is scored, and 1 otherwise.
        lengths: how lengths of training words are drawn. Half of log-uniform lengths up to 40 are
            below 7: there a network first sees what letters do, if the last one alone has a label.
        labels: "all" (every position is scored) or "last" (the last one of each word alone).
        words: the kind of half of the words; the others have letters drawn uniformly.
            "covering": words go through transitions drawn uniformly. "distinguishing": after each
            of these transitions, words tell the state from another one. "repeating": each letter
            stands a drawn number of times in a row. "uniform": letters are drawn uniformly.
            "balanced": last answers are equally frequent; here the others are covering words.
        flipped: share of the labels of training and validation that are wrong: another answer,
            drawn uniformly. Labels of tests are right.
    """

    head = "answer"

    def __init__(
        self,
        language: NamedAutomaton,
        *,
        length: int,
        min_length: int | None,
        lengths: Lengths,
        labels: Labels,
        words: Words,
        train_size: int | None,
        seed: int,
        flipped: float = 0.0,
    ) -> None:
        addressing.check_choice("lengths", lengths, get_args(Lengths))
        addressing.check_choice("labels", labels, get_args(Labels))
        addressing.check_choice("words", words, get_args(Words))
        self.lengths, self.labels, self.words = lengths, labels, words
        self.language = language
        self.flipped = check_flipped(flipped, self.num_classes)
        super().__init__(length=length, train_size=train_size, seed=seed)
        self.min_length = min_length
        if min_length is not None:
            addressing.check_min_length(min_length, self.length)
        self._walks = Walks(language.automaton)

    @property
    def vocab_size(self) -> int:  # type: ignore[override]  # fixed once the automaton is known
        return len(self.language.letters)

    @property
    def num_classes(self) -> int:
        return len(self.language.classes)

    @cached_property
    def guessing(self) -> float:
        # A thousand of the longest words would not fit into memory.
        length = min(self.length, _COUNTED_LENGTH)
        raw = addressing.draws(
            self.name, self._count(length), seed=0, split="train", start=0, stop=_COUNTED
        )
        answers = self._make(raw, length, "train").targets[self.head]
        counts = np.bincount(answers[answers != IGNORED])
        return float(counts.max() / counts.sum())

    def automaton(self) -> Automaton:
        """Return the automaton; with labels at the end alone, every prefix is a word of its own."""
        return self.language.automaton

    def word(self, token: int) -> str:
        return self.language.letters[token]

    def label(self, target: int) -> str:
        return self.language.classes[target]

    def _check_length(self, length: int) -> None:
        most = _MOST_NUMBERS // BalancedWords.numbers_per_letter(self.language.automaton)
        if self.words == "balanced" and length > most:
            raise OptionError(f"length must be at most {most} with words=balanced, got {length}")

    def _count(self, length: int) -> int:
        # Wrong labels have numbers of their own.
        return length + 3 + (length if self.flipped else 0)

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        training = split == "train" and length == self.length
        if self.labels == "all":
            low = self.min_length or length if training else length
        else:
            low = self.min_length or 1 if length <= self.length else self.length + 1
        low = min(low, length)
        if training and self.lengths == "log-uniform":
            lengths = (low * ((length + 1) / low) ** fractions(raw[:, 1])).astype(np.int64)
        else:
            lengths = low + addressing.below(raw[:, 1], length - low + 1)
        tokens = self._words(raw[:, 0] >= 2**63, raw[:, 2 : length + 3], lengths)
        targets = np.empty_like(tokens)
        state = np.full(len(raw), self.language.automaton.start)
        for t in range(length):
            targets[:, t] = self.language.automaton.outputs[state, tokens[:, t]]
            state = self.language.automaton.transitions[state, tokens[:, t]]
        if self.flipped and split != "test":
            wrong = fractions(raw[:, length + 3 :]) < self.flipped
            lower = raw[:, length + 3 :] << np.uint64(32)
            others = targets + 1 + addressing.below(lower, self.num_classes - 1)
            targets = np.where(wrong, others % self.num_classes, targets)
        places = np.arange(length)
        targets[places >= lengths[:, None]] = IGNORED
        if self.labels == "last":
            targets[places < lengths[:, None] - 1] = IGNORED
        return Examples(tokens, {self.head: targets}, lengths if low < length else None)

    def _words(
        self, chosen: NDArray[np.bool_], raw: Raw, lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Draw words from values of shape (N, length + 1); half of them are of the kind chosen."""
        none = np.zeros_like(chosen)
        covering = {"covering": chosen, "distinguishing": chosen, "balanced": ~chosen}
        repeating = chosen if self.words == "repeating" else none
        kinds = covering.get(self.words, none), repeating
        tokens = self._walks.words(raw, *kinds, distinguishing=self.words == "distinguishing")
        if self.words == "balanced":
            balanced = balanced_words(self.language.automaton, tokens.shape[1])
            tokens[chosen] = balanced.words(raw[chosen, 1:], lengths[chosen])
        return tokens


def check_flipped(flipped: object, num_classes: int) -> float:
    """Return a checked share of wrong labels."""
    share = addressing.check_share("flipped", flipped)
    if share and num_classes < 2:
        raise OptionError(f"flipped must be 0 with a single answer, got {flipped!r}")
    return share
