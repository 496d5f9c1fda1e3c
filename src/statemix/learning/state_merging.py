"""State merging: a deterministic machine from labelled words, some of whose labels are wrong."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import NEVER, reachable
from statemix.learning.prefix_tree import Ints, PrefixTree, children

Floats = NDArray[np.float64]

LOG_ODDS = float(np.log(1e4))
"""A state of its own must be 10,000 times as probable as the machine without it."""

# Shares of transitions in which two different states may answer differently.
_SHARES = (0.3, 0.1, 0.03, 0.01)
# A target this far behind the best one is given up before all words have been compared.
_BEHIND = 40.0
# A gain below this is rounding.
_LEAST_GAIN = 1e-6


@dataclass(frozen=True, eq=False)
class Evidence:
    r"""The probability of the labels of a transition whose right answer is not known.

    .. math:: P(c) = \sum_y \pi_{a,y} (1 - \epsilon)^{c_y} (\epsilon / (Y - 1))^{n - c_y}

    for :math:`c_y` labels y among n. The prior probability :math:`\pi_{a,y}` that a transition by
    letter a answers y is the share of y among the labels after a.

    Attributes:
        noise: epsilon, the share of wrong labels.
        prior: logarithm of pi, shape (letters, labels).
    """

    noise: float
    prior: Floats

    @classmethod
    def of(cls, tree: PrefixTree, shape: tuple[int, int], noise: float) -> Self:
        """Return the evidence for the words of a tree with (letters, labels) of a shape."""
        counts = np.zeros(shape)
        np.add.at(counts, (tree.letter[tree.labelled], tree.label), tree.count)
        # A letter may be rare: then the labels of all letters count.
        counts += counts.sum(0) / counts.sum() + 1e-3
        return cls(noise, np.log(counts / counts.sum(1, keepdims=True)))

    def log(self, counts: Floats, letters: Ints) -> Floats:
        """Return log P for the counts of labels (N, labels) of transitions by letters (N,)."""
        wrong = np.log(self.noise / max(self.prior.shape[1] - 1, 1))
        terms = self.prior[letters] + counts * (np.log1p(-self.noise) - wrong)
        most = terms.max(1, initial=-np.inf)
        rest = np.exp(terms - most[:, None]).sum(1)
        return np.asarray(most + np.log(rest) + counts.sum(1) * wrong)


class Merging:
    """A search for the machine with the most probable labels.

    The machine grows from its start state. A transition that words take and that leads nowhere yet
    is *open*. Deciding it compares what follows it with what follows each state.

    Attributes:
        delta: the next states, shape (states, letters); ``NEVER`` for open transitions and those
            that no word takes.
        growth_odds: log odds that a new state needs while the machine grows. The score joins states
            again that are not probable enough.
    """

    def __init__(
        self, tree: PrefixTree, shape: tuple[int, int], noise: float, most_states: int
    ) -> None:
        self.tree, self.most_states = tree, most_states
        self.num_letters, self.num_labels = shape
        self.evidence = Evidence.of(tree, shape, noise)
        self.delta = np.full((1, self.num_letters), NEVER)
        self.growth_odds = LOG_ODDS
        self.first = tree.first_children()

    def follow(self) -> Ints:
        """Return the state after each node of the tree; ``NEVER`` behind an open transition."""
        tree, states = self.tree, np.zeros(len(self.tree.parent), np.int64)
        # The state NEVER chooses the last row.
        table = np.vstack([self.delta, np.full(self.num_letters, NEVER)])
        for low, high in itertools.pairwise(tree.levels[1:]):
            states[low:high] = table[states[tree.parent[low:high]], tree.letter[low:high]]
        return states

    def labels(self, states: Ints) -> Floats:
        """Return how often each transition has each label, shape (states * letters, labels)."""
        tree = self.tree
        return self._labels_on(
            states[tree.parent[tree.labelled]], np.ones_like(tree.label, np.bool_)
        )

    def visits(self, states: Ints) -> Ints:
        """Return how often words take each transition, shape (states, letters)."""
        tree, shape = self.tree, (len(self.delta), self.num_letters)
        before = states[tree.parent[1:]]
        known = before != NEVER
        place = before * shape[1] + tree.letter[1:]
        counts = np.bincount(place[known], tree.visits[1:][known], int(np.prod(shape)))
        return counts.reshape(shape).astype(np.int64)

    def measured_noise(self) -> float:
        """Return the share of labels that are not the most frequent one of their transition."""
        counts = self.labels(self.follow())
        return float((counts.sum(1) - counts.max(1)).sum() / counts.sum())

    def score(self) -> float:
        """Return the logarithm of the probability of all labels, with the price of the states."""
        tree, states = self.tree, self.follow()
        counts = self.labels(states)
        total = self.evidence.log(counts, np.arange(len(counts)) % self.num_letters).sum()
        alone = self._alone(states[tree.parent[tree.labelled]] == NEVER).sum()
        return float(total + alone + self._targets_prior() - LOG_ODDS * len(self.delta))

    def _targets_prior(self) -> float:
        r"""Return the log probability of the targets of all transitions, one after the other.

        .. math:: P(q) = (n_q + 1) / (n + S)

        where n of S states' transitions came before, and :math:`n_q` of them lead to q (a Polya
        urn). Most transitions of many machines lead to few states, such as that of an error.
        """
        into = self._into().tolist()
        states = len(into)
        rest = math.lgamma(states) - math.lgamma(states + sum(into))
        return math.fsum(math.lgamma(number + 1) for number in into) + rest

    def _into(self) -> Ints:
        """Return how many transitions lead to each state, shape (states,)."""
        return np.bincount(self.delta[self.delta != NEVER], minlength=len(self.delta))

    def search(self, rng: np.random.Generator, on_progress: Callable[[int, float], None]) -> None:
        """Grow a machine and improve it until no change raises the score.

        Args:
            rng: order in which transitions are tried.
            on_progress: function called with the number of states and the score.
        """
        self.close()
        self.improve(rng)
        on_progress(len(self.delta), self.score())
        while self._split():
            self.improve(rng)
            on_progress(len(self.delta), self.score())

    def close(self) -> None:
        """Decide all open transitions."""
        while len(waiting := self._open()):
            # First all states that differ from every other one, so that merges can choose.
            grown = [self._decide(*each, only_new=True) for each in waiting]
            if not any(grown):
                for each in waiting[: -(-len(waiting) // 2)]:
                    self._decide(*each)

    def improve(self, rng: np.random.Generator) -> None:
        """Change targets of single transitions, and join states, while the score rises."""
        before = -np.inf
        while (now := self.score()) > before + _LEAST_GAIN:
            before = now
            for source, letter in rng.permutation(self._taken()).tolist():
                scores = self._scores_of_targets(source, letter)
                best = int(scores.argmax())
                if scores[best] > scores[self.delta[source, letter]] + _LEAST_GAIN:
                    self.delta[source, letter] = best
                    self.close()
            self._drop_unreachable()
            self._join()

    def _taken(self) -> Ints:
        return np.argwhere((self.visits(self.follow()) > 0) & (self.delta != NEVER))

    def _open(self) -> list[tuple[int, int]]:
        """Return the open transitions, those that most words take first."""
        visits = self.visits(self.follow())
        found = np.argwhere((self.delta == NEVER) & (visits > 0))
        order = np.argsort(-visits[tuple(found.T)], kind="stable")
        return [(source, letter) for source, letter in found[order].tolist()]

    def _decide(self, source: int, letter: int, *, only_new: bool = False) -> bool:
        """Give an open transition its most probable target; return whether that is a new state."""
        weights, alike = self._weigh(source, letter)
        possible = np.minimum(weights, alike) > -self.growth_odds
        possible |= len(self.delta) >= self.most_states
        is_new = not possible.any()
        if is_new:
            self._add_state(source, letter)
        elif not only_new:
            weights += np.log1p(self._into())
            self.delta[source, letter] = np.where(possible, weights, -np.inf).argmax()
        return is_new

    def _add_state(self, source: int, letter: int) -> None:
        self.delta = np.vstack([self.delta, np.full(self.num_letters, NEVER)])
        self.delta[source, letter] = len(self.delta) - 1

    def _drop_unreachable(self) -> None:
        kept = sorted(reachable(self.delta.tolist(), 0))
        numbers = np.full(len(self.delta) + 1, NEVER)
        numbers[kept] = np.arange(len(kept))
        self.delta = numbers[self.delta[kept]]

    def _weigh(self, source: int, letter: int) -> tuple[Floats, Floats]:
        """Compare what follows an open transition with what follows each state.

        Returns:
            weights: log odds that a state is the target, against unrelated labels, (states,).
            alike: log odds that a state answers like the target, against the most probable share of
                transitions in which the two differ, (states,).
        """
        states = self.follow()
        trees = _OpenTrees(self, states)
        num_states, shape = len(self.delta), (self.num_letters, self.num_labels)
        root = int(np.searchsorted(trees.roots, source * self.num_letters + letter))
        counts = np.concatenate([self.labels(states), trees.labels])
        letters = np.concatenate([np.tile(np.arange(shape[0]), num_states), trees.letter])
        alone = self.evidence.log(trees.labels, trees.letter)
        weights, differ = np.zeros(num_states), np.zeros((len(_SHARES), num_states))
        shares = np.array(_SHARES)[:, None]
        sums = _Sums(shape[1])
        # Pairs of a node behind the transition and what it would be with each target.
        target = np.arange(num_states)
        place, node = target, np.full(num_states, root)
        while len(node):
            node, parent = children(trees.first, node)
            target, place = target[parent], place[parent]
            edge, after = trees.step(place, trees.letter[node])
            seen = edge != NEVER
            label, of = trees.labels[node[seen]], target[seen]
            keys, inverse = np.unique(of * len(counts) + edge[seen], return_inverse=True)
            rows, by = keys % len(counts), letters[keys % len(counts)]
            before = counts[rows] + sums.of(keys)
            added = sums.add(keys, inverse, label)
            base = self.evidence.log(before, by)
            gain = self.evidence.log(before + added, by) - base
            weights += np.bincount(keys // len(counts), gain, num_states)
            weights -= np.bincount(of, alone[node[seen]], num_states)
            pair = self.evidence.log(before[inverse] + label, by[inverse]) - base[inverse]
            other = np.logaddexp(np.log1p(-shares), np.log(shares) + alone[node[seen]] - pair)
            for row, each in zip(differ, other, strict=True):
                row -= np.bincount(of, each, num_states)
            # With this target, the transition itself leads to it.
            after = np.where(after == num_states + root, target, after)
            able = differ.min(0) > -_BEHIND
            able &= weights > weights[able].max(initial=-np.inf) - _BEHIND
            kept = (after != NEVER) & able[target]
            target, place, node = target[kept], after[kept], node[kept]
        return weights, differ.min(0)

    def _scores_of_targets(self, source: int, letter: int) -> Floats:
        """Return the score of the machine with each state as the target of a transition.

        A number that all targets share is left out.
        """
        tree, num_states, num_letters = self.tree, len(self.delta), self.num_letters
        states = self.follow()
        # Nodes whose state depends on the target.
        first = (states[tree.parent] == source) & (tree.letter == letter)
        first[0], moved = False, np.zeros(len(states), np.bool_)
        for low, high in itertools.pairwise(tree.levels[1:]):
            moved[low:high] = first[low:high] | moved[tree.parent[low:high]]
        nodes = np.flatnonzero(moved)
        targets = np.arange(num_states)[:, None]
        tables = np.tile(np.vstack([self.delta, np.full(num_letters, NEVER)]), (num_states, 1, 1))
        tables[:, source, letter] = targets[:, 0]
        # The states of moved nodes, a row for each target; of others, before the transition.
        numbers = np.cumsum(moved) - 1
        after = np.empty((num_states, len(nodes)), np.int64)
        before = np.empty_like(after)
        levels = np.searchsorted(nodes, tree.levels)
        for low, high in itertools.pairwise(levels[1:]):
            parents = tree.parent[nodes[low:high]]
            inside = moved[parents]
            before[:, low:high] = states[parents]
            before[:, low:high][:, inside] = after[:, numbers[parents[inside]]]
            after[:, low:high] = tables[targets, before[:, low:high], tree.letter[nodes[low:high]]]
        # The labels of other nodes are on the same transitions for every target.
        entries = moved[tree.labelled]
        fixed = self._labels_on(states[tree.parent[tree.labelled]], ~entries)
        sources = before[:, numbers[tree.labelled[entries]]]
        added = np.stack([self._labels_on(row, entries) for row in sources])
        touched = added.any(2)
        at, letters = np.nonzero(touched)[1], np.nonzero(touched)[1] % num_letters
        gains = np.zeros(touched.shape)
        gains[touched] = self.evidence.log(fixed[at] + added[touched], letters)
        gains[touched] -= self.evidence.log(fixed[at], letters)
        lost = np.where(sources == NEVER, self._alone(entries), 0.0)
        others = self._into()
        others[self.delta[source, letter]] -= 1
        return np.asarray(gains.sum(1) + lost.sum(1) + np.log1p(others))

    def _split(self) -> bool:
        """Try new states as targets of doubtful transitions until the score rises."""
        if len(self.delta) >= self.most_states:
            return False
        score, before = self.score(), self.delta
        for source, letter in self._doubtful():
            target = before[source, letter]
            self._add_state(source, letter)
            self.close()
            for other in np.argwhere(before == target).tolist():
                if other != [source, letter]:
                    self.delta[tuple(other)] = NEVER
                    self.close()
            self._drop_unreachable()
            self._join()
            if self.score() > score + _LEAST_GAIN:
                return True
            self.delta = before
        return False

    def _doubtful(self) -> list[tuple[int, int]]:
        """Return transitions that rather have another target, the most doubtful first."""
        found = []
        for source, letter in self._taken().tolist():
            target = self.delta[source, letter]
            # The start is a target, too.
            if (self.delta == target).sum() + (target == 0) > 1:
                self.delta[source, letter] = NEVER
                found.append((self._weigh(source, letter)[1][target], source, letter))
                self.delta[source, letter] = target
        return [(source, letter) for alike, source, letter in sorted(found) if alike < 0]

    def _join(self) -> None:
        """Join pairs of states as long as that raises the score."""
        score, pairs = self.score(), self._pairs()
        while pairs:
            dropped, kept = pairs.pop()
            before = self.delta
            self.delta = np.where(before == dropped, kept, before)
            self._drop_unreachable()
            # Words may take transitions of the joined state that no word took before.
            self.close()
            if (joined := self.score()) > score + _LEAST_GAIN:
                score, pairs = joined, self._pairs()
            else:
                self.delta = before

    def _pairs(self) -> list[tuple[int, int]]:
        count = len(self.delta)
        # The start stays.
        return [(one, other) for one in range(1, count) for other in range(count) if one != other]

    def _labels_on(self, before: Ints, entries: NDArray[np.bool_]) -> Floats:
        """Return the counts of labels, (states * letters, labels), of some entries of the tree.

        ``before`` holds the state before the transition, for all entries or for these alone.
        """
        tree, rows = self.tree, len(self.delta) * self.num_letters
        before = before[entries] if len(before) == len(entries) else before
        letter, label = tree.letter[tree.labelled[entries]], tree.label[entries]
        known = before != NEVER
        place = ((before * self.num_letters + letter) * self.num_labels + label)[known]
        counts = np.bincount(place, tree.count[entries][known], rows * self.num_labels)
        return counts.reshape(rows, self.num_labels).astype(np.float64)

    def _alone(self, entries: NDArray[np.bool_]) -> Floats:
        """Return the log probability of labels behind open transitions, each on its own."""
        tree = self.tree
        prior = self.evidence.prior[tree.letter[tree.labelled[entries]], tree.label[entries]]
        return np.asarray(tree.count[entries] * prior)


class _OpenTrees:
    """What follows the open transitions of a machine: a tree for each, with all its words.

    Nodes are numbered from 0, roots first, children of a node next to each other.

    Attributes:
        roots: the open transition of each root, source * letters + letter, sorted.
        letter: the last letter of each node, shape (nodes,); that of roots is not used.
        labels: how often each node has each label, shape (nodes, labels); none for roots, whose
            labels are on the open transition.
        first: where the children of each node begin, shape (nodes + 1,).
    """

    def __init__(self, merging: Merging, states: Ints) -> None:
        tree, num_letters, num_labels = merging.tree, merging.num_letters, merging.num_labels
        self._delta, self._num_letters = merging.delta, num_letters
        before = states[tree.parent]
        opened = (before != NEVER) & (states == NEVER)
        opened[0] = False
        nodes = np.flatnonzero(opened)
        self.roots, number = np.unique(
            before[nodes] * num_letters + tree.letter[nodes], return_inverse=True
        )
        # The node of each node of the prefix tree, and parent * letters + letter of each node.
        numbers, keys, total = np.full(len(states), NEVER), [], len(self.roots)
        while len(nodes):
            numbers[nodes] = number
            nodes, parent = children(merging.first, nodes)
            key, inverse = np.unique(
                number[parent] * num_letters + tree.letter[nodes], return_inverse=True
            )
            number, total = total + inverse, total + len(key)
            keys.append(key)
        self._keys = np.concatenate(keys or [np.zeros(0, np.int64)])
        self.letter = np.concatenate([np.zeros_like(self.roots), self._keys % num_letters])
        parents = self._keys // num_letters
        self.first = len(self.roots) + np.searchsorted(parents, np.arange(total + 1))
        at = numbers[tree.labelled]
        inside = at >= len(self.roots)
        place = at[inside] * num_labels + tree.label[inside]
        counts = np.bincount(place, tree.count[inside], total * num_labels)
        self.labels = counts.reshape(total, num_labels).astype(np.float64)

    def step(self, place: Ints, letter: Ints) -> tuple[Ints, Ints]:
        """Take transitions by letters from places, which are states, then nodes.

        Returns the number of each transition (those of states, then those into nodes) and the place
        that it leads to; ``NEVER`` where there is none.
        """
        num_states, num_letters = self._delta.shape
        is_state = place < num_states
        edge = place * num_letters + letter
        after = np.full(len(place), NEVER)
        after[is_state] = self._delta.ravel()[edge[is_state]]
        opened = is_state & (after == NEVER)
        after[opened] = self._find(self.roots, edge[opened], num_states)
        inside = edge[~is_state] - num_states * num_letters
        after[~is_state] = self._find(self._keys, inside, num_states + len(self.roots))
        node = after[~is_state]
        shift = num_states * (num_letters - 1)
        edge[~is_state] = np.where(node == NEVER, NEVER, node + shift)
        return edge, after

    @staticmethod
    def _find(keys: Ints, wanted: Ints, base: int) -> Ints:
        """Return the places of numbers in sorted keys, counted from a base; ``NEVER`` if absent."""
        if not len(keys):
            return np.full(len(wanted), NEVER)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, base + place, NEVER)


class _Sums:
    """Counts of labels by key, added up over several calls."""

    def __init__(self, num_labels: int) -> None:
        self._keys, self._counts = np.zeros(0, np.int64), np.zeros((0, num_labels))

    def of(self, keys: Ints) -> Floats:
        """Return the counts of keys so far, shape (keys, labels)."""
        if not len(self._keys):
            return np.zeros((len(keys), self._counts.shape[1]))
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where((self._keys[place] == keys)[:, None], self._counts[place], 0.0)

    def add(self, keys: Ints, inverse: Ints, counts: Floats) -> Floats:
        """Add a row of counts to the key that ``inverse`` names; return the sum of each key."""
        added = np.zeros((len(keys), counts.shape[1]))
        np.add.at(added, inverse, counts)
        self._keys, place = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        before, self._counts = self._counts, np.zeros((len(self._keys), counts.shape[1]))
        np.add.at(self._counts, place, np.concatenate([before, added]))
        return added
