"""Kinds of words for an automaton, drawn so that every state and transition is seen."""

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import NEVER, Automaton
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.drawn import Raw


def _drawn(
    raw: NDArray[np.uint64],
    state: NDArray[np.int64],
    sizes: NDArray[np.int64],
    table: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Draw from the first ``sizes[state]`` numbers of ``table[state]``."""
    return table[state, addressing.below(raw, sizes[state])]


class TellingLetters:
    """Shortest words that two states answer differently, one letter after the other.

    Source: Chow (1978), "Testing Software Design Modeled by Finite-State Machines", whose tests of
    a transition end with such words.

    Args:
        automaton: the automaton.

    Attributes:
        letters: first letter of such a word, shape (states, states), int64; ``NEVER`` where no word
            that can follow both states tells them apart.
    """

    def __init__(self, automaton: Automaton) -> None:
        self._after, answers = automaton.transitions, automaton.outputs
        can_follow = (self._after[:, None] != NEVER) & (self._after != NEVER)
        self._differ = can_follow & (answers[:, None] != answers)
        self.letters = np.full(can_follow.shape[:2], NEVER)
        tells = self._differ
        while True:
            new = (self.letters == NEVER) & tells.any(2)
            if not new.any():
                break
            self.letters[new] = tells.argmax(2)[new]
            tells = can_follow & (self.letters[self._after[:, None], self._after] != NEVER)
        told_apart = self.letters != NEVER
        self._num_others = told_apart.sum(1)
        self._others = np.argsort(~told_apart, axis=1, kind="stable")

    def drawn(self, raw: NDArray[np.uint64], state: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw a state that a word distinguishes from ``state``; ``NEVER`` if no word does."""
        other = _drawn(raw, state, np.maximum(self._num_others, 1), self._others)
        return np.where(self._num_others[state] > 0, other, NEVER)

    def next_other(
        self, state: NDArray[np.int64], other: NDArray[np.int64], letter: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the other state after a letter; ``NEVER`` once the answers have differed."""
        told = (other == NEVER) | self._differ[state, other, letter]
        return np.where(told, NEVER, self._after[other, letter])


class Walks:
    """The words of an automaton.

    In a *uniform* word, each letter is drawn uniformly among those that can follow. In a
    *repeating* word, each letter that is drawn then stands 1, 2, 4, ... times in a row, as long as
    it can follow; the number is drawn uniformly among these up to the length of the word. In a
    *covering* word, a transition that can still be reached is drawn uniformly, the word goes to it
    on a shortest path and takes it; then the next transition is drawn.

    A *distinguishing* word is a covering word that checks where transitions lead. After each such
    transition, another state is drawn uniformly among those that answer some word differently. A
    shortest such word follows, if there is one, and then the next transition is drawn. A network
    that takes the one state for the other gives a wrong answer to this word.

    Args:
        automaton: the automaton.
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
        self._automaton = automaton

    @cached_property
    def _telling(self) -> TellingLetters:
        return TellingLetters(self._automaton)

    def words(
        self,
        raw: Raw,
        covering: NDArray[np.bool_],
        repeating: NDArray[np.bool_],
        *,
        distinguishing: bool,
    ) -> NDArray[np.int64]:
        """Draw words, shape (N, length), from values of shape (N, length + 1).

        ``covering`` and ``repeating`` tell which words are so, and ``distinguishing`` whether all
        covering words are distinguishing words.
        """
        count, length = raw.shape[0], raw.shape[1] - 1
        tokens = np.empty((length, count), dtype=np.int64)
        state = np.full(count, self._start)
        letter, left = np.zeros(count, np.int64), np.zeros(count, np.int64)
        # The state that a distinguishing word tells from its own.
        other = np.full(count, NEVER)
        target = _drawn(raw[:, 0], state, self._num_targets, self._targets)
        for t in range(length):
            there = (other == NEVER) & (state == self._sources[target])
            toward = np.where(
                there, self._taken[target], self._toward[state, self._sources[target]]
            )
            if distinguishing:
                toward = np.where(other == NEVER, toward, self._telling.letters[state, other])
            drawn = _drawn(raw[:, t + 1], state, self._num_letters, self._letters)
            again = repeating & (left > 0) & (self._after[state, letter] != NEVER)
            # The upper half of the random number has decided the letter.
            lower = raw[:, t + 1] << np.uint64(32)
            left = np.where(again, left, 1 << addressing.below(lower, length.bit_length())) - 1
            tokens[t] = letter = np.where(covering, toward, np.where(again, letter, drawn))
            before, state = state, self._after[state, letter]
            ended = there | ~covering
            if distinguishing:
                # The target may be out of reach after a word that tells states apart.
                ended |= other != NEVER
                after = self._telling.next_other(before, other, letter)
                other = np.where(there, self._telling.drawn(lower, state), after)
            following = _drawn(raw[:, t + 1], state, self._num_targets, self._targets)
            target = np.where(ended, following, target)
        return np.ascontiguousarray(tokens.T)


class BalancedWords:
    """Words whose last answers are equally frequent.

    The answer after the last letter is drawn uniformly among those that words of the length can
    have; then the last transition uniformly among those with the answer; then the word uniformly
    among those that end with the transition.

    Args:
        automaton: the automaton.
        length: letters of the longest word.
    """

    def __init__(self, automaton: Automaton, length: int) -> None:
        after = automaton.transitions
        self._start, self._after, self._can_follow = automaton.start, after, after != NEVER
        # paths[r, s, q] is proportional to the number of paths of r letters from state q to s.
        paths = np.empty((length, automaton.num_states, automaton.num_states))
        paths[0] = np.eye(automaton.num_states)
        for r in range(1, length):
            paths[r] = (paths[r - 1][:, after] * self._can_follow).sum(-1)
            # Counts grow exponentially with r; only their ratios matter.
            paths[r] /= np.maximum(paths[r].max(1, keepdims=True), np.finfo(float).tiny)
        self._paths = paths
        self._sources, self._taken = np.nonzero(self._can_follow)
        answers = automaton.outputs[self._sources, self._taken]
        last = paths[:, self._sources, self._start] > 0
        chance = np.zeros(last.shape)
        for answer in np.unique(answers):
            having = last & (answers == answer)
            chance += having / np.maximum(having.sum(1, keepdims=True), 1)
        # Row r: distribution of the last transition of words of r + 1 letters.
        self._last = chance.cumsum(1)
        self._last /= self._last[:, -1:]

    @staticmethod
    def numbers_per_letter(automaton: Automaton) -> int:
        """Return the size of the tables of an automaton for each letter of the longest word."""
        return automaton.num_states * max(automaton.num_states, automaton.num_tokens)

    def words(self, raw: Raw, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw words of given lengths from values (N, T); after its end, a word has any letter."""
        chance = fractions(raw)
        rows, state = np.arange(len(raw)), np.full(len(raw), self._start)
        last = (self._last[lengths - 1] > chance[rows, lengths - 1, None]).argmax(1)
        tokens = np.zeros(raw.shape, dtype=np.int64)
        for t in range(int(lengths.max(initial=0)) - 1):
            left = np.maximum(lengths - t - 2, 0)
            weight = self._paths[left, self._sources[last]][rows[:, None], self._after[state]]
            total = (weight * self._can_follow[state]).cumsum(1)
            tokens[:, t] = (total > chance[:, t, None] * total[:, -1:]).argmax(1)
            state = self._after[state, tokens[:, t]]
        tokens[rows, lengths - 1] = self._taken[last]
        return tokens


def fractions(raw: Raw) -> NDArray[np.float64]:
    """Return uniform values in [0, 1), of so few bits that x times a value is below x."""
    return np.ldexp((raw >> np.uint64(12)).astype(np.float64), -52)


@lru_cache(maxsize=8)
def balanced_words(automaton: Automaton, length: int) -> BalancedWords:
    """Return the tables of balanced words, which are kept for a few automata."""
    return BalancedWords(automaton, length)
