"""Prefix trees: the words of a log, each prefix once, with the labels that were seen after it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED, NEVER

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """The prefixes of words as nodes; node 0 is the empty word.

    Nodes are sorted by length, then by the node before their last letter, then by that letter. The
    children of a node are therefore neighbours.

    Attributes:
        parent: the node before the last letter, shape (nodes,); ``NEVER`` for roots.
        letter: the last letter, shape (nodes,); ``NEVER`` for roots.
        levels: where the nodes of each length begin, and the number of nodes, shape (lengths + 1,).
        visits: words that pass through each node, shape (nodes,).
        labelled: nodes with a label, shape (entries,), one entry for each of their labels.
        label: label of each entry, shape (entries,).
        count: how often each entry was seen, shape (entries,).
    """

    parent: Ints
    letter: Ints
    levels: Ints
    visits: Ints
    labelled: Ints
    label: Ints
    count: Ints

    @classmethod
    def of(cls, tokens: Ints, targets: Ints, starts: Ints) -> Self:
        """Return the tree of words that stand one after the other.

        Args:
            tokens: letters of all words, shape (letters,).
            targets: label after each letter, same shape; ``IGNORED`` where there is none.
            starts: where each word begins, and the number of letters, shape (words + 1,).
        """
        num_letters = int(tokens.max(initial=0)) + 1
        num_labels = int(targets.max(initial=0)) + 1
        lengths, rows = np.diff(starts), np.arange(len(starts) - 1)
        parents, letters = [np.array([NEVER])], [np.array([NEVER])]
        visits, pairs = [np.array([len(rows)])], [np.zeros(0, np.int64)]
        node, levels = np.zeros(len(rows), np.int64), [0, 1]
        for place in range(int(lengths.max(initial=0))):
            rows = rows[lengths[rows] > place]
            at = starts[rows] + place
            key = node[rows] * num_letters + tokens[at]
            known, inverse, times = np.unique(key, return_inverse=True, return_counts=True)
            node[rows] = levels[-1] + inverse
            parents.append(known // num_letters)
            letters.append(known % num_letters)
            visits.append(times)
            seen = targets[at] != IGNORED
            pairs.append(node[rows[seen]] * num_labels + targets[at[seen]])
            levels.append(levels[-1] + len(known))
        entries, count = np.unique(np.concatenate(pairs), return_counts=True)
        return cls(
            np.concatenate(parents),
            np.concatenate(letters),
            np.array(levels),
            np.concatenate(visits),
            entries // num_labels,
            entries % num_labels,
            count,
        )

    def first_children(self) -> Ints:
        """Return where the children of each node begin, shape (nodes + 1,)."""
        return np.searchsorted(self.parent, np.arange(len(self.parent) + 1))


def children(first: Ints, nodes: Ints) -> tuple[Ints, Ints]:
    """Return the children of nodes, and for each child the place of its parent in ``nodes``."""
    begin, number = first[nodes], first[nodes + 1] - first[nodes]
    of = np.repeat(np.arange(len(nodes)), number)
    offsets = np.arange(len(of)) - np.repeat(number.cumsum() - number, number)
    return begin[of] + offsets, of
