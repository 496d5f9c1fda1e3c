"""Blocks of column gates, written down gate by gate: proofs, maps, and gates that nearly tie."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statemix.automaton import Automaton
from statemix.layers import LayerSpec
from statemix.models import TokenClassifier
from statemix.proofs import StateMachine, harden, join_actions, prove, read_actions, read_tables
from statemix.proofs.check_certificate import check
from statemix.proofs.token_maps import maps_of, semigroup_order
from statemix_lab.inspection.layer_text import sentences

SHARP = 8.0
# Letters merge states; the last one resets.
TABLE = np.array([[1, 3, 2], [2, 0, 2], [3, 3, 2], [0, 1, 2], [4, 0, 2]])
START = 4


def answering(table, start):
    """The automaton that answers with its state."""
    table = np.asarray(table)
    return Automaton(start, table, table.copy())


def column_tracker(targets, readout, loads=(), *, bos=False, initial_state="unit"):
    """A model of hard column blocks.

    Args:
        targets: for each block, token and entry, where the entry goes.
        readout: logits are its product with all entries, block by block.
        loads: block, token, entry and value of each load.
    """
    blocks, tokens, m = np.shape(targets)
    gates = {"gate": "column_softmax", "initial_state": initial_state}
    spec = LayerSpec("bd_lru", num_blocks=blocks, block_size=m, **gates)
    options = {"bos": bos, "residual": False, "norm": "none"}
    heads, width = {"answer": len(readout)}, tokens + blocks * m
    model = TokenClassifier(tokens - bos, heads, width, [spec], **options)
    layer = model.backbone.blocks[0].mixer
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.backbone.embedding.weight[:, :tokens] = torch.eye(tokens)
        gates = layer.gate_proj.weight.view(m, m + 1, blocks, -1)
        gates[:, m, :, :tokens] = -SHARP
        for block, token, entry in np.ndindex(blocks, tokens, m):
            gates[targets[block][token][entry], entry, block, token] = SHARP
        for block, token, entry, value in loads:
            gates[entry, m, block, token] = SHARP
            layer.value_proj.weight.view(m, blocks, -1)[entry, block, token] = value
        read = layer.out_proj.weight.view(-1, m, blocks)
        for block, entry in np.ndindex(blocks, m):
            read[block * m + entry, entry, block] = 1
        model.readouts["answer"].weight[:, : blocks * m] = torch.as_tensor(readout).float()
    return model


def renamed(table, start):
    """Where entries go if states are the entries in another order, the start first."""
    order = [start, *(state for state in range(len(table)) if state != start)]
    place = np.argsort(order)
    return place[np.asarray(table)[order]].T.tolist(), np.eye(len(table))[:, order]


@pytest.fixture
def tracking():
    """A model of TABLE with one block that tracks and one that does not."""
    targets, readout = renamed(TABLE, START)
    # After an even number of tokens 0, the block returns to its first entry.
    other = [[1, 0, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    return column_tracker([targets, other], np.concatenate([readout, 0 * readout], 1))


def test_an_automaton_that_merges_states_is_proven_with_an_entry_for_each(tracking):
    found = prove(tracking, answering(TABLE, START))
    assert (found.result.verdict, found.network, found.tracking) == ("proven", "pruned", (0,))
    assert found.gate_margin == 8.0
    # The other block holds zeros, and has no place in the tables.
    assert len(found.tables(answering(TABLE, START))["start"]) == 1
    assert found.model.backbone.blocks[0].mixer.init_state(1)[0, 1].eq(0).all()
    assert tracking.backbone.blocks[0].mixer.init_state(1)[0, 1, 0] == 1
    assert found.result.pairs == len(TABLE)


def test_a_wrong_move_is_refuted_with_a_shortest_word(tracking):
    wrong = TABLE.copy()
    wrong[1, 0] = 3
    found = prove(tracking, answering(wrong, START))
    assert (found.verdict, found.network, found.result.word) == ("refuted", "hardened", (1, 0, 0))


def test_tokens_that_load_a_block_track_too():
    """Token 2 loads a 3 into the entry of state 2; the readout tells no weights apart."""
    model, automaton = loaded(3.0)
    found = prove(model, automaton)
    assert (found.verdict, found.network) == ("proven", "hardened")
    # States of weight 1 and of weight 3.
    assert found.result.pairs > len(TABLE)
    assert prove(*loaded(1.0)).network == "pruned"


def loaded(value):
    """Token 2 loads the entry of state 2 with a value, and all others start with 1."""
    targets, readout = renamed(TABLE, START)
    entry = int(readout[2].argmax())
    targets[2] = list(range(5))
    return column_tracker([targets], readout, [(0, 2, entry, value)]), answering(TABLE, START)


def moved_by_the_learned_token():
    targets = [[[0, 2, 1], [0, 1, 2], [1, 1, 2]]]
    return column_tracker(targets, np.eye(2, 3, 1), bos=True), answering([[1, 0], [0, 1]], 0)


def filled_by_the_learned_token():
    targets = [[[1, 2, 0], [0, 1, 2], [0, 1, 2]]]
    options = {"bos": True, "initial_state": "zero"}
    model = column_tracker(targets, np.eye(3), [(0, 2, 0, 1.0)], **options)
    return model, answering([[1, 0], [2, 1], [0, 2]], 0)


@pytest.mark.parametrize(
    "made", [lambda: loaded(3.0), moved_by_the_learned_token, filled_by_the_learned_token]
)
def test_certificates_hold_the_place_of_each_block(made):
    model, automaton = made()
    found = prove(model, automaton)
    tables = found.tables(automaton)
    # The checker counts the pair of the empty word, too, and weights that are loaded by themselves.
    pairs, word = check(tables)
    assert word is None
    assert pairs >= found.result.pairs
    assert len(tables["start"]) == 1
    machine = StateMachine.from_tables(tables)
    rng = np.random.default_rng(0)
    for word in rng.integers(automaton.num_tokens, size=(20, 30)).tolist():
        assert machine.run(word)[0].tolist() == automaton.answers(word)


def test_certificates_hold_blocks_with_unequal_numbers_of_places():
    targets, readout = renamed(TABLE, START)
    # A block that stays in its first entry has one place.
    still = [list(range(5))] * 3
    model = column_tracker([targets, still], np.concatenate([readout, 0 * readout], 1))
    automaton = answering(TABLE, START)
    tables = prove(model, automaton).tables(automaton)
    assert len(tables["start"]) == 2
    assert check(tables)[1] is None


def test_there_are_no_tables_of_blocks_that_begin_in_several_entries():
    targets, readout = renamed(TABLE, START)
    model = column_tracker([targets], readout, initial_state="learned")
    with torch.no_grad():
        model.backbone.blocks[0].mixer.learned_state[:] = torch.tensor([2.0, 1, 0, 0, 0])
    assert maps_of(harden(model), model.backbone.vocab_size).starts == [-1]
    reason = read_tables(harden(model), answering(TABLE, START), "answer")
    assert reason == "the network does not begin in one entry of each block"


def test_the_maps_of_columns_are_those_of_the_automaton(tracking):
    automaton = answering(TABLE, START)
    found = read_actions(tracking, automaton)
    targets, _ = renamed(TABLE, START)
    assert [one["role"] for one in found] == ["tracks", "other"]
    assert found[0]["sources"] == targets
    order = semigroup_order(np.empty((3, 0), np.int64), TABLE.T)
    assert found[0]["order"] == order
    (said, _) = sentences(found, judged=True)
    assert f"its tokens move the entries, and their words make {order} maps" in said
    joined = join_actions(tracking, found, automaton)
    assert (joined["order"], joined["relation"]) == (order, "isomorphic")


@pytest.mark.parametrize(
    ("made", "order"), [(moved_by_the_learned_token, 2), (filled_by_the_learned_token, 3)]
)
def test_the_learned_token_goes_before_all_words(made, order):
    """It moves the weight from entry 0, which nothing else leaves, or fills an empty block."""
    model, automaton = made()
    assert prove(model, automaton).verdict == "proven"
    (found,) = read_actions(model, automaton)
    assert (found["role"], found["order"]) == ("tracks", order)
    assert join_actions(model, [found], automaton)["relation"] == "isomorphic"


def with_gate(model, entry, column, value):
    """The model with another raw gate under token 0 in block 0."""
    layer = model.backbone.blocks[0].mixer
    m = layer.block_size
    with torch.no_grad():
        gates = layer.gate_proj.weight.view(m, m + 1, layer.num_blocks, -1)
        assert gates[entry, column, 0, 0] != SHARP
        gates[entry, column, 0, 0] = value
    return model


@pytest.mark.parametrize(("entry", "column", "largest"), [(1, 0, SHARP), (3, 5, 0.0)])
def test_columns_and_inputs_that_rounding_may_swap_prove_nothing(tracking, entry, column, largest):
    """A second gate close to the largest of its column, and an input gate close to zero."""
    automaton = answering(TABLE, START)
    wide = prove(with_gate(tracking, entry, column, largest - 0.125), automaton)
    assert (wide.verdict, wide.gate_margin) == ("proven", 0.125)
    close = prove(with_gate(tracking, entry, column, largest - 2e-6), automaton)
    assert (close.verdict, close.network) == ("open", "pruned")
    assert "rounding may swap two gates" in close.result.reason


def test_blocks_of_one_entry_are_compared_by_their_input_gates():
    model = column_tracker([[[0], [0]]], [[1.0]], [(0, 1, 0, 1.0)])
    found = prove(model, answering([[0, 0]], 0))
    assert (found.verdict, found.gate_margin) == ("proven", 8.0)


@pytest.mark.parametrize(
    ("value", "state", "largest"), [(3.0, [1.0, 0.0, 0.0], 3.0), (0.5, [0.5, 0.25, 0.0], 0.75)]
)
def test_the_drift_of_soft_columns_is_that_of_the_equation(value, state, largest):
    """Raw gates of 8, 0, 0 in the columns, -8 and a zero for the state in the inputs."""
    targets, readout = [[1, 2, 0], [0, 1, 2]], np.eye(3)
    model = column_tracker([targets], readout)
    layer = model.backbone.blocks[0].mixer
    layer.gate_temperature = 2.0
    with torch.no_grad():
        layer.value_proj.weight[0, 1] = value
        layer.unit_state[0] = torch.tensor(state)
    kept = 1 / (1 + 3 * math.exp(-4))
    moved = kept * math.exp(4) / (math.exp(4) + 2)
    step = (1 - moved) + (kept - moved) + (1 - kept)
    found = prove(model, answering([[1, 0], [2, 1], [0, 2]], 0))
    assert found.verdict == "proven"
    drift = f"states can drift by up to {step * largest:.2g} per token"
    assert drift in found.horizon.reason


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), noise=st.sampled_from([0.0, 0.3, 1.0]))
def test_soft_columns_are_right_up_to_their_length(seed, noise):
    targets, readout = renamed(TABLE, START)
    model = column_tracker([targets], readout, [(0, 2, 3, 1.0)])
    automaton = answering(np.where(np.arange(3) == 2, int(readout[:, 3].argmax()), TABLE), START)
    generator = torch.Generator().manual_seed(seed)
    layer, read = model.backbone.blocks[0].mixer, model.readouts["answer"].weight
    layer.gate_temperature = 1.5
    with torch.no_grad():
        for weight in (read[:, :5], layer.gate_proj.weight):
            weight += noise * torch.randn(weight.shape, generator=generator)
    found = prove(model, automaton, soft=True, max_pairs=50)
    words = torch.randint(3, (64, 300), generator=generator)
    answers = torch.tensor([automaton.answers(word) for word in words.tolist()])
    right = (model(words)["answer"].argmax(-1) == answers).all(0)
    assert right[: found.horizon.tokens].all()
