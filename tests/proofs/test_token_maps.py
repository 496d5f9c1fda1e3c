"""What tokens do to the blocks of trackers built by hand."""

import numpy as np
import pytest
import torch

from statemix.automaton import Automaton
from statemix.layers import LayerSpec
from statemix.models import SequenceAutoencoder, TokenClassifier
from statemix.proofs import harden, read_actions
from statemix.proofs.token_maps import maps_of
from statemix.tasks.groups import group
from statemix.tasks.permutation import Permutation
from statemix_lab.inspection.layer_text import sentences

AUTOMATON = Permutation(group="S_3").automaton()
STAYS = [[0, 1, 2]] * 7
# Tokens 1 and 2 load one entry each; the learned token, which comes last, loads all.
LOADS = [[0, 1, 2], [-1, 1, 2], [0, 0, -1], *[[0, 1, 2]] * 3, [-1] * 3]


def test_every_block_has_its_role(of_group):
    elements = np.array(group("S_3").elements) - 1
    # The same block with its entries in another order: entry i is the first one's entry order[i].
    order = np.array([2, 0, 1])
    renamed = np.argsort(order)[elements[:, order]].tolist()
    # The last block has the maps of the first one, but the same number everywhere.
    model = of_group("S_3", [*renamed, [-1] * 3], STAYS, LOADS, [*elements.tolist(), [-1] * 3])
    with torch.no_grad():
        values = model.backbone.blocks[0].mixer.value_proj.weight.view(3, 5, -1)
        values[:, 1] = values[order, 0]
    found = read_actions(model, AUTOMATON)
    assert [one["role"] for one in found] == ["tracks", "repeats", "idles", "other", "constant"]
    assert [one["repeats"] for one in found] == [None, 0, None, None, None]
    assert [one["permutes"] for one in found] == [True, True, True, False, True]
    assert found[3]["sources"] == LOADS[:6]
    assert [one["order"] for one in found] == [6, 6, None, None, None]
    without = read_actions(model)
    assert [one["role"] for one in without] == ["other", "other", "idles", "other", "other"]
    assert [one["repeats"] for one in without] == [None, 0, None, None, 0]


@pytest.mark.parametrize(("values", "number"), [([1.0, 1.0], 2), ([1.0, 2.0], 3)])
def test_loads_of_two_values_are_two_maps(tracker, values, number):
    """A token stays, and two others set the only entry."""
    sources = [[[0], [-1], [-1], [-1]]]
    model = tracker(sources, [[[0.0], [values[0]], [values[1]], [3.0]]], [[0.0], [1.0]], 2)
    states = Automaton(0, np.array([[0, 1, 2]] * 3), np.zeros((3, 3), np.int64))
    states.transitions[:, 0] = range(3)
    if values[0] == values[1]:
        states.transitions[states.transitions == 2] = 1
    (found,) = read_actions(model, states)
    assert (found["role"], found["order"]) == ("tracks", number)
    assert found["sources"] == [[0], [-1], [-1]]


@pytest.mark.parametrize("size", [6, 7])
def test_blocks_with_the_maps_of_an_earlier_one_repeat_it(tracker, size):
    """Whether they track or not; blocks of more than 6 entries in their own order alone."""
    rng = np.random.default_rng(0)
    first = rng.integers(-1, size, (3, size))
    order = np.roll(np.arange(size), 1)
    names = np.append(np.argsort(order), -1)
    other = names[first[:, order]]
    changed = first.copy()
    changed[1, 0] = (changed[1, 0] + 1) % size
    idle = np.tile(np.arange(size), (3, 1))
    blocks = np.array([idle, first, other, changed, first, idle])
    model = tracker(blocks, rng.integers(1, 9, blocks.shape), np.ones((2, 6 * size)), 2)
    expected = [None, None, 1 if size <= 6 else None, None, 1, None]
    found = read_actions(model)
    assert [one["repeats"] for one in found] == expected
    pairs = "2 (as 1), 4 (as 1)" if size <= 6 else "4 (as 1)"
    assert sentences(found, judged=False) == [
        "with gates of 0 and 1: idle (no token changes it): blocks 0, 5",
        f"with gates of 0 and 1: redundant (the maps of an earlier block): {pairs}",
        "with gates of 0 and 1: of another kind: 4 blocks",
    ]


def test_other_models_have_no_such_blocks():
    spec = LayerSpec("bd_lru", num_blocks=2, block_size=2)
    signed = LayerSpec("bd_lru", num_blocks=2, block_size=2, gate="signed")
    for layers in ([LayerSpec("lstm")], [signed], [spec, spec]):
        assert read_actions(TokenClassifier(6, {"answer": 6}, 8, layers)) == []
    assert read_actions(SequenceAutoencoder(6, {"answer": 6}, 8, [spec]), AUTOMATON) == []


def test_blocks_that_hold_constants_track_nothing():
    """All states of an untrained model without a start are zero, and so functions of anything."""
    spec = LayerSpec("bd_lru", num_blocks=2, block_size=3, input_gate_bias=-6.0)
    model = TokenClassifier(6, {"answer": 6}, 8, [spec])
    found = read_actions(model, AUTOMATON)
    assert [one["role"] for one in found] == ["constant"] * 2
    said, _ = sentences(found, judged=True)
    assert said.startswith("with gates of 0 and 1: in no block does the task's state alone decide")


def test_channels_of_a_block_move_together_and_are_one_value(of_group_in_channels):
    """Two values are one only if they are equal in all channels."""
    loads = [[-1] * 3] * 7
    held = np.zeros((7, 3, 3))
    held[1, :, 2] = 5
    model = of_group_in_channels("S_3", (loads, held))
    automaton = Permutation(group="S_3").automaton()
    tracking, other = read_actions(model, automaton)
    assert (tracking["role"], tracking["order"], tracking["permutes"]) == ("tracks", 6, True)
    assert other["role"] == "other"
    sources = maps_of(harden(model), model.backbone.vocab_size).sources
    assert sources.shape == (6, 2, 3)
    of_second = sources[:, 1]
    assert len(np.unique(of_second)) == 2
    assert (of_second[[0, 2, 3, 4, 5]] == of_second[0, 0]).all()
