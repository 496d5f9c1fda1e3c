"""What blocks built by hand do together, against the groups that they were built from."""

import numpy as np
import pytest

from statemix.automaton import NEVER, Automaton
from statemix.proofs import join_actions, read_actions, token_maps
from statemix.tasks.groups import group
from statemix.tasks.permutation import Permutation
from statemix_lab.inspection.layer_text import together


def joined(model, automaton=None, name=None):
    return join_actions(model, read_actions(model, automaton), automaton, name=name)


def of_blocks(tracker, *blocks, start):
    """A model whose blocks are written by the learned token, which comes last."""
    size = len(start)
    sources = [[*block, [-1] * size] for block in blocks]
    values = [[[0.0] * size] * len(block) + [start] for block in blocks]
    return tracker(sources, values, np.ones((2, size * len(blocks))), 2)


def cycle(length):
    """Tokens 0 and 1 add 0 and 1."""
    states = np.arange(length)
    moves = np.stack([states, (states + 1) % length], axis=1)
    return Automaton(0, moves, np.zeros_like(moves))


@pytest.mark.parametrize("name", ["S_3", "A_5"])
def test_a_tracker_generates_its_group(of_group, name):
    task = Permutation(group=name)
    found = joined(of_group(name), task.automaton(), name)
    assert found == {
        "blocks": [0],
        "order": task.group.order,
        "most": 5000,
        "group": True,
        "task": name,
        "task_order": task.group.order,
        "relation": "isomorphic",
    }
    assert together(found) == (
        f"with gates of 0 and 1: block 0 generates a group of order {task.group.order}, isomorphic "
        f"to {name} by its tokens"
    )


def test_blocks_that_repeat_are_kept_and_others_are_not(of_group, tracker):
    elements = (np.array(group("S_3").elements) - 1).tolist()
    shifts = [[1, 2, 0]] * 6
    model = of_blocks(tracker, elements, shifts, elements, start=[1.0, 2.0, 3.0])
    found = joined(model, Permutation(group="S_3").automaton(), "S_3")
    assert (found["blocks"], found["order"], found["relation"]) == ([0, 2], 6, "isomorphic")
    assert "blocks 0, 2 together generate a group of order 6" in together(found)
    # Without a task, there is nothing to prefer: the shifts commute with nothing but rotations.
    found = joined(model)
    assert (found["blocks"], found["task"], found["relation"]) == ([0, 1, 2], None, None)
    assert together(found).endswith("blocks 0–2 together generate a group of order 18")


def test_s_4_permutes_its_pairings_by_a_quotient(tracker):
    pairings = [{(0, 1), (2, 3)}, {(0, 2), (1, 3)}, {(0, 3), (1, 2)}]
    elements = np.array(group("S_4").elements) - 1
    sources = [
        [pairings.index({tuple(sorted((g[i], g[j]))) for i, j in pairing}) for pairing in pairings]
        for g in elements.tolist()
    ]
    model = of_blocks(tracker, sources, start=[1.0, 2.0, 3.0])
    found = joined(model, Permutation(group="S_4").automaton(), "S_4")
    assert (found["order"], found["task_order"], found["relation"]) == (6, 24, "quotient")
    assert together(found).endswith(
        "generates a group of order 6, a quotient of S_4 (order 24) by its tokens"
    )


def test_two_small_cycles_make_a_large_one(tracker):
    twos, threes = [[0, 1, 2], [1, 0, 2]], [[0, 1, 2], [2, 0, 1]]
    model = of_blocks(tracker, twos, threes, start=[1.0, 2.0, 3.0])
    assert [one["order"] for one in read_actions(model, cycle(6))] == [2, 3]
    found = joined(model, cycle(6))
    assert (found["blocks"], found["order"], found["relation"]) == ([0, 1], 6, "isomorphic")
    assert found["task"] == "Z_6"
    # A single block has a quotient of it.
    found = joined(of_blocks(tracker, threes, start=[1.0, 2.0, 3.0]), cycle(6))
    assert (found["order"], found["task_order"], found["relation"]) == (3, 6, "quotient")


def test_blocks_may_know_more_than_the_task(tracker):
    """Zeros are counted too, so that the block does not track parity."""
    counts = [[0, 1, 3, 2], [1, 0, 2, 3]]
    model = of_blocks(tracker, counts, start=[1.0, 2.0, 3.0, 4.0])
    assert [one["role"] for one in read_actions(model, cycle(2))] == ["other"]
    found = joined(model, cycle(2))
    assert (found["blocks"], found["order"], found["task_order"]) == ([0], 4, 2)
    assert (found["task"], found["relation"]) == ("Z_2", "cover")
    assert together(found).endswith("order 4, of which Z_2 is a quotient by its tokens")


def test_blocks_may_do_something_else(tracker):
    model = of_blocks(tracker, [[1, 2, 0], [0, 1, 2]], start=[1.0, 2.0, 3.0])
    found = joined(model, cycle(3))
    assert (found["order"], found["task_order"], found["relation"]) == (3, 3, None)
    assert together(found).endswith("; by its tokens neither Z_3 nor a quotient of it")


def test_resets_make_a_semigroup(tracker):
    """Two tokens set the entries; the third one does nothing."""
    model = of_blocks(tracker, [[0, 0], [1, 1], [0, 1]], start=[1.0, 2.0])
    resets = np.array([[0, 1, 2], [0, 1, 0], [0, 1, 1]])
    resets[0] = [1, 2, 0]
    resets[1], resets[2] = [1, 1, 1], [2, 2, 2]
    found = joined(model, Automaton(0, resets, np.zeros_like(resets)))
    assert (found["group"], found["order"]) == (False, 3)
    assert found["task"] == "the task's semigroup"
    assert "block 0 generates a semigroup of order 3, isomorphic to the task's" in together(found)


def test_maps_that_permute_an_image_form_a_group_if_the_task_does(tracker):
    """The third entry follows the first one, which is a permutation of the first two alone."""
    model = of_blocks(tracker, [[0, 1, 0], [1, 0, 1]], start=[1.0, 2.0, 1.0])
    (block,) = read_actions(model, cycle(2))
    assert (block["role"], block["permutes"]) == ("tracks", False)
    found = joined(model, cycle(2))
    assert (found["group"], found["order"], found["relation"]) == (True, 2, "isomorphic")


def test_a_task_in_which_tokens_cannot_follow_is_not_compared(tracker):
    """Token 1 can follow token 0 alone. The network may do anything after other words."""
    turns = np.array([[1, NEVER], [NEVER, 0]])
    model = of_blocks(tracker, [[1, 0], [1, 0]], start=[1.0, 2.0])
    found = joined(model, Automaton(0, turns, np.zeros_like(turns)))
    assert (found["order"], found["task"], found["task_order"]) == (2, None, None)
    assert together(found).endswith("generates a group of order 2")


def test_blocks_that_nothing_changes_generate_nothing(tracker):
    assert joined(of_blocks(tracker, [[0, 1]], start=[1.0, 2.0])) is None
    assert join_actions(of_blocks(tracker, [[0, 1]], start=[1.0, 2.0]), []) is None


def test_more_maps_than_are_counted_are_not_compared(of_group, monkeypatch):
    monkeypatch.setattr(token_maps, "MOST_MAPS", 119)
    found = joined(of_group("S_5"), Permutation(group="S_5").automaton(), "S_5")
    assert (found["order"], found["most"], found["relation"]) == (None, 119, None)
    assert "a group of order more than 119" in together(found)


@pytest.mark.parametrize(("second", "number"), [(7.0, 4), (8.0, 6)])
def test_a_load_is_a_constant_by_its_value(tracker, second, number):
    """Tokens 0 and 1 load a 7 and another value into the first block; token 2 turns the other."""
    loads, turns = [[-1, -1], [-1, -1], [0, 1]], [[0, 1], [0, 1], [1, 0]]
    model = of_blocks(tracker, loads, turns, start=[1.0, 2.0])
    values = model.backbone.blocks[0].mixer.value_proj.weight.data.view(2, 2, -1)
    values[:, 0, 0], values[:, 0, 1] = 7.0, second
    found = joined(model)
    assert (found["blocks"], found["order"]) == ([0, 1], number)
