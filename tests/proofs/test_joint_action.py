"""What blocks built by hand do together, against the groups that they were built from."""

import numpy as np
import pytest

from statemix.automaton import NEVER, Automaton
from statemix.proofs import join_actions, read_actions, token_maps
from statemix.tasks.groups import group
from statemix.tasks.permutation import Permutation
from statemix_lab.inspection.layer_text import together

S_3 = (np.array(group("S_3").elements) - 1).tolist()


def answerless(transitions):
    return Automaton(0, np.array(transitions), np.zeros_like(transitions))


def cycle(length):
    """Tokens 0 and 1 add 0 and 1."""
    return answerless([[state, (state + 1) % length] for state in range(length)])


def of_blocks(tracker, *blocks, start=(1.0, 2.0, 3.0, 4.0)):
    """A model whose blocks are written by the learned token, which comes last."""
    size = len(blocks[0][0])
    sources = [[*block, [-1] * size] for block in blocks]
    values = [[[0.0] * size] * len(block) + [list(start[:size])] for block in blocks]
    return tracker(sources, values, np.ones((2, size * len(blocks))), 2)


def joined(model, automaton=None, name=None):
    return join_actions(model, read_actions(model, automaton), automaton, name=name)


@pytest.mark.parametrize("name", ["S_3", "A_5"])
def test_a_tracker_generates_its_group(of_group, name):
    task = Permutation(group=name)
    order = task.group.order
    found = joined(of_group(name), task.automaton(), name)
    assert found == {
        "blocks": [0],
        "order": order,
        "most": 5000,
        "group": True,
        "task": name,
        "task_order": order,
        "relation": "isomorphic",
    }
    assert together(found) == (
        f"with gates of 0 and 1: block 0 generates a group of order {order}, isomorphic to {name} "
        "by its tokens"
    )


TWOS, THREES = [[0, 1, 2], [1, 0, 2]], [[0, 1, 2], [2, 0, 1]]


@pytest.mark.parametrize(
    ("blocks", "task", "expected", "said"),
    [
        # Blocks that repeat another one are kept, and those that do not track are not.
        (
            [S_3, [[1, 2, 0]] * 6, S_3],
            Permutation(group="S_3").automaton(),
            {"blocks": [0, 2], "order": 6, "group": True, "relation": "isomorphic"},
            "blocks 0, 2 together generate a group of order 6",
        ),
        # Without a task, there is nothing to prefer.
        (
            [S_3, [[1, 2, 0]] * 6, S_3],
            None,
            {"blocks": [0, 1, 2], "order": 18, "task": None, "relation": None},
            "blocks 0–2 together generate a group of order 18",
        ),
        # Two small cycles make a large one.
        (
            [TWOS, THREES],
            cycle(6),
            {"blocks": [0, 1], "order": 6, "task": "Z_6", "relation": "isomorphic"},
            "order 6, isomorphic to Z_6",
        ),
        ([THREES], cycle(6), {"order": 3, "relation": "quotient"}, "a quotient of Z_6"),
        # Zeros are counted too, so that the block does not track parity.
        (
            [[[0, 1, 3, 2], [1, 0, 2, 3]]],
            cycle(2),
            {"blocks": [0], "order": 4, "task": "Z_2", "task_order": 2, "relation": "cover"},
            "order 4, of which Z_2 is a quotient by its tokens",
        ),
        # Two tokens set the entries; the third one does nothing.
        (
            [[[0, 0], [1, 1], [0, 1]]],
            answerless([[1, 2, 0], [1, 1, 1], [2, 2, 2]]),
            {"group": False, "order": 3, "task": "the task's semigroup"},
            "block 0 generates a semigroup of order 3, isomorphic to the task's",
        ),
        # Maps that permute an image form a group if the task does: entry 2 follows entry 0.
        (
            [[[0, 1, 0], [1, 0, 1]]],
            cycle(2),
            {"group": True, "order": 2, "relation": "isomorphic"},
            "a group of order 2",
        ),
        # A token that generates all maps is no cycle unless it permutes.
        ([[[1, 0]]], answerless([[1], [2], [2]]), {"task": "the task's semigroup"}, "order 2"),
        # After words that cannot follow, the network may do anything.
        (
            [[[1, 0], [1, 0]]],
            answerless([[1, NEVER], [NEVER, 0]]),
            {"order": 2, "task": None, "task_order": None},
            "generates a group of order 2",
        ),
    ],
)
def test_blocks_are_related_to_the_task(tracker, blocks, task, expected, said):
    found = joined(of_blocks(tracker, *blocks), task)
    assert {key: found[key] for key in expected} == expected
    assert said in together(found)


def test_blocks_that_nothing_changes_generate_nothing(tracker):
    assert joined(of_blocks(tracker, [[0, 1]])) is None


def test_more_maps_than_are_counted_are_not_compared(of_group, monkeypatch):
    monkeypatch.setattr(token_maps, "MOST_MAPS", 23)
    found = joined(of_group("S_4"), Permutation(group="S_4").automaton(), "S_4")
    assert (found["order"], found["most"], found["relation"]) == (None, 23, None)
    assert "a group of order more than 23" in together(found)
