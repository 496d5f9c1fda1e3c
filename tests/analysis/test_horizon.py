"""Lengths up to which soft gates are proven, against errors put into the states by hand."""

import itertools
import math

import pytest
import torch

from statemix.analysis import certified, certify, hardened, horizon
from statemix.layers import LayerSpec
from statemix.models import SyntheticModel
from statemix.tasks.groups import group
from statemix.tasks.permutation import Permutation

AUTOMATON = Permutation(group="S_3").automaton()
TEMPERATURE = 0.7
LARGEST = 3.0
ROUNDING = 19 * torch.finfo(torch.float32).eps / 2


def distance(temperature):
    """How much a row of the raw gates 8, 0, 0, 0 misses of the hard one."""
    return 2 * 3 / (math.exp(8 / temperature) + 3)


@pytest.fixture(params=["none", "rms", "layer"])
def soft(request, of_group):
    """A soft tracker that reads through a norm, with gains, biases and a readout of sum zero."""
    model = of_group("S_3")
    model.blocks[0].layer.gate_temperature = TEMPERATURE
    read, width = model.readouts["answer"], model.readouts["answer"].in_features
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        # The last entry of what the norm reads is 0.
        read.weight[:, -1] = -read.weight.sum(1)
        if request.param != "none":
            norms = {"rms": torch.nn.RMSNorm, "layer": torch.nn.LayerNorm}
            model.final_norm = norms[request.param](width, eps=1e-5)
            gain = 1 + torch.rand(width, generator=generator)
            model.final_norm.weight.copy_(gain)
            read.weight /= gain
            read.bias.copy_(torch.rand(6, generator=generator) / 4)
        if request.param == "layer":
            model.final_norm.bias.copy_(torch.rand(width, generator=generator) / 20)
    return model


def slack_of(soft):
    """The error of a state that ``horizon`` allows for, from its result."""
    length = horizon(soft, hardened(soft), AUTOMATON, "answer", [0])
    # The learned token is a step, and lengths are whole numbers.
    return (length + 1.5) * (distance(TEMPERATURE) + ROUNDING) * LARGEST, length


def margins(model, states, answers):
    """By how much the right class leads every other one."""
    with torch.no_grad():
        z = model.blocks[0].layer._read(states)
        logits = model._read(z)["answer"]
    lead = logits.gather(1, answers.unsqueeze(1)) - logits
    return lead.scatter(1, answers.unsqueeze(1), torch.inf)


def test_no_smaller_error_of_the_state_changes_an_answer(soft):
    slack, length = slack_of(soft)
    assert length > 1000
    hard = hardened(soft)
    assert certify(hard, AUTOMATON).verdict == "proven"
    words = torch.arange(6).unsqueeze(1)
    _, (states,) = hard.extend(words)
    answers = torch.arange(6)
    signs = torch.tensor(list(itertools.product([-1.0, 0.0, 1.0], repeat=3)))
    leads = [
        margins(hard, states + factor * slack * sign, answers).min()
        for factor in (0.999, 1.01)
        for sign in signs
    ]
    assert min(leads[: len(signs)]) > 0
    # With a norm, the bound adds what two errors do that need not come together.
    if isinstance(soft.final_norm, torch.nn.Identity):
        assert min(leads[len(signs) :]) < 0


def test_states_stay_within_the_bound_up_to_the_length(soft):
    slack, length = slack_of(soft)
    words = torch.randint(6, (16, length), generator=torch.Generator().manual_seed(5))
    ends = [model.extend(words)[1][0] for model in (soft, hardened(soft))]
    assert (ends[0] - ends[1]).abs().max() < slack
    answers = torch.tensor([AUTOMATON.answers(word.tolist()) for word in words])
    assert (soft(words)["answer"].argmax(-1) == answers).all()


def test_sharper_gates_are_right_for_longer(of_group):
    model = of_group("S_3")
    for sharp, blunt in ((0.8, 1.0), (0.6, 0.8)):
        lengths = []
        for temperature in (sharp, blunt):
            model.blocks[0].layer.gate_temperature = temperature
            lengths.append(horizon(model, hardened(model), AUTOMATON, "answer", [0]) + 1)
        factor = (distance(blunt) + ROUNDING) / (distance(sharp) + ROUNDING)
        assert lengths[0] == pytest.approx(lengths[1] * factor, rel=0.02)


def test_a_learned_state_counts_as_a_value(of_group):
    model = of_group("S_3", initial_state="learned")
    before = horizon(model, hardened(model), AUTOMATON, "answer", [0])
    with torch.no_grad():
        model.blocks[0].layer.learned_state.fill_(30.0)
    after = horizon(model, hardened(model), AUTOMATON, "answer", [0])
    assert after + 1 == pytest.approx((before + 1) / 10, abs=1)


def test_pruned_blocks_do_not_count(of_group):
    shifts = [[(entry + 1) % 3 for entry in range(3)]] * 6 + [[-1] * 3]
    model, alone = of_group("S_3", shifts), of_group("S_3")
    with torch.no_grad():
        model.blocks[0].layer.value_proj.weight.view(3, 2, -1)[:, 1] = 0
        # Soft gates, as if nothing had been learned.
        model.blocks[0].layer.gate_proj.weight.view(3, 4, 2, -1)[:, :, 1] = 0
    found = horizon(model, hardened(model), AUTOMATON, "answer", [0])
    assert found == horizon(alone, hardened(alone), AUTOMATON, "answer", [0])


def test_other_models_have_none(of_group):
    lstm = SyntheticModel(6, {"answer": 6}, 8, [LayerSpec("lstm")])
    two = SyntheticModel(6, {"answer": 6}, 8, [LayerSpec("bd_lru", num_blocks=2, block_size=3)] * 2)
    for model in (lstm, two):
        assert horizon(model, model, AUTOMATON, "answer", [0]) is None
    same = hardened(of_group("S_3"))
    assert horizon(same, same, AUTOMATON, "answer", [0]) is None


def test_a_block_that_lives_on_its_learned_state_counts(of_group):
    """It loads nothing, yet its gates must be close to their limit."""
    elements = [[*(place - 1 for place in one)] for one in group("S_3").elements]
    model = of_group("S_3", [*elements, [0, 1, 2]], initial_state="learned")
    layer, read = model.blocks[0].layer, model.readouts["answer"].weight
    with torch.no_grad():
        layer.value_proj.weight.view(3, 2, -1)[:, 1] = 0
        layer.learned_state[1] = torch.tensor([1.0, 2.0, 3.0])
        read[:, 3:6] = read[:, :3]
        read[:, :3] = 0
        layer.gate_proj.weight.view(3, 4, 2, -1)[:, :, 1] /= 2
    found = certified(model, AUTOMATON)
    assert (found.certificate.verdict, found.tracking) == ("proven", (0, 1))
    words = torch.randint(6, (8, 300), generator=torch.Generator().manual_seed(0))
    answers = torch.tensor([AUTOMATON.answers(word.tolist()) for word in words])
    right = (model(words)["answer"].argmax(-1) == answers).all(0)
    assert not right.all()
    assert found.horizon <= int((~right).nonzero()[0])


def test_rounding_of_the_readout_leaves_no_room_under_large_biases(of_group):
    model = of_group("S_3")
    lengths = []
    for bias in (0.0, 1e5, 1e7):
        with torch.no_grad():
            model.readouts["answer"].bias.fill_(bias)
        lengths.append(horizon(model, hardened(model), AUTOMATON, "answer", [0]))
    assert lengths[0] > lengths[1] > lengths[2] == 0
