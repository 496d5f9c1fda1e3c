"""Tasks whose answers an automaton gives."""

from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED, NEVER, Automaton, telling_letters
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.automata.automaton_text import NamedAutomaton
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import DrawnTask, Raw, Tokens


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
    """

    def __init__(self, automaton: Automaton) -> None:
        self._after, answers = automaton.transitions, automaton.outputs
        can_follow = (self._after[:, None] != NEVER) & (self._after != NEVER)
        self._differ = can_follow & (answers[:, None] != answers)
        self.letters = telling_letters(automaton)
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
        states: whether a second head, "state", names the state of the automaton after each letter.
            Where states share answers, a model learns from it what answers alone hardly tell.
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
        states: bool = False,
    ) -> None:
        addressing.check_choice("lengths", lengths, get_args(Lengths))
        addressing.check_choice("labels", labels, get_args(Labels))
        addressing.check_choice("words", words, get_args(Words))
        self.lengths, self.labels, self.words = lengths, labels, words
        self.language = language
        self.flipped = check_flipped(flipped, self.num_classes)
        if states and (labels == "last" or self.flipped):
            raise OptionError("states must be absent with labels=last and with flipped, got True")
        self.states = states
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

    @property
    def heads(self) -> dict[str, int]:
        state = {"state": self.language.automaton.num_states} if self.states else {}
        return super().heads | state

    @cached_property
    def chance(self) -> dict[str, float]:
        # A thousand of the longest words would not fit into memory.
        length = min(self.length, _COUNTED_LENGTH)
        raw = addressing.draws(
            self.name, self._count(length), seed=0, split="train", start=0, stop=_COUNTED
        )
        chance = {}
        for head, answers in self._make(raw, length, "train").targets.items():
            counts = np.bincount(answers[answers != IGNORED])
            chance[head] = float(counts.max() / counts.sum())
        return chance

    @property
    def guessing(self) -> float:
        return self.chance[self.head]

    def automaton(self) -> Automaton:
        """Return the automaton; with labels at the end alone, every prefix is a word of its own."""
        return self.language.automaton

    def targets(self, tokens: Tokens) -> dict[str, Tokens]:
        """Return the right targets of each head after every letter of words of shape (N, T)."""
        answers, states = np.empty_like(tokens), np.empty_like(tokens)
        state = np.full(len(tokens), self.language.automaton.start)
        for t in range(tokens.shape[1]):
            answers[:, t] = self.language.automaton.outputs[state, tokens[:, t]]
            states[:, t] = state = self.language.automaton.transitions[state, tokens[:, t]]
        return {self.head: answers} | ({"state": states} if self.states else {})

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
        targets = self.targets(tokens)
        if self.flipped and split != "test":
            wrong = fractions(raw[:, length + 3 :]) < self.flipped
            lower = raw[:, length + 3 :] << np.uint64(32)
            others = targets[self.head] + 1 + addressing.below(lower, self.num_classes - 1)
            targets[self.head] = np.where(wrong, others % self.num_classes, targets[self.head])
        places = np.arange(length)
        for classes in targets.values():
            classes[places >= lengths[:, None]] = IGNORED
        if self.labels == "last":
            targets[self.head][places < lengths[:, None] - 1] = IGNORED
        return Examples(tokens, targets, lengths if low < length else None)

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
