"""Words for an automaton, drawn so that every state and transition is seen."""

from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED, NEVER, Automaton
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.automata.automaton_text import NamedAutomaton
from statemix.tasks.drawn import DrawnTask, Raw
from statemix.tasks.task import Examples

Labels = Literal["all", "last"]
Words = Literal["covering", "uniform"]

# Words that the frequency of the most common class is estimated from, and their letters at most.
_COUNTED, _COUNTED_LENGTH = 1000, 100


class Walks:
    """The words of an automaton.

    In a *uniform* word, each letter is drawn uniformly among those that can follow. In a *covering*
    word, a transition that can still be reached is drawn uniformly, the word goes to it on a
    shortest path and takes it; then the next transition is drawn.

    Args:
        automaton: the automaton.

    Raises:
        OptionError: if no letter can follow in a state that words reach.
    """

    def __init__(self, automaton: Automaton) -> None:
        self._after = after = automaton.transitions
        can_follow = after != NEVER
        # Steps from each state to each other one; the number of states where there is no path.
        far = automaton.num_states
        steps = np.full((far, far), far, dtype=np.int64)
        np.fill_diagonal(steps, 0)
        for _ in range(far):
            nearer = steps
            for letter in range(automaton.num_tokens):
                one_more = np.where(can_follow[:, letter, None], steps[after[:, letter]] + 1, far)
                nearer = np.minimum(nearer, one_more)
            if (nearer == steps).all():
                break
            steps = nearer
        reached = steps[automaton.start] < far
        if not can_follow[reached].any(axis=1).all():
            raise OptionError("rules must have a letter that can follow in every state, got none")
        self._num_letters = can_follow.sum(1)
        # The letters that can follow come first.
        self._letters = np.argsort(~can_follow, axis=1, kind="stable")
        # First letter of a shortest path to each state.
        self._toward = np.zeros((far, far), dtype=np.int64)
        for letter in reversed(range(automaton.num_tokens)):
            leads = can_follow[:, letter, None] & (steps[after[:, letter]] + 1 == steps)
            self._toward[leads] = letter
        self._sources, self._taken = np.nonzero(can_follow)
        open_to = steps[:, self._sources] < far
        self._num_targets = open_to.sum(1)
        self._targets = np.argsort(~open_to, axis=1, kind="stable")
        self._start = automaton.start

    def words(self, raw: Raw, covering: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Draw words.

        Args:
            raw: uniform 64-bit values, shape (N, length + 1).
            covering: which words are covering, shape (N,).

        Returns:
            tokens, shape (N, length).
        """
        count, length = raw.shape[0], raw.shape[1] - 1
        tokens = np.empty((length, count), dtype=np.int64)
        state = np.full(count, self._start)
        target = self._drawn(raw[:, 0], state, self._num_targets, self._targets)
        for t in range(length):
            there = state == self._sources[target]
            letter = np.where(
                there, self._taken[target], self._toward[state, self._sources[target]]
            )
            drawn = self._drawn(raw[:, t + 1], state, self._num_letters, self._letters)
            tokens[t] = letter = np.where(covering, letter, drawn)
            state = self._after[state, letter]
            again = there | ~covering
            following = self._drawn(raw[:, t + 1], state, self._num_targets, self._targets)
            target = np.where(again, following, target)
        return np.ascontiguousarray(tokens.T)

    @staticmethod
    def _drawn(
        raw: NDArray[np.uint64],
        state: NDArray[np.int64],
        sizes: NDArray[np.int64],
        table: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        return table[state, addressing.below(raw, sizes[state])]


class AutomatonTask(DrawnTask):
    """A task whose answers an automaton gives.

    Args:
        language: the automaton and its names.
        length: letters of the longest training word.
        min_length: letters of the shortest training word; None means ``length`` if every position
            is scored, and 1 otherwise.
        labels: "all" (every position is scored) or "last" (the last one of each word alone).
        words: "covering" (half of the words go through transitions drawn uniformly, the others
            have letters drawn uniformly) or "uniform" (all have letters drawn uniformly).
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.

    Raises:
        OptionError: if an option is out of range or has the wrong type.
    """

    head = "answer"

    def __init__(
        self,
        language: NamedAutomaton,
        *,
        length: int,
        min_length: int | None,
        labels: Labels,
        words: Words,
        train_size: int | None,
        seed: int,
    ) -> None:
        super().__init__(length=length, train_size=train_size, seed=seed)
        for name, value, known in (("labels", labels, Labels), ("words", words, Words)):
            if value not in get_args(known):
                raise OptionError(
                    f"{name} must be one of {', '.join(get_args(known))}, got {value!r}"
                )
        self.labels, self.words = labels, words
        self.min_length = min_length
        if min_length is not None:
            addressing.check_integer("min_length", min_length, minimum=1, maximum=self.length)
        self.language = language
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

    def _count(self, length: int) -> int:
        return length + 3

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        covering = raw[:, 0] >= 2**63 if self.words == "covering" else np.zeros(len(raw), np.bool_)
        tokens = self._walks.words(raw[:, 2:], covering)
        targets = np.empty_like(tokens)
        state = np.full(len(raw), self.language.automaton.start)
        for t in range(length):
            targets[:, t] = self.language.automaton.outputs[state, tokens[:, t]]
            state = self.language.automaton.transitions[state, tokens[:, t]]
        if self.labels == "all":
            training = split == "train" and length == self.length
            low = self.min_length or length if training else length
        else:
            low = self.min_length or 1 if length <= self.length else self.length + 1
        low = min(low, length)
        lengths = low + addressing.below(raw[:, 1], length - low + 1)
        places = np.arange(length)
        targets[places >= lengths[:, None]] = IGNORED
        if self.labels == "last":
            targets[places < lengths[:, None] - 1] = IGNORED
        return Examples(tokens, {self.head: targets}, lengths if low < length else None)
