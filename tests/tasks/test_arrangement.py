"""Objects that moves carry from place to place."""

import itertools

import numpy as np
import pytest

from statemix import tasks
from statemix.errors import OptionError
from statemix.place_rules import PlaceRules
from statemix.tasks import TaskSpec
from statemix.tasks.arrangement import GENERATORS


def carried(moves, word):
    """Where the objects are, by a dictionary from place to object."""
    places = sorted({point for move in moves for point in move})
    holds = {place: place for place in places}
    found = []
    for token in word:
        holds = {moves[token][place]: thing for place, thing in holds.items()}
        found.append([holds[place] - 1 for place in places])
    return found


def test_moves_carry_objects_to_the_places_of_their_cycles():
    task = tasks.build("arrangement", moves="(1 2)(3 4); (1, 3, 4)", length=12)
    moves = [{1: 2, 2: 1, 3: 4, 4: 3}, {1: 3, 3: 4, 4: 1, 2: 2}]
    examples = task.examples("test", 0, 5)
    together = np.stack([examples.targets[f"place_{p}"] for p in range(1, 5)], axis=-1)
    for word, contents in zip(examples.tokens, together, strict=True):
        assert contents.tolist() == carried(moves, word.tolist())


@pytest.mark.parametrize(("name", "order"), [("S_6", 720), ("PSL(2,7)", 168)])
def test_presets_generate_the_groups_of_their_names(name, order):
    sources = tasks.build("arrangement", **GENERATORS[name]).places().sources
    start = tuple(range(sources.shape[1]))
    reached, new = {start}, [start]
    while new:
        states = {tuple(np.array(one)[move].tolist()) for one in new for move in sources}
        new = list(states - reached)
        reached |= states
    assert len(reached) == order


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        (3, "moves must be a string, got 3"),
        ("", "moves must be at least two, separated by ';', got ''"),
        ("(1 2); 1 2", r"moves must be cycles such as '\(1 2\)\(3 4\)', .* got '1 2'"),
        ("(1 2); (1 1)", "moves must name each place from 1 on at most once, got '\\(1 1\\)'"),
        ("(1 2); (1 65)", "moves must have places up to 64, got 65"),
    ],
)
def test_moves_that_cannot_be_read_are_named(moves, message):
    with pytest.raises(OptionError, match=message):
        tasks.build("arrangement", moves=moves)


def pairs_of(task, split):
    tokens = task.examples(split, 0, 500).tokens
    return set(zip((tokens[:, :-1] + 1).ravel(), (tokens[:, 1:] + 1).ravel(), strict=True))


def test_pairs_are_held_out_of_training_and_validation_alone():
    task = TaskSpec("arrangement", preset="S_3 x S_3", length=6).build()
    everything = set(itertools.product(range(1, 5), repeat=2))
    assert pairs_of(task, "test") == everything
    for split in ("train", "validation"):
        assert pairs_of(task, split) == everything - {(1, 3), (2, 4)}
        tokens = task.examples(split, 0, 4000).tokens
        assert set(tokens[:, 0]) == set(range(4))
        after_first = np.bincount(tokens[:, 1:][tokens[:, :-1] == 0], minlength=4)
        assert after_first[2] == 0
        assert (after_first[[0, 1, 3]] / after_first.sum()).tolist() == pytest.approx(
            [1 / 3] * 3, abs=0.02
        )


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (3, "held_out must be a string, got 3"),
        ("", "held_out must be pairs of the moves 1 to 3 such as '1 3', .* got ''"),
        ("1 2 3", "held_out must be pairs .* got '1 2 3'"),
        ("1 2; 1 4", "held_out must be pairs of the moves 1 to 3 .* got '1 4'"),
        ("2 1; 2 2; 2 3", "held_out must leave a move that may follow move 2, got '2 1; 2 2; 2 3'"),
    ],
)
def test_pairs_that_do_not_exist_are_named(held_out, message):
    with pytest.raises(OptionError, match=message):
        tasks.build("arrangement", moves="(1 2); (1 2 3); (3 4)", held_out=held_out)


def test_contents_are_moved_and_loaded():
    rules = PlaceRules(np.array([2, 0]), np.array([[1, 0], [0, -1], [-3, -2]]), 3)
    found = rules.contents(np.array([[0, 1, 2, 0]]))
    assert found.tolist() == [[[0, 2], [0, 0], [2, 1], [1, 2]]]
    assert rules.contents(np.zeros((1, 0), np.int64)).shape == (1, 0, 2)
    found = rules.contents(np.array([[0], [1]]), np.array([[1, 2], [2, 2]]))
    assert found.tolist() == [[[2, 1]], [[2, 0]]]


@pytest.mark.parametrize(
    ("start", "sources", "message"),
    [
        ([[0]], [[0]], r"start and sources must have shapes .* got \(1, 1\) and \(1, 1\)"),
        ([0], [[0, 0]], "sources must have the 1 places of start, got 2"),
        ([2], [[0]], r"start must be in 0\.\.1, got 2\.\.2"),
        ([0], [[1]], r"sources must be in -2\.\.0, got 1\.\.1"),
    ],
)
def test_rules_that_are_none_are_refused(start, sources, message):
    with pytest.raises(ValueError, match=message):
        PlaceRules(np.array(start), np.array(sources), 2)


def test_some_place_has_a_head():
    with pytest.raises(ValueError, match=r"num_hidden must be in 0\.\.0, got 1"):
        PlaceRules(np.array([0]), np.array([[0]]), 1, num_hidden=1)
