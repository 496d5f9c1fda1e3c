"""Networks that are proven by structure as index maps: an integer for each letter and entry."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statemix.proofs.check_certificate import check_structure
from statemix.proofs.state_machine import braces, c_source, require_numbers

# Entries of the maps that are composed at the same time.
_MOST_MAPPED = 2_000_000
# Each place has a content for each value.
_MOST_VALUES = 1_000_000


@dataclass(frozen=True, eq=False)
class EntryMachine:
    """A network whose letters copy and load the entries of its state.

    An entry holds a value, which is a number from 0. The machine answers for several places.

    Attributes:
        start: the value in each entry before the first letter, shape (entries,), int32.
        rules: what each entry holds after a letter, shape (letters, entries), int32: j for a copy
            of entry j, -1 - v for value v. All rules of a letter read the state before the letter.
        read: the entry that answers for each place, shape (places,), int32.
        contents: the answer of a place for each value of its entry, shape (places, values), int32;
            -1 for a value that stands for no content of the place.

    Example:
        >>> swap = EntryMachine(
        ...     np.array([0, 1]), np.array([[1, 0]]), np.array([0, 1]), np.array([[0, 1], [0, 1]])
        ... )
        >>> swap.answers(swap.run([0, 0, 0]))
        array([1, 0])
    """

    start: NDArray[np.int32]
    rules: NDArray[np.int32]
    read: NDArray[np.int32]
    contents: NDArray[np.int32]

    @classmethod
    def from_tables(cls, tables: dict[str, Any]) -> Self:
        """Keep the entries that answer, and those that they copy; a proof by structure has them."""
        check_structure(tables)
        rules = np.array(tables["letters"], dtype=np.int32)
        held = [number for rows in tables["codes"] for _, *code in rows for number in code]
        num_values = 1 + max([*tables["start"], *held, int(-1 - rules.min(initial=-1))])
        if num_values > _MOST_VALUES:
            raise ValueError(f"values must be at most {_MOST_VALUES:,}, got {num_values:,}")
        contents = np.full((tables["heads"], num_values), -1, dtype=np.int32)
        read = []
        for place, row in enumerate(contents):
            codes = tables["codes"][place]
            for column, entry in enumerate(tables["followers"][place], 1):
                told = {(code[column], code[0]) for code in codes}
                if len({value for value, _ in told}) == len(told):
                    read.append(entry)
                    row[[value for value, _ in told]] = [content for _, content in told]
                    break
            else:
                raise ValueError(f"no single entry determines the content of place {place}")
        # With the entries that answer, all that words copy into these.
        needed = new = set(read)
        while new:
            sources = rules[:, sorted(new)]
            new = set(sources[sources >= 0].tolist()) - needed
            needed = needed | new
        kept = sorted(needed)
        renumbered = np.full(rules.shape[1], -1, dtype=np.int32)
        renumbered[kept] = np.arange(len(kept))
        rules = rules[:, kept]
        return cls(
            np.array(tables["start"], dtype=np.int32)[kept],
            np.where(rules < 0, rules, renumbered[np.maximum(rules, 0)]),
            renumbered[read],
            contents,
        )

    @property
    def summary(self) -> str:
        """How large the machine is."""
        letters, entries = self.rules.shape
        return f"{entries:,} entries, {letters:,} letters, {len(self.read):,} answers"

    def run(self, tokens: ArrayLike, state: ArrayLike | None = None) -> NDArray[np.int32]:
        """Follow words, whose letters are maps of entries: many are composed at the same time.

        Args:
            tokens: integers, shape (T,) or (B, T).
            state: values before the words, shape (entries,) or (B, entries); None means ``start``.

        Returns:
            The values after the words, shape (entries,) or (B, entries).
        """
        words = np.asarray(tokens)
        before = np.asarray(self.start if state is None else state)
        require_numbers("tokens", words, len(self.rules))
        require_numbers("state", before, self.contents.shape[1])
        shape = (*words.shape[:-1], len(self.start))
        if words.ndim not in (1, 2) or before.shape not in (self.start.shape, shape):
            raise ValueError(
                "tokens must have shape (T,) or (B, T) and state (entries,) or (B, entries), got "
                f"{words.shape} and {before.shape}"
            )
        # Loading its values makes a state the map of a first letter.
        reached = np.broadcast_to(-1 - before.astype(np.int32), shape)
        part = max(_MOST_MAPPED // max(reached.size, 1), 1)
        for begin in range(0, words.shape[-1], part):
            letters = words[..., begin : begin + part]
            reached = _then(reached, _composed(self.rules[letters]))
        return -1 - reached

    def answers(self, state: ArrayLike) -> NDArray[np.int32]:
        """Return the answers for all places.

        Args:
            state: values, shape (..., entries).

        Returns:
            The answers, shape (..., places); -1 where a value stands for no content of the place.
        """
        held = np.asarray(state)
        require_numbers("state", held, self.contents.shape[1])
        if held.shape[-1:] != self.start.shape:
            raise ValueError(
                f"state must have {len(self.start)} entries on its last axis, got {held.shape}"
            )
        answers: NDArray[np.int32] = self.contents[np.arange(len(self.read)), held[..., self.read]]
        return answers

    def to_c(self, name: str, comment: str = "") -> str:
        """Return a C file, as :meth:`StateMachine.to_c` does."""
        letters, entries = self.rules.shape
        places, values = self.contents.shape
        small = max(values, entries) <= 2**7
        return c_source(
            _C,
            name,
            comment,
            entries=entries,
            letters=letters,
            places=places,
            values=values,
            # Below 2^8 values, a bad one can be told.
            value="uint8_t" if values < 2**8 else "uint32_t",
            rule="int8_t" if small else "int32_t",
            start=", ".join(map(str, self.start.tolist())),
            rules=braces(self.rules),
            read=", ".join(map(str, self.read.tolist())),
            contents=braces(self.contents),
        )


def _then(first: NDArray[np.int32], second: NDArray[np.int32]) -> NDArray[np.int32]:
    """Compose maps of entries, shape (..., entries)."""
    copied = np.take_along_axis(first, np.maximum(second, 0).astype(np.intp), -1)
    return np.where(second < 0, second, copied)


def _composed(maps: NDArray[np.int32]) -> NDArray[np.int32]:
    """Compose maps (..., T, entries) in order, T > 0; return (..., entries)."""
    while (length := maps.shape[-2]) > 1:
        pairs = _then(maps[..., : length - 1 : 2, :], maps[..., 1::2, :])
        maps = np.concatenate([pairs, maps[..., -1:, :]], -2) if length % 2 else pairs
    return maps[..., 0, :]


_C = """\
/* Index maps: {entries} entries, {letters} letters. Written by Statemix.{comment} */
#include <stddef.h>
#include <stdint.h>

typedef struct {{ {value} entry[{entries}]; }} {name}_state;

enum {{ {name}_num_letters = {letters}, {name}_num_places = {places} }};

/* The values before the first letter. */
static const {name}_state {name}_start = {{{{{start}}}}};

/* What each entry holds after a letter: j for a copy of entry j, -1 - v for value v. */
static const {rule} {name}_rules[{letters}][{entries}] = {{
{rules}
}};

/* The entry that answers for each place, and the answer for each of its values. */
static const uint32_t {name}_read[{places}] = {{{read}}};
static const int32_t {name}_contents[{places}][{values}] = {{
{contents}
}};

/* Write the state before the first letter: call this function before all others. */
void {name}_begin({name}_state *state) {{ *state = {name}_start; }}

/* Read a letter: return 0, or return -2 and change nothing if the letter is unknown. */
int32_t {name}_step({name}_state *state, uint32_t letter) {{
  if (letter >= {letters}) return -2;
  {name}_state before = *state;
  for (size_t i = 0; i < {entries}; ++i) {{
    int32_t rule = {name}_rules[letter][i];
    state->entry[i] = rule < 0 ? ({value})(-1 - rule) : before.entry[rule];
  }}
  return 0;
}}

/* Read letters, and return how many were read before an unknown letter. */
size_t {name}_run({name}_state *state, const uint32_t *letters, size_t count) {{
  size_t read = 0;
  while (read < count && {name}_step(state, letters[read]) == 0) ++read;
  return read;
}}

/* Return the answer for a place: -1 if its value stands for no content, -2 if the place is unknown
   or its entry holds no value. */
int32_t {name}_answer(const {name}_state *state, uint32_t place) {{
  if (place >= {places} || state->entry[{name}_read[place]] >= {values}) return -2;
  return {name}_contents[place][state->entry[{name}_read[place]]];
}}
"""
