"""Rubik's cube: follow the colours of all stickers from the turns of the faces."""

from functools import cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.errors import OptionError
from statemix.place_rules import PlaceRules
from statemix.tasks import addressing
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import PlacesTask, Raw
from statemix_lab.tasks import example_picture

COLOURS = "ULFRBD"
"""The six colours, named after the faces that have them in a solved cube: up, left, front, right,
back and down."""

_STICKERS = 8
# The cycles of a quarter turn, clockwise as seen from outside. Faces have the order of the colours.
# The stickers of a face are counted from 1, row by row, without the middle one.
_QUARTERS = {
    "U": "1 3 8 6, 2 5 7 4, 9 33 25 17, 10 34 26 18, 11 35 27 19",
    "L": "9 11 16 14, 10 13 15 12, 1 17 41 40, 4 20 44 37, 6 22 46 35",
    "F": "17 19 24 22, 18 21 23 20, 6 25 43 16, 7 28 42 13, 8 30 41 11",
    "R": "25 27 32 30, 26 29 31 28, 3 38 43 19, 5 36 45 21, 8 33 48 24",
    "B": "33 35 40 38, 34 37 39 36, 3 9 46 32, 2 12 47 29, 1 14 48 27",
    "D": "41 43 48 46, 42 45 47 44, 14 22 30 38, 15 23 31 39, 16 24 32 40",
}
TURNS = tuple(face + turn for face in COLOURS for turn in ("", "2", "'"))
"""The 18 turns: each face by a quarter clockwise, by a half, and by a quarter back."""


@cache
def cube_rules() -> PlaceRules:
    """Return what each of ``TURNS`` does to the 48 stickers, which hold one of six colours."""
    size = len(COLOURS) * _STICKERS
    sources = []
    for cycles in _QUARTERS.values():
        quarter = np.arange(size)
        for cycle in cycles.split(","):
            places = np.array(cycle.split(), dtype=np.int64) - 1
            quarter[np.roll(places, -1)] = places
        half = quarter[quarter]
        sources += [quarter, half, half[quarter]]
    return PlaceRules(np.arange(size) // _STICKERS, np.stack(sources), len(COLOURS))


def read_turns(text: str) -> NDArray[np.int64]:
    """Return the tokens of turns in the usual notation, such as "R U R' U2", shape (turns,)."""
    turns = text.split()
    if not turns:
        raise OptionError("moves must be at least one, got none")
    for turn in turns:
        if turn not in TURNS:
            raise OptionError(f"moves must be of {', '.join(TURNS)}, got {turn!r}")
    return np.array([TURNS.index(turn) for turn in turns])


def cube_text(contents: NDArray[np.int64]) -> str:
    """Return the colours of 48 stickers as text: the face up, left to back, then the face down."""
    faces = []
    for face in range(len(COLOURS)):
        stickers = contents[face * _STICKERS : (face + 1) * _STICKERS]
        around = [COLOURS[colour] for colour in stickers]
        cells = [*around[:4], COLOURS[face], *around[4:]]
        faces.append([" ".join(cells[row : row + 3]) for row in (0, 3, 6)])
    margin = " " * 7
    return "\n".join(
        [
            *(margin + row for row in faces[0]),
            *("  ".join(rows) for rows in zip(*faces[1:5], strict=True)),
            *(margin + row for row in faces[5]),
        ]
    )


class Cube(PlacesTask):
    r"""Follow a Rubik's cube: after every turn, answer with the colours of all 48 stickers.

    A word starts with the solved cube, and its turns are uniform over the 18 turns of faces: by a
    quarter (U), by a half (U2) and by a quarter back (U'), for the faces up, left, front, right,
    back and down. A turn g carries the colour of sticker i to sticker g(i),

    .. math:: c_t(g(i)) = c_{t-1}(i)

    The cube has 4.3e19 states. Every position is scored, with a head for each sticker.
    """

    name: ClassVar[str] = "cube"
    vocab_size = len(TURNS)
    title = "Rubik's cube"

    def __init__(self, *, length: int = 16, train_size: int | None = None, seed: int = 0) -> None:
        super().__init__(length=length, train_size=train_size, seed=seed)

    @property
    def heads(self) -> dict[str, int]:
        return {
            f"{face}{sticker}": len(COLOURS)
            for face in COLOURS
            for sticker in range(1, _STICKERS + 1)
        }

    def places(self) -> PlaceRules:
        """Return what turns do to stickers."""
        return cube_rules()

    def words(
        self, split: addressing.Split, start: int, stop: int, length: int
    ) -> NDArray[np.int64]:
        """Return the turns of examples alone, as ``examples`` makes them, shape (N, length)."""
        raw = addressing.draws(
            self.name, length, seed=self.seed, split=split, start=start, stop=stop
        )
        return addressing.below(raw, self.vocab_size)

    def word(self, token: int) -> str:
        return TURNS[token]

    def label(self, target: int) -> str:
        return COLOURS[target]

    def describe(self, index: int, split: addressing.Split = "train") -> str:
        """Return one example as text: its turns, and the cube after the last one."""
        return example_picture(self, index, split, unit="turns", per_line=24, picture=cube_text)

    def _count(self, length: int) -> int:
        return length

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        del length, split
        tokens = addressing.below(raw, self.vocab_size)
        return self._labelled(tokens, cube_rules().contents(tokens))
