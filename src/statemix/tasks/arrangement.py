"""Arrangement: follow objects that moves carry from place to place."""

import re
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.errors import OptionError
from statemix.place_rules import PlaceRules
from statemix.tasks import addressing
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import PlacesTask, Raw

GENERATORS: dict[str, dict[str, object]] = {
    "S_6": {"moves": "(1 2); (1 2 3 4 5 6)"},
    "S_8": {"moves": "(1 2); (1 2 3 4 5 6 7 8)"},
    "S_10": {"moves": "(1 2); (1 2 3 4 5 6 7 8 9 10)"},
    "PSL(2,7)": {"moves": "(1 2 3 4 5 6 7); (1 2)(3 6)"},
    "S_3 x S_3": {"moves": "(1 2); (1 2 3); (4 5); (4 5 6)", "held_out": "1 3; 2 4"},
}
"""Groups by generators: the symmetric groups, the simple group of order 168 on 7 points, and a
product of groups, whose training words lack pairs of moves."""

_MOST_PLACES = 64
_MOVE = re.compile(r"\s*(?:\(\s*\d+(?:[\s,]+\d+)*\s*\)\s*)+")


class Arrangement(PlacesTask):
    r"""Follow objects: after every move, name the object at each place.

    Object i is at place i before the first move. A move g carries what is at place i to place g(i),

    .. math:: c_t(g(i)) = c_{t-1}(i), \qquad c_0(i) = i

    So words of moves are words of the group that the moves generate, which may have any size. The
    task has a head for each place. Words are uniform over the moves, and every position is scored.

    With ``held_out``, some moves never follow some others in training and validation words. Each
    move is uniform among those that may follow. Test words have all pairs.

    Args:
        moves: permutations in cycle notation, separated by semicolons, one for each token.
        held_out: pairs of moves, such as "1 3; 2 4": the third move never follows the first, nor
            the fourth the second. Moves are counted from 1 in their order. None holds out no pair.
        length: moves of a training word; tests may go beyond.
    """

    name: ClassVar[str] = "arrangement"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = GENERATORS

    def __init__(
        self,
        *,
        moves: str = "(1 2); (1 2 3 4 5)",
        held_out: str | None = None,
        length: int = 16,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(length=length, train_size=train_size, seed=seed)
        self.moves = moves
        self._texts = _texts(moves)
        size = max(int(point) for text in self._texts for point in re.findall(r"\d+", text))
        if size > _MOST_PLACES:
            raise OptionError(f"moves must have places up to {_MOST_PLACES}, got {size}")
        # Where each move carries each place.
        images = np.tile(np.arange(size), (len(self._texts), 1))
        for row, text in zip(images, self._texts, strict=True):
            for cycle in re.findall(r"\(.*?\)", text):
                points = np.array(re.findall(r"\d+", cycle), dtype=np.int64) - 1
                row[points] = np.roll(points, -1)
        self._rules = PlaceRules(np.arange(size), np.argsort(images, axis=1), size)
        self.held_out = held_out
        self._may_follow = _may_follow(held_out, len(self._texts))
        self.title = f"arrangements of {self._rules.num_places} places"

    @property
    def vocab_size(self) -> int:  # type: ignore[override]  # fixed once the moves are known
        return self._rules.num_tokens

    @property
    def heads(self) -> dict[str, int]:
        numbers = range(1, self._rules.num_places + 1)
        return {f"place_{number}": self._rules.num_contents for number in numbers}

    def places(self) -> PlaceRules:
        """Return what moves do to places."""
        return self._rules

    def word(self, token: int) -> str:
        return self._texts[token]

    def label(self, target: int) -> str:
        return str(target + 1)

    def describe(self, index: int, split: addressing.Split = "train") -> str:
        """Return one example as text: each move, and the objects at all places after it."""
        tokens, targets, _ = self.examples(split, index, index + 1)
        width = max(map(len, self._texts))
        lines = [f"{split} example {index} of {self.title}, {self.length} moves"]
        for position, token in enumerate(tokens[0].tolist()):
            objects = [self.label(int(one[0, position])) for one in targets.values()]
            lines.append(f"  {self.word(token):<{width}}  {' '.join(objects)}")
        return "\n".join(lines)

    def _count(self, length: int) -> int:
        return length

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        if split == "test" or self.held_out is None:
            tokens = addressing.below(raw, self.vocab_size)
        else:
            sizes = self._may_follow.sum(1)
            # The moves that may follow come first. Row -1 is that of the first move.
            moves = np.argsort(~self._may_follow, axis=1, kind="stable")
            tokens = np.empty(raw.shape, dtype=np.int64)
            before = np.full(len(raw), -1)
            for t in range(length):
                before = moves[before, addressing.below(raw[:, t], sizes[before])]
                tokens[:, t] = before
        return self._labelled(tokens, self._rules.contents(tokens))


def _texts(moves: object) -> list[str]:
    texts = _parts("moves", moves)
    for text in texts:
        if not _MOVE.fullmatch(text):
            cycles = "cycles such as '(1 2)(3 4)', separated by ';'"
            raise OptionError(f"moves must be {cycles}, got {text!r}")
        points = [int(point) for point in re.findall(r"\d+", text)]
        if len(set(points)) < len(points) or min(points) < 1:
            raise OptionError(f"moves must name each place from 1 on at most once, got {text!r}")
    if len(texts) < 2:
        raise OptionError(f"moves must be at least two, separated by ';', got {moves!r}")
    return texts


def _parts(option: str, value: object) -> list[str]:
    if not isinstance(value, str):
        raise OptionError(f"{option} must be a string, got {value!r}")
    return [part.strip() for part in value.split(";") if part.strip()]


def _may_follow(held_out: object, count: int) -> NDArray[np.bool_]:
    """Return which move may follow each move in training, and in the last row, which may begin.

    Shape (moves + 1, moves).
    """
    may_follow = np.ones((count + 1, count), dtype=np.bool_)
    if held_out is None:
        return may_follow
    for pair in _parts("held_out", held_out) or [""]:
        known = re.fullmatch(r"(\d+)\s+(\d+)", pair)
        if known is None or not all(1 <= int(move) <= count for move in known.groups()):
            pairs = f"pairs of the moves 1 to {count} such as '1 3', separated by ';'"
            raise OptionError(f"held_out must be {pairs}, got {pair!r}")
        may_follow[int(known[1]) - 1, int(known[2]) - 1] = False
    if not (leaves := may_follow.any(1)).all():
        move = f"a move that may follow move {leaves.argmin() + 1}"
        raise OptionError(f"held_out must leave {move}, got {held_out!r}")
    return may_follow
