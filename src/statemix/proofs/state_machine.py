"""Proven networks as state machines: one table look-up for each token, in NumPy or in C."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statemix.automaton import merge_states
from statemix.proofs.check_certificate import check, step

# Shorter words are followed letter by letter, longer ones in parts.
_SEQUENTIAL_LENGTH = 64
# Entries of the maps of all parts, beyond which maps take longer than they save.
_MOST_MAPPED = 2_000_000


@dataclass(frozen=True, eq=False)
class StateMachine:
    """A network with finitely many states, each with a number.

    Attributes:
        transitions: the state after each letter, shape (states, letters), int32; -1 where no word
            of the task has this letter.
        answers: the network's answer after each letter, same shape and dtype; -1 where nothing is
            scored. The machine starts in state 0.

    Example:
        >>> parity = StateMachine(np.array([[0, 1], [1, 0]]), np.array([[0, 1], [1, 0]]))
        >>> parity.run([1, 0, 1, 1])
        (array([1, 1, 0, 1]), array(1))
    """

    transitions: NDArray[np.int32]
    answers: NDArray[np.int32]

    def __post_init__(self) -> None:
        """Check the tables, which may come from a file."""
        if self.transitions.ndim != 2 or self.answers.shape != self.transitions.shape:
            raise ValueError(
                "transitions and answers must both have shape (states, letters), got "
                f"{self.transitions.shape} and {self.answers.shape}"
            )
        require_numbers("transitions", self.transitions, len(self.transitions), least=-1)
        require_numbers("answers", self.answers, 2**31, least=-1)

    @classmethod
    def from_tables(cls, tables: dict[str, Any]) -> Self:
        """Return the smallest machine of a network that the tables of a certificate describe."""
        _, word = check(tables)
        if word is not None:
            raise ValueError(f"tables must be those of a proof, got a wrong answer after {word}")
        letters, task_moves = tables["letters"], tables["automaton"]["transitions"]
        answers = dict(zip(map(tuple, tables["states"]), tables["answers"], strict=True))
        first = tuple(tables["start"])
        # State -> its row of next states and of answers, -1 where no word has the letter.
        moves, given = (defaultdict[Any, list[int]](lambda: [-1] * len(letters)) for _ in range(2))
        numbers, waiting = {first: 0}, [(first, tables["automaton"]["start"])]
        seen = set(waiting)
        for state, task_state in waiting:
            for letter, next_task_state in enumerate(task_moves[task_state]):
                if next_task_state < 0:
                    continue
                after = step(state, letters[letter])
                moves[state][letter] = numbers.setdefault(after, len(numbers))
                given[state][letter] = answers[after][letter]
                if (after, next_task_state) not in seen:
                    seen.add((after, next_task_state))
                    waiting.append((after, next_task_state))
        tables_of_states = ([rows[state] for state in numbers] for rows in (moves, given))
        return cls(*(np.array(table, dtype=np.int32) for table in tables_of_states)).minimized()

    def minimized(self) -> Self:
        """Return the smallest machine that gives the same answers to all words."""
        transitions, kept = merge_states(0, self.transitions, self.answers)
        return type(self)(transitions.astype(np.int32), self.answers[kept])

    @property
    def summary(self) -> str:
        """How large the machine is."""
        return f"{self.num_states:,} states, {self.num_letters:,} letters"

    @property
    def num_states(self) -> int:
        """Number of states."""
        return len(self.transitions)

    @property
    def num_letters(self) -> int:
        """Number of letters."""
        return int(self.transitions.shape[1])

    def run(
        self, tokens: ArrayLike, state: ArrayLike = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Follow words, which are maps of states: parts of a long word are composed at once.

        Args:
            tokens: integers, shape (T,) or (B, T).
            state: states before the words, one or shape (B,).

        Returns:
            answers: answer after each token, -1 where nothing is scored, the shape of tokens.
            state: states after the words, shape () or (B,).
        """
        words, before = np.asarray(tokens), np.asarray(state)
        require_numbers("tokens", words, self.num_letters)
        require_numbers("state", before, self.num_states)
        if words.ndim not in (1, 2) or before.shape not in ((), words.shape[:-1]):
            raise ValueError(
                "tokens must have shape (T,) or (B, T) and state () or (B,), got "
                f"{words.shape} and {before.shape}"
            )
        rows = np.atleast_2d(words).astype(np.intp)
        sink = self.num_states
        table = np.full((sink + 1, self.num_letters), sink, dtype=np.intp)
        table[:sink] = np.where(self.transitions < 0, sink, self.transitions)
        # A state is the place where its row of the flat table begins: add a letter, and look up.
        table *= self.num_letters
        starts = np.broadcast_to(before, len(rows)).astype(np.intp) * self.num_letters
        taken, ends = _follow(table, rows, starts)
        if rows.size and (stuck := ends == sink * self.num_letters).any():
            row = int(np.argmax(stuck))
            position = int(np.argmax(table.ravel()[taken[row]] == ends[row]))
            raise ValueError(f"token {rows[row, position]} cannot follow at {position}")
        answers = self.answers.astype(np.int64).ravel().take(taken)
        last = ends // max(self.num_letters, 1)
        return answers.reshape(words.shape), last.reshape(words.shape[:-1])

    def to_c(self, name: str, comment: str = "") -> str:
        """Return a C99 file without dependencies that runs the machine.

        Args:
            name: prefix of the functions.
            comment: lines for the comment at the top, such as the names of letters and answers.
        """
        sink = self.num_states
        return c_source(
            _C,
            name,
            comment,
            states=sink,
            letters=self.num_letters,
            state="uint8_t" if sink < 2**8 else "uint16_t" if sink < 2**16 else "uint32_t",
            transitions=braces(np.where(self.transitions < 0, sink, self.transitions)),
            answers=braces(np.where(self.transitions < 0, -2, self.answers)),
        )


def _follow(
    table: NDArray[np.intp], rows: NDArray[np.intp], states: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the place in the table of each letter of words (B, T), and the states after them."""
    count, length = rows.shape
    part = int(np.ceil(np.sqrt(length)))
    if length <= _SEQUENTIAL_LENGTH or count * part * len(table) > _MOST_MAPPED:
        return _in_order(table, rows, states)
    whole = length // part * part
    pieces = rows[:, :whole].reshape(-1, part)
    num_letters = table.shape[1]
    maps = np.tile(np.arange(len(table))[:, None] * num_letters, len(pieces))
    for letters in np.ascontiguousarray(pieces.T):
        # Every place is in the table, and "clip" does not check that.
        maps = table.take(maps + letters, mode="clip")
    starts = np.empty((whole // part, count), dtype=np.intp)
    for number, of_words in enumerate(
        maps.T.reshape(count, whole // part, len(table)).transpose(1, 0, 2)
    ):
        starts[number] = states
        states = of_words[np.arange(count), states // num_letters]
    taken = np.empty(rows.shape, dtype=np.intp)
    inner, _ = _in_order(table, pieces, starts.T.ravel())
    taken[:, :whole] = inner.reshape(count, whole)
    taken[:, whole:], states = _in_order(table, rows[:, whole:], states)
    return taken, states


def _in_order(
    table: NDArray[np.intp], rows: NDArray[np.intp], states: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Do the same one letter after the other."""
    taken = rows.T.copy()
    for places in taken:
        places += states
        states = table.take(places, mode="clip")
    return taken.T, states


def require_numbers(name: str, numbers: NDArray[Any], limit: int, least: int = 0) -> None:
    """Refuse numbers that are no integers in least ... limit - 1."""
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise TypeError(f"{name} must be integers, got {numbers.dtype}")
    if numbers.size and not least <= numbers.min() <= numbers.max() < limit:
        raise ValueError(
            f"{name} must be in {least}..{limit - 1}, got {numbers.min()}..{numbers.max()}"
        )


def c_source(template: str, name: str, comment: str, **parts: object) -> str:
    """Fill in a C file, whose functions begin with a name, and whose first comment has lines."""
    if not (name.isascii() and name.isidentifier()):
        raise ValueError(f"name must be an identifier of C, got {name!r}")
    # "*/" would end the comment, and compilers warn of "/*".
    text = comment.replace("*/", "* /").replace("/*", "/ *")
    lines = "".join(f"\n   {line}" for line in text.splitlines())
    return template.format(name=name, comment=lines, **parts)


def braces(table: NDArray[np.int32]) -> str:
    """Write a table as an initialiser of C."""
    return ",\n".join("    {" + ", ".join(map(str, row)) + "}" for row in table.tolist())


_C = """\
/* A state machine: {states} states, {letters} letters. Written by Statemix.{comment} */
#include <stddef.h>
#include <stdint.h>

typedef {state} {name}_state;

enum {{ {name}_start = 0, {name}_num_states = {states}, {name}_num_letters = {letters} }};

/* The state after each letter; {name}_num_states where the letter cannot follow. */
static const {name}_state {name}_transitions[{states}][{letters}] = {{
{transitions}
}};

/* The answer after each letter; -1 where nothing is scored, -2 where the letter cannot follow. */
static const int32_t {name}_answers[{states}][{letters}] = {{
{answers}
}};

/* Read a letter: return the answer, and move on unless the letter is unknown or cannot follow. */
int32_t {name}_step({name}_state *state, uint32_t letter) {{
  if (*state >= {states} || letter >= {letters} || {name}_answers[*state][letter] == -2) return -2;
  int32_t answer = {name}_answers[*state][letter];
  *state = {name}_transitions[*state][letter];
  return answer;
}}

/* Read letters: write an answer for each, and return how many were read before one was refused. */
size_t {name}_run({name}_state *state, const uint32_t *letters, size_t count, int32_t *answers) {{
  size_t read = 0;
  for (; read < count; ++read) {{
    answers[read] = {name}_step(state, letters[read]);
    if (answers[read] == -2) break;
  }}
  return read;
}}
"""
