"""Rubik's cube: what turns do, by facts that every cube shows."""

import numpy as np
import pytest

from statemix import tasks
from statemix.errors import OptionError
from statemix_lab.tasks.cube import COLOURS, TURNS, cube_rules, cube_text, read_turns


def after(text, start=None):
    return cube_rules().contents(read_turns(text)[None], start)[0, -1]


def order(text):
    """The number of times after which a sequence of turns first does nothing to any sticker."""
    places = np.arange(48)
    once = places
    for token in read_turns(text):
        once = once[cube_rules().sources[token]]
    now, count = once, 1
    while (now != places).any():
        now, count = now[once], count + 1
    return count


def test_orders_of_sequences_are_the_known_ones():
    assert [order(turn) for turn in TURNS] == [4, 2, 4] * 6
    known = {"R U R' U'": 6, "R U": 105, "R U'": 63, "R U2": 30, "R L": 4, "U D'": 4, "F B2": 4}
    assert {text: order(text) for text in known} == known
    for one, other in ("RL", "UD", "FB"):
        assert (after(f"{one} {other}", np.arange(48)[None] % 6)
                == after(f"{other} {one}", np.arange(48)[None] % 6)).all()  # fmt: skip


def test_the_checkerboard_and_the_superflip():
    """Edges are the stickers 2, 4, 5 and 7 of a face; the superflip turns all twelve over."""
    board = after("U2 D2 L2 R2 F2 B2").reshape(6, 8)
    opposite = [COLOURS.index(face) for face in "DRBLFU"]
    edges = np.isin(np.arange(8), [1, 3, 4, 6])
    for face in range(6):
        assert (board[face] == np.where(edges, opposite[face], face)).all()
    flip = after("U R2 F B R B2 R U2 L B2 R U' D' R2 F R' L B2 U2 F2").reshape(6, 8)
    # Up, its edge stickers show the colours of the faces behind, left, right and in front.
    assert [COLOURS[one] for one in flip[0][edges]] == ["B", "L", "R", "F"]
    assert [COLOURS[one] for one in flip[2][edges]] == ["U", "L", "R", "D"]
    assert (flip[:, ~edges] == np.arange(6)[:, None]).all()


def test_turns_are_clockwise_as_seen_from_outside():
    assert cube_text(after("R")).splitlines() == [
        "       U U F",
        "       U U F",
        "       U U F",
        "L L L  F F D  R R R  U B B",
        "L L L  F F D  R R R  U B B",
        "L L L  F F D  R R R  U B B",
        "       D D B",
        "       D D B",
        "       D D B",
    ]
    assert (after("R R") == after("R2")).all()
    assert (after("R R'") == cube_rules().start).all()


def test_examples_follow_the_rules():
    task = tasks.build("cube", length=9)
    tokens, targets, lengths = task.examples("train", 0, 300)
    assert (lengths, tokens.shape, np.unique(tokens).tolist()) == (None, (300, 9), [*range(18)])
    labels = np.stack(list(targets.values()), axis=-1)
    np.testing.assert_array_equal(labels, cube_rules().contents(tokens))
    np.testing.assert_array_equal(task.words("train", 5, 7, 9), tokens[5:7])
    assert [*targets][:2] == ["U1", "U2"]
    assert task.places() is cube_rules()
    text = task.describe(0)
    assert text.startswith("train example 0 of Rubik's cube, 9 turns\n")
    turns = text.splitlines()[1].strip()
    assert [*text.splitlines()[2:]] == [
        f"  {line}" for line in cube_text(after(turns)).splitlines()
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "moves must be at least one"), ("R u", "moves must be of U, U2, U', .*, got 'u'")],
)
def test_unknown_turns_are_named(text, message):
    with pytest.raises(OptionError, match=message):
        read_turns(text)
