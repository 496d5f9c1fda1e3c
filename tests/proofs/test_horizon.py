"""Lengths up to which soft gates are proven, against errors put into the states by hand."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statemix.automaton import IGNORED, Automaton
from statemix.layers import LayerSpec
from statemix.models import MixerSpec, TokenClassifier
from statemix.proofs import Horizon, find_horizon, harden, prove, prune, search
from statemix.tasks.groups import group
from statemix.tasks.permutation import Permutation

AUTOMATON = Permutation(group="S_3").automaton()
TEMPERATURE = 0.7
LARGEST = 3.0
# Twice 3 entries and 16.
ROUNDING = 22 * torch.finfo(torch.float32).eps / 2


def distance(temperature):
    """How much a row of the raw gates 8, 0, 0, 0 misses of the hard one."""
    return 2 * 3 / (math.exp(8 / temperature) + 3)


def length_of(soft):
    """The length of a soft tracker whose first block tracks."""
    return find_horizon(soft, harden(soft), AUTOMATON, head="answer", tracking=[0]).tokens


@pytest.fixture(params=["none", "rms", "layer"])
def soft(request, of_group):
    """A soft tracker that reads through a norm, with gains, biases and a readout of sum zero."""
    model = of_group("S_3")
    model.backbone.blocks[0].mixer.gate_temperature = TEMPERATURE
    read, width = model.readouts["answer"], model.readouts["answer"].in_features
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        # The last entry of what the norm reads is 0.
        read.weight[:, -1] = -read.weight.sum(1)
        if request.param != "none":
            norms = {"rms": torch.nn.RMSNorm, "layer": torch.nn.LayerNorm}
            model.backbone.final_norm = norms[request.param](width, eps=1e-5)
            gain = 1 + torch.rand(width, generator=generator)
            model.backbone.final_norm.weight.copy_(gain)
            read.weight /= gain
            read.bias.copy_(torch.rand(6, generator=generator) / 4)
        if request.param == "layer":
            model.backbone.final_norm.bias.copy_(torch.rand(width, generator=generator) / 20)
    return model


def slack_of(soft, largest=LARGEST):
    """The error of a state that ``horizon`` allows for, from its result."""
    length = length_of(soft)
    # The learned token is a step, and lengths are whole numbers.
    return (length + 1.5) * (distance(TEMPERATURE) + ROUNDING) * largest, length


def margins(model, states, answers):
    """By how much the right class leads every other one."""
    with torch.no_grad():
        layer = model.backbone.blocks[0].mixer
        z = layer.out_proj(layer._joined(states))
        logits = model.readouts["answer"](model.backbone.final_norm(z))
    lead = logits.gather(1, answers.unsqueeze(1)) - logits
    return lead.scatter(1, answers.unsqueeze(1), torch.inf)


def test_no_smaller_error_of_the_state_changes_an_answer(soft):
    slack, length = slack_of(soft)
    assert length > 1000
    hard = harden(soft)
    assert search(hard, AUTOMATON).verdict == "proven"
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
    if isinstance(soft.backbone.final_norm, torch.nn.Identity):
        assert min(leads[len(signs) :]) < 0


def test_errors_of_all_channels_count(of_group_in_channels):
    """A block of S_3 whose entries hold the rows of an identity matrix; no value is above 1."""
    # A further block, which does not track, must not count.
    model = of_group_in_channels("S_3", ([[-1] * 3] * 7, np.linspace(0, 1, 63).reshape(7, 3, 3)))
    model.backbone.blocks[0].mixer.gate_temperature = TEMPERATURE
    slack, length = slack_of(model, 1.0)
    assert length > 100
    _, (states,) = harden(model).extend(torch.arange(6).unsqueeze(1))
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=9))).view(-1, 1, 1, 3, 3)
    signs = torch.cat([signs, torch.zeros_like(signs)], 2)
    answers = torch.arange(6).repeat(len(signs))
    leads = [
        margins(model, (states + factor * slack * signs).flatten(0, 1), answers).min()
        for factor in (0.999, 1.01)
    ]
    assert leads[0] > 0 > leads[1]


def test_states_stay_within_the_bound_up_to_the_length(soft):
    slack, length = slack_of(soft)
    words = torch.randint(6, (16, length), generator=torch.Generator().manual_seed(5))
    ends = [model.extend(words)[1][0] for model in (soft, harden(soft))]
    assert (ends[0] - ends[1]).abs().max() < slack
    answers = torch.tensor([AUTOMATON.answers(word.tolist()) for word in words])
    assert (soft(words)["answer"].argmax(-1) == answers).all()


def test_a_bias_that_the_root_mean_square_scales_counts(tracker):
    """The larger an error makes the root mean square, the more do biases of both signs count."""
    swaps = [[0, 1], [1, 0], [-1, -1]]
    model = tracker([swaps], [[[0.0, 0.0]] * 2 + [[1.0, 2.0]]], [[0, 1], [0, 0]], 2)
    model.backbone.blocks[0].mixer.gate_temperature = TEMPERATURE
    model.backbone.final_norm = torch.nn.RMSNorm(5, eps=1e-5)
    with torch.no_grad():
        model.readouts["answer"].bias.copy_(torch.tensor([-0.75, 0.75]))
    parity = np.array([[0, 1], [1, 0]])
    hard = harden(model)
    found = find_horizon(model, hard, Automaton(0, parity, parity), head="answer")
    # Of the raw gates 8, 0, 0, and 2 m + 16 roundings, times the largest value. The learned token
    # is a step, and lengths are whole numbers.
    of_a_step = (2 * 2 / (math.exp(8 / TEMPERATURE) + 2) + 20 * 2**-24) * 2
    slack = (found.tokens + 1.5) * of_a_step
    # States hold 1 and 2, so that r = 1. Class 0 leads by the second entry less 1.5: by 0.5 or
    # -0.5. An error of 1 changes the entry by 1, and r by no more than the length of (1, 1) / 5.
    assert slack == pytest.approx(0.5 / (1 + 1.5 * math.sqrt(2 / 5)), rel=5e-3)
    states = torch.tensor([[[1.0, 2.0]], [[2.0, 1.0]]])
    answers = torch.tensor([0, 1])
    signs = torch.tensor(list(itertools.product([-1.0, 0.0, 1.0], repeat=2)))
    assert all((margins(hard, states + slack * sign, answers) > 0).all() for sign in signs)
    # By the entry alone, which allows for 0.5, the second answer would change.
    assert (margins(hard, states + 0.45 * torch.tensor([-1.0, 1.0]), answers) < 0).any()


def steps(temperature):
    """Steps after which the error of the states has reached what changes an answer of S_3."""
    error, count = 0.0, 0
    # The logits of two permutations that exchange neighbours differ by 1, and by 2 entries.
    while error < 0.5:
        error = (1 + ROUNDING) * error + (distance(temperature) + ROUNDING) * LARGEST
        count += 1
    return count


@pytest.mark.parametrize("token", [5, 6])
def test_the_softest_token_counts_and_so_does_the_learned_one(of_group, token):
    model = of_group("S_3")
    layer = model.backbone.blocks[0].mixer
    layer.gate_temperature = 0.25
    with torch.no_grad():
        layer.gate_proj.weight[:, token] /= 4
    assert length_of(model) == pytest.approx(steps(1.0) - 2, rel=0.02, abs=1)


def test_the_last_token_counts_in_a_residual(of_group):
    """After token 5, class 0 gets .25 more, so that other answers lead it by .75 and not by 1."""
    model = of_group("S_3")
    read, out = model.readouts["answer"].weight, model.backbone.blocks[0].mixer.out_proj.weight
    with torch.no_grad():
        # The first seven entries hold the token.
        read[:, 7:], out[7:] = read[:, :3].clone(), out[:3].clone()
        read[:, :7], out[:7] = 0, 0
        read[0, 5] = 0.25
    lengths = []
    for residual in (False, True):
        model.backbone.blocks[0].residual = residual
        assert search(harden(model), AUTOMATON).verdict == "proven"
        lengths.append(length_of(model))
    assert lengths[1] + 2 == pytest.approx(0.75 * (lengths[0] + 2), abs=1)


def test_the_rounding_of_the_mean_counts_where_no_class_reads_what_is_large(of_group):
    """A block of equal constants is read with both signs, by a channel of no class."""
    lengths = []
    for size in (0.0, 1e3, 1e6):
        model = of_group("S_3", [*[[0, 1, 2]] * 6, [-1] * 3])
        layer, read = model.backbone.blocks[0].mixer, model.readouts["answer"].weight
        model.backbone.final_norm = torch.nn.LayerNorm(read.shape[1], eps=1e-5)
        layer.gate_temperature = TEMPERATURE
        with torch.no_grad():
            out = layer.out_proj.weight.view(-1, 3, 2)
            out[-1, 0, 1], out[-1, 1, 1] = size, -size
            # The mean of its row, so that subtracting the mean leaves 0.
            read[:, -1] = read[:, :-1].mean(1)
        lengths.append(length_of(model))
    assert lengths[0] > lengths[1] > lengths[2] == 0


def test_a_learned_state_counts_as_a_value(of_group):
    model = of_group("S_3", initial_state="learned")
    before = length_of(model)
    with torch.no_grad():
        model.backbone.blocks[0].mixer.learned_state.fill_(30.0)
    after = length_of(model)
    assert after + 1 == pytest.approx((before + 1) / 10, abs=1)


def test_pruned_blocks_do_not_count(of_group):
    shifts = [[(entry + 1) % 3 for entry in range(3)]] * 6 + [[-1] * 3]
    model, alone = of_group("S_3", shifts), of_group("S_3")
    with torch.no_grad():
        model.backbone.blocks[0].mixer.value_proj.weight.view(3, 2, -1)[:, 1] = 0
        # Soft gates, as if little had been learned.
        model.backbone.blocks[0].mixer.gate_proj.weight.view(3, 4, 2, -1)[:, :, 1] /= 20
    found = length_of(model)
    assert found == length_of(alone) > 10
    # Among all blocks, it counts.
    assert find_horizon(model, harden(model), AUTOMATON, head="answer").tokens == 0


def test_other_models_have_none(of_group):
    lstm = TokenClassifier(6, {"answer": 6}, 8, [LayerSpec("lstm")])
    two = TokenClassifier(
        6, {"answer": 6}, 8, [LayerSpec("bd_lru", num_blocks=2, block_size=3)] * 2
    )
    kind = "the bound is for one BD-LRU with softmax gates, no channel mixer and a linear readout"
    one = LayerSpec("bd_lru", num_blocks=2, block_size=3)
    mixed = TokenClassifier(6, {"answer": 6}, 8, [one], channel_mixer=MixerSpec("mlp"))
    deep = TokenClassifier(6, {"answer": 6}, 8, [one], readout_sizes=(4,))
    for model in (lstm, two, mixed, deep):
        assert find_horizon(model, model, AUTOMATON, head="answer") == Horizon(None, kind)
        assert prove(model, AUTOMATON, soft=True, max_pairs=50).horizon.reason == kind
    same = harden(of_group("S_3"))
    found = find_horizon(same, same, AUTOMATON, head="answer")
    assert found.tokens is None
    assert found.reason.startswith("the states are those of gates of 0 and 1")
    # A network that is proven needs no bound, and one that is refuted has none.
    proof = prove(same, AUTOMATON, soft=True).horizon
    assert proof == Horizon(None, "the trained network itself is proven")
    with torch.no_grad():
        same.readouts["answer"].weight[3] *= -1
    assert prove(same, AUTOMATON, soft=True).horizon == found


# Stays, or goes around a cycle of five places; the learned token puts a 5 into the first.
STAYS, TURNS = [0, 1, 2, 3, 4], [4, 0, 1, 2, 3]
CYCLE = np.array([[place, (place + 1) % 5] for place in range(5)])


def cycle(tracker, ratio, place=None, closest=0.0):
    """A soft tracker of a cycle, in which a token adds 1/ratio of the error that changes an answer.

    At one place, the answer leads another one by ``closest`` instead of by 5.
    """
    readout = np.eye(5)
    if place is not None:
        readout[place - 1, place] = 1 - closest / 5
    written = [[[0.0] * 5] * 2 + [[5.0, 0.0, 0.0, 0.0, 0.0]]]
    model = tracker([[STAYS, TURNS, [-1] * 5]], written, readout, 5)
    # Two entries of a logit's difference change, by e times 5 each, and 2 * 5 / (exp(8/t) + 5) = e.
    e = 1 / (2 * ratio)
    model.backbone.blocks[0].mixer.gate_temperature = 8 / math.log(10 / e - 5)
    return model, Automaton(0, CYCLE, CYCLE)


def bound(model, automaton):
    return prove(model, automaton, soft=True, max_pairs=200).horizon


@pytest.mark.parametrize(("ratio", "length"), [(0.9, 0), (1.9, 0), (3.5, 2), (7.5, 6)])
def test_the_learned_token_and_every_other_one_add_an_error(tracker, ratio, length):
    found = bound(*cycle(tracker, ratio))
    assert found.tokens == length
    assert "states can drift by up to" in found.reason


# With 2.5 times this, 3.5 steps are left.
LEFT = 3.5 / 1000.5


@pytest.mark.parametrize(
    ("place", "closest", "length"),
    [
        *((4, 1e-3, 3), (3, 1e-3, 2), (0, 1e-3, 0), (4, -1e-3, 3), (0, -1e-3, 0)),
        # Place 4 is met after 4 tokens, 5 steps: the words before are right.
        (4, 2.5 * LEFT, 3),
        # At lengths 1, 2 and 5, words lead to place 0 that come from a place not seen before.
        (0, 2.5 * LEFT, 2),
    ],
)
def test_a_close_answer_counts_from_the_length_at_which_it_is_met(tracker, place, closest, length):
    assert bound(*cycle(tracker, 1000.5, place, closest)).tokens == length


def test_answers_that_are_not_scored_do_not_count(tracker):
    model, automaton = cycle(tracker, 1000.5, 4, 1e-3)
    outputs = np.where(automaton.outputs == 4, IGNORED, automaton.outputs)
    assert bound(model, Automaton(0, automaton.transitions, outputs)).tokens > 600


def test_no_length_is_certain_beyond_that_at_which_the_hard_network_fails(tracker):
    found = bound(*cycle(tracker, 1000.5, 4, -1e-3))
    assert found == Horizon(3, "gates of 0 and 1 are wrong after 1 1 1 1")


def test_a_search_that_gives_up_has_covered_shorter_words(tracker):
    model, automaton = cycle(tracker, 1000.5)
    found = prove(model, automaton, soft=True, max_pairs=3).horizon
    # Words of t tokens reach t + 1 places.
    assert found == Horizon(2, "more than 3 pairs of states")


@given(st.data())
def test_soft_networks_are_right_up_to_their_length(of_group, data):
    """All blocks count, those that track nothing too."""
    shifts = [[(entry + 1) % 3 for entry in range(3)]] * 6 + [[-1] * 3]
    model = of_group("S_3", shifts)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    noise = data.draw(st.sampled_from([0.0, 0.1, 1.0]))
    layer, read = model.backbone.blocks[0].mixer, model.readouts["answer"].weight
    layer.gate_temperature = data.draw(st.sampled_from([0.5, 0.7, 1.0, 2.0]))
    with torch.no_grad():
        for weight in (read[:, :6], layer.gate_proj.weight):
            weight += noise * torch.randn(weight.shape, generator=generator)
    found = prove(model, AUTOMATON, soft=True, max_pairs=50)
    for length in range(1, 5):
        words = torch.cartesian_prod(*[torch.arange(6)] * length).view(-1, length)
        answers = torch.tensor([AUTOMATON.answers(word)[-1] for word in words.tolist()])
        right = bool((model(words)["answer"][:, -1].argmax(-1) == answers).all())
        assert right or found.horizon.tokens < length


def test_a_block_that_lives_on_its_learned_state_counts(of_group):
    """It loads nothing, yet its gates must be close to their limit."""
    elements = [[*(place - 1 for place in one)] for one in group("S_3").elements]
    model = of_group("S_3", [*elements, [0, 1, 2]], initial_state="learned")
    layer, read = model.backbone.blocks[0].mixer, model.readouts["answer"].weight
    with torch.no_grad():
        layer.value_proj.weight.view(3, 2, -1)[:, 1] = 0
        layer.learned_state[1] = torch.tensor([1.0, 2.0, 3.0])
        read[:, 3:6] = read[:, :3]
        read[:, :3] = 0
        layer.gate_proj.weight.view(3, 4, 2, -1)[:, :, 1] /= 2
    check_length_of_both_blocks(model)


def check_length_of_both_blocks(model):
    found = prove(model, AUTOMATON)
    assert (found.result.verdict, found.tracking) == ("proven", (0, 1))
    words = torch.randint(6, (8, 300), generator=torch.Generator().manual_seed(0))
    answers = torch.tensor([AUTOMATON.answers(word.tolist()) for word in words])
    right = (model(words)["answer"].argmax(-1) == answers).all(0)
    assert not right.all()
    assert found.horizon.tokens <= int((~right).nonzero()[0])


def test_a_kept_block_that_holds_a_constant_counts(of_group):
    """With gates of 0 and 1 it stays as it is; with its own, its entries mix."""
    model = of_group("S_3", [*[[0, 1, 2]] * 6, [-1] * 3])
    layer, read = model.backbone.blocks[0].mixer, model.readouts["answer"].weight
    with torch.no_grad():
        layer.value_proj.weight.view(3, 2, -1)[:, 1, 6] = torch.tensor([1.0, 2.0, 3.0])
        layer.gate_proj.weight.view(3, 4, 2, -1)[:, :, 1] /= 2
        # Class 0 reads what is 0 there at first.
        read[0, 3:6] = torch.tensor([-20.0, 10.0, 0.0])
    cut = prune(harden(model), AUTOMATON)
    assert (cut.tracking, cut.varying) == ((0, 1), (0,))
    check_length_of_both_blocks(model)


def test_rounding_of_the_readout_leaves_no_room_under_large_biases(of_group):
    model = of_group("S_3")
    lengths = []
    for bias in (0.0, 1e5, 1e7):
        with torch.no_grad():
            model.readouts["answer"].bias.fill_(bias)
        lengths.append(length_of(model))
    assert lengths[0] > lengths[1] > lengths[2] == 0
