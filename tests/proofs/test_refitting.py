"""Readouts fitted again, against trackers whose readout was damaged by hand."""

import numpy as np
import pytest
import torch

from statemix.automaton import IGNORED, NEVER, Automaton
from statemix.layers import LayerSpec
from statemix.models import TokenClassifier
from statemix.proofs import harden, prove, prune, refit, search
from statemix.tasks.permutation import Permutation

AUTOMATON = Permutation(group="S_3").automaton()
# Tokens 1 and 2 load one entry each; the learned token, which comes last, loads all.
LOADS = [[0, 1, 2], [-1, 1, 2], [0, 0, -1], *[[0, 1, 2]] * 3, [-1] * 3]


@pytest.fixture
def leaning(of_group):
    """A tracker of S_3 whose readout listens to a block that does not track."""
    model = of_group("S_3", LOADS)
    with torch.no_grad():
        model.readouts["answer"].weight[:, :3] *= -1
    return model


def test_a_readout_is_fitted_to_what_is_left(leaning):
    hard = harden(leaning)
    cut = prune(hard, AUTOMATON)
    assert cut.tracking == (0,)
    assert search(cut.model, AUTOMATON).verdict == "refuted"
    before = {name: tensor.clone() for name, tensor in cut.model.state_dict().items()}
    fitted = refit(cut.model, AUTOMATON, "answer")
    found = search(fitted, AUTOMATON)
    assert (found.verdict, found.pairs) == ("proven", 6)
    assert found.margin > 1
    after = fitted.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"readouts.answer.weight", "readouts.answer.bias"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in cut.model.state_dict().items())


def test_states_that_differ_by_little_are_told_apart():
    """As in a network of S_4, two initial values are nearly equal."""
    task = Permutation(group="S_4")
    torch.manual_seed(0)
    layer = LayerSpec("bd_lru", num_blocks=1, block_size=4, initial_state="learned")
    model = TokenClassifier(24, {"answer": 24}, 64, [layer]).eval()
    recurrence = model.backbone.blocks[0].mixer
    raw = torch.full((24, 4, 5), -8.0)
    for token, element in enumerate(task.group.elements):
        for entry, point in enumerate(element):
            raw[token, entry, point - 1] = 8.0
    with torch.no_grad():
        seen = model.backbone.blocks[0].norm(model.backbone.embedding.weight)
        recurrence.gate_proj.weight.copy_(torch.linalg.lstsq(seen, raw.flatten(1)).solution.T)
        recurrence.gate_proj.bias.zero_()
        recurrence.learned_state.copy_(torch.tensor([[-1.0, -0.9998, 1 / 3, 1.0]]))
    cut = prune(harden(model), task.automaton())
    assert cut.tracking == (0,)
    # Small weights answer with the same distances in numbers that rounding moves less.
    found = prove(model, task.automaton())
    assert (found.verdict, found.network) == ("proven", "refitted")
    assert found.result.margin > 1


def test_a_network_is_fitted_only_where_that_is_needed(of_group, leaning):
    assert prove(of_group("S_3"), AUTOMATON).network == "pruned"
    found = prove(leaning, AUTOMATON)
    assert (found.network, found.tracking, found.num_blocks) == ("refitted", (0,), 2)
    assert found.result.verdict == "proven"
    assert search(found.model, AUTOMATON).margin == found.result.margin


def test_what_the_blocks_do_not_hold_cannot_be_read(of_group):
    # The second block holds the sign of the permutation alone, and the tracker is never written.
    elements = np.array(Permutation(group="S_3").group.elements)
    signs = [int(np.linalg.det(np.eye(3)[element - 1]) < 0) for element in elements]
    swaps = [[[0, 1, 2], [1, 0, 2]][sign] for sign in signs]
    model = of_group("S_3", [*swaps, [-1] * 3])
    with torch.no_grad():
        loads = model.backbone.blocks[0].mixer.value_proj.weight.view(3, 2, -1)
        loads[:, 1] = loads[:, 0]
        loads[:, 0] = 0
    cut = prune(harden(model), AUTOMATON)
    assert (cut.tracking, cut.varying) == ((0, 1), (1,))
    assert search(refit(cut.model, AUTOMATON, "answer"), AUTOMATON).verdict == "refuted"
    found = prove(model, AUTOMATON)
    assert (found.network, found.result.verdict) == ("hardened", "refuted")


def test_a_network_that_needs_no_memory_is_not_fitted(tracker):
    """The only entry loads -2 or 2, and the residual adds 1 to it after token 0."""
    model = tracker([[[-1], [-1], [-1]]], [[[-2.0], [2.0], [0.0]]], [[-1.0], [1.0]], 2)
    model.backbone.blocks[0].residual = True
    automaton = Automaton(0, np.zeros((1, 2), np.int64), np.array([[0, 1]]))
    cut = prune(harden(model), automaton)
    assert (cut.varying, search(cut.model, automaton).verdict) == ((), "refuted")
    found = prove(model, automaton)
    assert (found.network, found.result.verdict) == ("hardened", "proven")


def test_the_first_token_is_fitted_where_it_leads_and_not_the_learned_one(passing):
    model, automaton = passing
    with torch.no_grad():
        for parameter in model.readouts["answer"].parameters():
            parameter.zero_()
    cut = prune(harden(model), automaton)
    assert search(cut.model, automaton).verdict == "refuted"
    assert search(refit(cut.model, automaton, "answer"), automaton).verdict == "proven"


def test_positions_that_are_not_scored_are_not_fitted(leaning):
    # After token 0 no answer is asked for, and token 5 cannot follow the identity.
    outputs, transitions = AUTOMATON.outputs.copy(), AUTOMATON.transitions.copy()
    outputs[:, 0], transitions[0, 5] = IGNORED, NEVER
    partly = Automaton(0, transitions, outputs)
    cut = prune(harden(leaning), partly)
    found = search(refit(cut.model, partly, "answer"), partly)
    assert (found.verdict, found.pairs) == ("proven", 6)
