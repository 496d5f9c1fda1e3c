"""Finite automata with outputs: what an exact model of a task computes on words of every length."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

NEVER = -1
"""Transition by a token that cannot follow."""

IGNORED = -100
"""Target of positions that are not scored."""


def reachable(successors: Sequence[Iterable[int]], start: int) -> set[int]:
    """Return the states that transitions lead to from a state, and the state itself."""
    reached, waiting = {start}, [start]
    for state in waiting:
        new = set(successors[state]) - reached - {NEVER}
        reached |= new
        waiting += new
    return reached


def merge_states(
    start: int, transitions: NDArray[np.integer[Any]], labels: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Merge the states of an automaton that no word tells apart, and drop those not reached.

    States are numbered from 0, the start, in the order in which words reach them, shortest words
    first. Source: Moore (1956), "Gedanken-Experiments on Sequential Machines".

    Args:
        start: state before the first token.
        transitions: the next states, shape (states, tokens); ``NEVER`` where a token cannot follow.
        labels: numbers by which states differ at once, shape (states, labels).

    Returns:
        transitions: the next states of the smallest automaton, int64.
        kept: for each of its states, one of the states that it stands for, int64.
    """
    # Many letters may do the same.
    after = np.unique(transitions, axis=1)
    key, count = np.concatenate([labels, after == NEVER], 1), 0
    while True:
        classes = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)
        if classes.max() < count:
            break
        count = classes.max() + 1
        key = np.column_stack([classes, np.where(after == NEVER, NEVER, classes[after])])
    numbers, kept = {int(classes[start]): 0}, [start]
    for state in kept:
        for reached in transitions[state].tolist():
            if reached != NEVER and int(classes[reached]) not in numbers:
                numbers[int(classes[reached])] = len(kept)
                kept.append(reached)
    renumbered = np.zeros_like(classes)
    renumbered[list(numbers)] = list(numbers.values())
    rows = transitions[kept]
    return np.where(rows == NEVER, NEVER, renumbered[classes[rows]]), np.array(kept, np.int64)


@dataclass(frozen=True, eq=False)
class Automaton:
    r"""A deterministic finite automaton that answers after every token (a Mealy machine).

    .. math:: q_t = \delta(q_{t-1}, x_t), \qquad y_t = \lambda(q_{t-1}, x_t)

    Source: Mealy (1955), "A method for synthesizing sequential circuits".

    Attributes:
        start: state before the first token.
        transitions: delta, shape (states, tokens), int64; ``NEVER`` where a token cannot follow.
        outputs: lambda, shape (states, tokens), int64: the class to predict; ``IGNORED`` where the
            position is not scored.

    Example:
        >>> parity = Automaton(0, np.array([[0, 1], [1, 0]]), np.array([[0, 1], [1, 0]]))
        >>> parity.answers([1, 0, 1, 1])
        [1, 1, 0, 1]
    """

    start: int
    transitions: NDArray[np.int64]
    outputs: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("transitions", "outputs"):
            table = getattr(self, name)
            if not isinstance(table, np.ndarray) or table.dtype != np.int64:
                raise TypeError(f"{name} must be an array of int64, got {table!r}")
            if table.ndim != 2 or table.size == 0:
                raise ValueError(f"{name} must have shape (states, tokens), got {table.shape}")
        if self.transitions.shape != self.outputs.shape:
            raise ValueError(
                f"outputs must have the shape of transitions {self.transitions.shape}, got "
                f"{self.outputs.shape}"
            )
        if not isinstance(self.start, int | np.integer) or isinstance(self.start, bool):
            raise TypeError(f"start must be an int, got {self.start!r}")
        if not 0 <= self.start < self.num_states:
            raise ValueError(f"start must be in 0..{self.num_states - 1}, got {self.start}")
        if self.transitions.min() < NEVER or self.transitions.max() >= self.num_states:
            states = np.unique(self.transitions).tolist()
            raise ValueError(f"transitions must be in -1..{self.num_states - 1}, got {states}")
        if ((self.outputs < 0) & (self.outputs != IGNORED)).any():
            raise ValueError(f"outputs must be at least 0, or {IGNORED}, got {self.outputs.min()}")

    @property
    def num_states(self) -> int:
        """Number of states."""
        return len(self.transitions)

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return int(self.transitions.shape[1])

    def answers(self, word: Iterable[int]) -> list[int]:
        """Return the outputs along a word."""
        state, answers = self.start, []
        for position, token in enumerate(word):
            if not 0 <= token < self.num_tokens:
                raise ValueError(f"tokens must be in 0..{self.num_tokens - 1}, got {token}")
            after = int(self.transitions[state, token])
            if after == NEVER:
                raise ValueError(f"token {token} cannot stand at position {position}")
            answers.append(int(self.outputs[state, token]))
            state = after
        return answers


@runtime_checkable
class HasAutomaton(Protocol):
    """A task that a finite automaton solves on words of every length."""

    def automaton(self) -> Automaton:
        """Return the automaton, with the task's tokens and the classes of its first head."""
        ...


def telling_letters(automaton: Automaton) -> NDArray[np.int64]:
    """Return how words tell states apart: the first letter of a shortest word, (states, states).

    The two states answer a letter of the word differently. The entry is ``NEVER`` if no word that
    can follow both states tells them apart. The rest of a word is that of the states after its
    first letter. Source: Chow (1978), "Testing Software Design Modeled by Finite-State Machines".
    """
    after, answers = automaton.transitions, automaton.outputs
    can_follow = (after[:, None] != NEVER) & (after != NEVER)
    letters = np.full(can_follow.shape[:2], NEVER)
    tells = can_follow & (answers[:, None] != answers)
    while (new := (letters == NEVER) & tells.any(2)).any():
        letters[new] = tells.argmax(2)[new]
        tells = can_follow & (letters[after[:, None], after] != NEVER)
    return letters
