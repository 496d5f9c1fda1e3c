"""Words of an automaton that are likely to show a fault of a network, and pieces of words."""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED, NEVER, Automaton, telling_letters
from statemix.proofs.state_machine import StateMachine

Word = NDArray[np.int64]

# Most loops, and letters of a random end, which shows what pumping has done to the state.
_MOST_LOOPS, _END = 128, 24
# Longest period that a word is compressed by.
_LONGEST_PERIOD = 256


class CandidateWords:
    """Words that an automaton allows. Each ends with a letter whose answer is scored.

    Args:
        automaton: the automaton; words reach all of its states.
        seed: seed of all random choices.

    Attributes:
        access: a shortest word to each state.
        is_endless: whether words can have any length.
    """

    def __init__(self, automaton: Automaton, seed: int) -> None:
        self.automaton = automaton
        self._after: list[list[int]] = automaton.transitions.tolist()
        self._outputs: list[list[int]] = automaton.outputs.tolist()
        self._rng = np.random.default_rng(seed)
        self.access = self._paths(automaton.start)
        can_follow = automaton.transitions != NEVER
        self._is_complete = bool(can_follow.all())
        self._is_scored = bool((automaton.outputs[can_follow] != IGNORED).all())
        # Transitions that lead to words of any length.
        lives = np.ones(automaton.num_states, bool)
        while True:
            goes_on = can_follow & lives[automaton.transitions]
            if (goes_on.any(1) == lives).all():
                break
            lives = goes_on.any(1)
        self._going_on: list[list[int]] = [np.flatnonzero(row).tolist() for row in goes_on]
        self.is_endless = bool(lives[automaton.start])

    def _paths(self, start: int) -> dict[int, list[int]]:
        """Return a shortest word from a state to each state that words lead to."""
        paths, waiting = {start: list[int]()}, deque([start])
        while waiting:
            state = waiting.popleft()
            for letter, after in enumerate(self._after[state]):
                if after != NEVER and after not in paths:
                    paths[after] = [*paths[state], letter]
                    waiting.append(after)
        return paths

    def allowed(self, word: Word) -> Word:
        """Return the letters of a word before the first one that cannot follow."""
        if self._is_complete:
            return word
        state = self.automaton.start
        for place, letter in enumerate(word.tolist()):
            state = self._after[state][letter]
            if state == NEVER:
                return word[:place]
        return word

    def states(self, state: int, word: Sequence[int]) -> list[int]:
        """Return a state, and the states after each letter of a word from it."""
        states = [state]
        for letter in word:
            states.append(self._after[states[-1]][letter])
        return states

    def expected(self, words: Word) -> NDArray[np.int64]:
        """Return the right answers to words (N, T); -1 where nothing is scored.

        Nothing is scored after a letter that cannot follow. A row may end with ``num_tokens`` in
        place of letters.
        """
        answers, _ = self._machine.run(words, self.automaton.start)
        return answers

    @cached_property
    def _machine(self) -> StateMachine:
        """The automaton, and one more state that letters lead to if they cannot follow."""
        moves, sink = self.automaton.transitions, self.automaton.num_states
        table = np.full((sink + 1, self.automaton.num_tokens + 1), sink, np.int32)
        table[:sink, :-1] = np.where(moves == NEVER, sink, moves)
        answers = np.full_like(table, -1)
        answers[:sink, :-1] = np.where(moves == NEVER, -1, np.maximum(self.automaton.outputs, -1))
        return StateMachine(table, answers)

    def _scored(self, word: Sequence[int]) -> Word:
        """Return a word, followed by a shortest path to an answer that is scored, if there is one.

        Nothing follows if the last answer of the word is scored.
        """
        letters = np.array(word, np.int64)
        if self._is_scored:
            return letters
        answers, state = self._machine.run(letters, self.automaton.start)
        if len(letters) and answers[-1] >= 0:
            return letters
        for start, path in self._paths(int(state)).items():
            for letter, after in enumerate(self._after[start]):
                if after != NEVER and self._outputs[start][letter] != IGNORED:
                    return np.array([*word, *path, letter])
        return letters

    def short(self) -> Iterator[Word]:
        """Yield all words of one letter, of two letters, and so on; shape (N, length)."""
        words, states = np.zeros((1, 0), np.int64), np.array([self.automaton.start])
        while len(words):
            rows, letters = np.nonzero(self.automaton.transitions[states] != NEVER)
            words = np.column_stack([words[rows], letters])
            states = self.automaton.transitions[states[rows], letters]
            yield words

    def covering(self) -> Iterator[Word]:
        """Yield words that take each transition, and then tell its state from another one."""
        telling = telling_letters(self.automaton)
        count = self.automaton.num_states
        taken = [
            (state, letter)
            for state in self.access
            for letter, after in enumerate(self._after[state])
            if after != NEVER
        ]
        others = self._rng.permuted(np.tile(np.arange(count), (len(taken), 1)), axis=1)
        for turn in range(count):
            for (state, letter), row in zip(taken, others.tolist(), strict=True):
                word = [*self.access[state], letter]
                here, other = self._after[state][letter], row[turn]
                if turn and telling[here, other] == NEVER:
                    continue
                while telling[here, other] != NEVER:
                    last = int(telling[here, other])
                    word.append(last)
                    if self._outputs[here][last] != self._outputs[other][last]:
                        break
                    here, other = self._after[here][last], self._after[other][last]
                yield self._scored(word)

    @cached_property
    def loops(self) -> list[tuple[int, Word, Word]]:
        """Loops: a state, the loop, and another loop at the state (or the same one again).

        A loop takes one transition and returns on a shortest path. Short loops come first.
        """
        found: list[tuple[int, Word, Word]] = []
        known: set[frozenset[tuple[int, int]]] = set()
        for state in self._rng.permutation(list(self.access)).tolist():
            here = []
            for letter, after in enumerate(self._after[state]):
                if after != NEVER and (back := self._paths(after).get(state)) is not None:
                    here.append(np.array([letter, *back]))
            for place, loop in enumerate(here):
                letters = loop.tolist()
                steps = frozenset(zip(self.states(state, letters), letters, strict=False))
                if steps not in known:
                    known.add(steps)
                    found.append((state, loop, here[place - 1]))
            if len(found) >= _MOST_LOOPS:
                break
        return sorted(found, key=lambda loop: len(loop[1]))

    def pumped(self, start: Sequence[int], loop: Word, length: int) -> Word:
        """Return ``start``, a loop again and again, and a short random end; about ``length``."""
        count = max(1, (length - len(start) - _END) // len(loop))
        word = np.concatenate([np.array(start, np.int64), np.tile(loop, count)])
        _, state = self._machine.run(word, self.automaton.start)
        return self._scored([*word.tolist(), *self._walk(int(state), _END)])

    def _walk(self, state: int, length: int, *, repeats: bool = False) -> list[int]:
        """Draw a word from a state, letter by letter; empty if the state has only short words.

        If the word ``repeats``, each letter stands in a row as often as a random power of 2.
        """
        word: list[int] = []
        if not self._going_on[state]:
            return word
        raw = self._rng.integers(2**31, size=length).tolist()
        powers = self._rng.integers(length.bit_length() if repeats else 1, size=length).tolist()
        for number, power in zip(raw, powers, strict=True):
            choices = self._going_on[state]
            letter = choices[number % len(choices)]
            for _ in range(2**power):
                word.append(letter)
                state = self._after[state][letter]
                if letter not in self._going_on[state]:
                    break
            if len(word) >= length:
                break
        return word[:length]

    def alternated(self, state: int, loop: Word, other: Word, length: int) -> Word:
        """Return a word of about ``length`` in which two loops at a state take turns.

        Each turn repeats its loop a random number of times, a power of 2.
        """
        longest = length // (2 * max(len(loop), len(other)))
        times = 2 ** int(self._rng.integers(max(1, longest.bit_length())))
        both = np.concatenate([np.tile(loop, times), np.tile(other, times)])
        return self.pumped(self.access[state], both, length)

    def random(self, count: int, length: int) -> Iterator[Word]:
        """Draw words of ``length`` letters; in every second word, letters stand in a row."""
        for number in range(count):
            start = self.automaton.start
            yield self._scored(self._walk(start, length, repeats=number % 2 == 1))

    def steeper(self, word: Word, margins: NDArray[np.float32], length: int) -> Word:
        """Return a word that repeats the loop along which the margin of another one was smallest.

        Without a loop, the letters up to that margin are followed by a short random end.
        ``margins`` are those of the other word; NaN where nothing is scored.
        """
        place = int(np.nanargmin(margins)) + 1
        states = self.states(self.automaton.start, word.tolist())
        visits = [one for one in range(place) if states[one] == states[place]][-8:]
        if not visits:
            return self._scored([*word[:place].tolist(), *self._walk(states[place], _END)])
        first = int(self._rng.choice(visits))
        return self.pumped(word[:place].tolist(), word[first:place], length)


def removals(word: Word, size: int) -> Iterator[Word]:
    """Yield all different words that are left if ``size`` letters in a row are removed."""
    for start in _different_starts(word, size).tolist():
        yield np.delete(word, slice(start, start + size))


def count_removals(word: Word, size: int) -> int:
    """Return the number of words of :func:`removals`."""
    return len(_different_starts(word, size))


def _different_starts(word: Word, size: int) -> NDArray[np.intp]:
    # A piece that starts one letter later leaves the same word if this letter follows it, too.
    return np.flatnonzero(np.append(True, word[: len(word) - size] != word[size:]))


class Compressed(NamedTuple):
    """A word as u v^n w: ``before``, ``loop`` repeated ``times``, and ``after``."""

    before: tuple[int, ...]
    loop: tuple[int, ...]
    times: int
    after: tuple[int, ...]

    def named(self, names: Sequence[Any]) -> dict[str, Any]:
        """Return the word as JSON data, with the names of its letters."""
        parts = self._asdict().items()
        return {k: v if k == "times" else [names[one] for one in v] for k, v in parts}


def compress(word: Word) -> Compressed:
    """Return a word as u v^n w with as few letters as possible; v is empty if nothing repeats."""
    best = (0, 0, 0, 0)
    for period in range(1, min(len(word) // 2, _LONGEST_PERIOD) + 1):
        same = np.concatenate([[False], word[:-period] == word[period:], [False]])
        bounds = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2)
        if len(bounds):
            first, last = bounds[np.argmax(bounds[:, 1] - bounds[:, 0])].tolist()
            count = (last - first) // period + 1
            best = max(best, ((count - 1) * period, -period, count, first))
    _, period, count, first = best
    letters = word.tolist()
    if not count:
        return Compressed(tuple(letters), (), 0, ())
    loop, end = letters[first : first - period], first - period * count
    return Compressed(tuple(letters[:first]), tuple(loop), count, tuple(letters[end:]))
