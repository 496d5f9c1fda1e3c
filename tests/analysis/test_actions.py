"""What tokens do to the blocks of trackers built by hand."""

import numpy as np
import pytest
import torch

from statemix.analysis import actions
from statemix.analysis.actions import _order
from statemix.layers import LayerSpec
from statemix.models import SyntheticModel
from statemix.report.inspection.actions import draw, drawable, sentences
from statemix.tasks.groups import group
from statemix.tasks.permutation import Permutation

AUTOMATON = Permutation(group="S_3").automaton()
STAYS = [[0, 1, 2]] * 7
# Tokens 1 and 2 load one entry each; the learned token, which comes last, loads all.
LOADS = [[0, 1, 2], [-1, 1, 2], [0, 0, -1], *[[0, 1, 2]] * 3, [-1] * 3]


@pytest.mark.parametrize("name", ["S_2", "S_3", "S_4", "A_5", "S_5"])
def test_the_maps_of_a_tracker_are_the_elements_of_its_group(of_group, name):
    task = Permutation(group=name)
    (found,) = actions(of_group(name), task.automaton())
    assert (found["role"], found["permutes"], found["order"]) == ("tracks", True, task.group.order)
    assert found["sources"] == (np.array(group(name).elements) - 1).tolist()


def test_every_block_has_its_role(of_group):
    elements = np.array(group("S_3").elements) - 1
    # The same block with its entries in another order: entry i is the first one's entry order[i].
    order = np.array([2, 0, 1])
    renamed = np.argsort(order)[elements[:, order]].tolist()
    model = of_group("S_3", [*renamed, [-1] * 3], STAYS, LOADS)
    with torch.no_grad():
        values = model.blocks[0].layer.value_proj.weight.view(3, 4, -1)
        values[:, 1] = values[order, 0]
    found = actions(model, AUTOMATON)
    assert [one["role"] for one in found] == ["tracks", "repeats", "idles", "other"]
    assert [one["repeats"] for one in found] == [None, 0, None, None]
    assert [one["permutes"] for one in found] == [True, True, True, False]
    assert found[3]["sources"] == LOADS[:6]
    assert [one["order"] for one in found] == [6, 6, None, None]
    assert [one["role"] for one in actions(model)] == ["other", "other", "idles", "other"]


def closure(maps):
    """All products of words of up to eight maps."""
    known = set(maps)
    for _ in range(8):
        known |= {
            tuple(-1 if i < 0 else first[i] for i in second) for first in known for second in maps
        }
    return known


@pytest.mark.parametrize("maps", [LOADS[:6], [[1, 2, 0], [0, 0, 2]], [[0, 1, 2]]])
def test_the_order_counts_the_products_of_all_words(maps):
    maps = {tuple(one) for one in maps}
    assert _order(maps) == len(closure(maps))


def test_too_many_maps_are_not_counted():
    rng = np.random.default_rng(0)
    assert _order({tuple(one) for one in rng.integers(0, 7, (6, 7)).tolist()}) is None


def test_other_models_have_no_such_blocks():
    spec = LayerSpec("bd_lru", num_blocks=2, block_size=2)
    signed = LayerSpec("bd_lru", num_blocks=2, block_size=2, gate="signed")
    for layers in ([LayerSpec("lstm")], [signed], [spec, spec]):
        assert actions(SyntheticModel(6, {"answer": 6}, 8, layers)) == []


def test_more_entries_than_anyone_could_look_at_are_not_listed():
    spec = LayerSpec("bd_lru", num_blocks=1, block_size=2)
    assert len(actions(SyntheticModel(499_999, {"answer": 2}, 1, [spec]))) == 1
    assert actions(SyntheticModel(500_001, {"answer": 2}, 1, [spec])) == []


def test_sentences_name_the_blocks_that_track_and_those_that_repeat_them(of_group):
    elements = (np.array(group("S_3").elements) - 1).tolist()
    model = of_group("S_3", [*elements, [-1] * 3], STAYS, LOADS)
    with torch.no_grad():
        values = model.blocks[0].layer.value_proj.weight.view(3, 4, -1)
        values[:, 1] = values[:, 0]
    found = actions(model, AUTOMATON)
    assert sentences(found, judged=True) == [
        "with gates of 0 and 1: block 0 tracks the task: its tokens permute the entries, and their "
        "words make 6 maps; repeated by 1",
        "with gates of 0 and 1: 1 block that no token changes",
        "with gates of 0 and 1: 1 block of another kind",
    ]
    titles = [axes.get_title(loc="left") for axes in draw(found, title="maps").axes]
    assert titles == ["block 0: tracks", "block 1: repeats", "block 3: other", "block 2: idles"]
    texts = [text.get_text() for text in draw(found, title="maps").axes[0].texts]
    assert texts == [str(elements[token][entry]) for entry in range(3) for token in range(6)]


def test_blocks_that_hold_constants_track_nothing():
    """All states of an untrained model without a start are zero, and so functions of anything."""
    spec = LayerSpec("bd_lru", num_blocks=2, block_size=3, input_gate_bias=-6.0)
    model = SyntheticModel(6, {"answer": 6}, 8, [spec])
    found = actions(model, AUTOMATON)
    assert [one["role"] for one in found] == ["constant"] * 2
    assert sentences(found, judged=True) == [
        "with gates of 0 and 1: no block tracks the task",
        "with gates of 0 and 1: 2 blocks that hold the same in every state of the task",
    ]
    # Nothing is said of a task that is no automaton.
    assert sentences(actions(model), judged=False) == [
        "with gates of 0 and 1: 2 blocks of another kind"
    ]


def test_an_autoencoder_has_no_such_blocks():
    spec = LayerSpec("bd_lru", num_blocks=2, block_size=2)
    model = SyntheticModel(6, {"answer": 6}, 8, [spec], backbone="autoencoder")
    assert actions(model, AUTOMATON) == []


def test_large_blocks_are_not_drawn(of_group):
    found = actions(of_group("S_3"), AUTOMATON)
    assert drawable(found)
    wide = [{**found[0], "sources": [list(range(33))] * 6}]
    assert not drawable(wide)
    assert not drawable([])
