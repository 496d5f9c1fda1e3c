"""Certificates against automata built by hand, and against all short words."""

import contextlib
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statemix.automaton import IGNORED, NEVER, Automaton
from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.models import SequenceAutoencoder, TokenClassifier
from statemix.proofs import harden, product_search, prove, prune, search
from statemix.proofs.hardening import walk
from statemix.tasks.chomsky import ModularArithmetic
from statemix.tasks.permutation import Permutation

S_3 = Permutation(group="S_3").automaton()
ONE_STATE = np.zeros((1, 6), np.int64)
ANYTHING = Automaton(0, ONE_STATE, ONE_STATE + IGNORED)


def failing_words(model, automaton, length):
    """All words of a length whose last answer is wrong, by the forward pass on the whole words."""
    words, answers = [], []
    for word in itertools.product(range(automaton.num_tokens), repeat=length):
        # Some tokens cannot follow.
        with contextlib.suppress(ValueError):
            *_, answer = automaton.answers(word)
            if answer != IGNORED:
                words.append(word)
                answers.append(answer)
    if not words:
        return set()
    with torch.no_grad():
        logits = model(torch.tensor(words))["answer"][:, -1]
    best = logits.argsort(1, descending=True)
    answers = torch.tensor(answers)
    tied = logits.gather(1, best[:, :1]) == logits.gather(1, best[:, 1:2])
    wrong = (best[:, 0] != answers) | tied[:, 0]
    return {word for word, is_wrong in zip(words, wrong.tolist(), strict=True) if is_wrong}


@pytest.mark.parametrize("name", ["S_3", "A_5"])
def test_the_exact_block_of_a_group_is_proven(of_group, name):
    task = Permutation(group=name)
    levels = []
    found = search(harden(of_group(name)), task.automaton(), on_progress=levels.append)
    assert (found.verdict, found.pairs, found.word, found.reason) == (
        "proven",
        task.group.order,
        (),
        "",
    )
    # One exchange of neighbours costs 1; even permutations need two.
    assert found.margin == (2 if name == "A_5" else 1)
    assert levels == [task.group.order] * 2


@pytest.mark.parametrize("name", ["S_2", "S_4"])
def test_a_block_with_value_channels_is_proven(of_group_in_channels, name):
    task = Permutation(group=name)
    model = of_group_in_channels(name)
    found = search(harden(model), task.automaton())
    # One exchange of neighbours moves two of the points.
    assert (found.verdict, found.pairs, found.margin) == ("proven", task.group.order, 2)
    # Every channel counts: without the last, two points look alike.
    with torch.no_grad():
        weight = model.backbone.blocks[0].mixer.out_proj.weight
        size = int(name[2:])
        weight.view(-1, size, size, 1)[:, :, -2:] = 0
    assert search(harden(model), task.automaton()).verdict == "refuted"


def test_a_block_tracks_only_if_all_of_its_channels_do(of_group_in_channels):
    """Both more blocks hold zeros in all channels but one, which holds a constant or the token."""
    loads = [[-1] * 3] * 7
    held = np.zeros((2, 7, 3, 3))
    held[0, :, 1, 2] = 5
    held[1, :, 1, 2] = np.arange(7)
    model = of_group_in_channels("S_3", (loads, held[0]), (loads, held[1]))
    pruned = prune(harden(model), S_3)
    assert (pruned.tracking, pruned.varying, pruned.num_blocks) == ((0, 1), (0,), 3)
    loads = pruned.model.backbone.blocks[0].mixer.value_proj.weight.view(3, 3, 3, -1)
    assert [bool(loads[:, :, block].any()) for block in range(3)] == [True, True, False]
    found = prove(model, S_3)
    assert (found.result.verdict, found.tracking) == ("proven", (0, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_of_any_dtype_is_proven(of_group, dtype):
    found = search(harden(of_group("S_3")).to(dtype), S_3)
    assert (found.verdict, found.pairs, found.margin) == ("proven", 6, 1)


def test_soft_gates_are_proven_where_they_round_to_hard_ones(of_group):
    model = of_group("S_3")
    task = Permutation(group="S_3")
    assert search(model, task.automaton(), max_pairs=2000).verdict == "open"
    model.backbone.blocks[0].mixer.gate_temperature = 8.0 / 200
    assert search(model, task.automaton()) == search(harden(model), task.automaton())


def test_a_stack_of_layers_is_proven_as_a_whole(of_group, stacked):
    model = stacked(of_group("S_3"))
    found = search(harden(model), S_3)
    assert (found.verdict, found.pairs, found.margin) == ("proven", 6, 1)
    # Blocks are numbered over both layers; the first one holds zeros.
    whole = prove(model, S_3)
    assert (whole.result.verdict, whole.network) == ("proven", "pruned")
    assert (whole.tracking, whole.num_blocks) == ((0, 1), 2)
    assert prune(harden(model), S_3).varying == (1,)


def test_states_of_all_layers_tell_words_apart(tracker, stacked):
    """The first layer is always in one state; the second writes a 5 that tokens push out."""
    sources = [[[-1, 0, 1, 2], [-1, -1, -1, -1]]]
    values = [[[0.0] * 4, [5.0, 0.0, 0.0, 0.0]]]
    model = tracker(sources, values, [[0, 0, 0, 0], [0, 0, 0, 1]], 2)
    with torch.no_grad():
        model.readouts["answer"].bias[0] = 1
    always = Automaton(0, np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64))
    found = search(harden(stacked(model)), always)
    assert (found.verdict, found.word) == ("refuted", (0, 0, 0))


def test_a_model_is_certified_as_it_is_evaluated(of_group):
    model = harden(of_group("S_3"))
    layer = model.backbone.blocks[0].mixer
    layer.out_proj = torch.nn.Sequential(layer.out_proj, torch.nn.Dropout(0.5))
    found = search(model.train(), S_3)
    assert (found.verdict, found.pairs) == ("proven", 6)


@pytest.mark.parametrize("token", [1, 5])
def test_one_gate_swapped_is_refuted_by_a_shortest_word(of_group, token):
    model = of_group("S_3")
    gates = model.backbone.blocks[0].mixer.gate_proj.weight.view(3, 4, 1, -1)
    with torch.no_grad():
        gates[0, :, 0, token] = gates[0, [1, 2, 0, 3], 0, token]
    hard = harden(model)
    found = search(hard, S_3)
    assert found.verdict == "refuted"
    failing = next(filter(None, (failing_words(hard, S_3, length) for length in range(1, 6))))
    assert found.word in failing
    answer = int(hard(torch.tensor([found.word]))["answer"][0, -1].argmax())
    assert (found.answer, found.expected) == (answer, S_3.answers(found.word)[-1])
    assert found.answer != found.expected


def test_the_margin_is_the_smallest_of_all_levels(passing):
    """The first answer leads by 5 * 0.3 - 1, and later ones by 4 and by 1."""
    found = search(harden(passing[0]), passing[1])
    assert (found.verdict, found.pairs) == ("proven", 3)
    assert found.margin == pytest.approx(0.5)


def test_tokens_that_cannot_follow_do_not_count_in_a_block(tracker):
    """Token 1 loads what the block holds at place 0, where alone it can stand; 2 is the last."""
    sources = [[[1, 0], [-1, -1], [-1, -1], [-1, -1]]]
    values = [[[0.0, 0.0], [1.0, 2.0], [3.0, 3.0], [1.0, 2.0]]]
    model = harden(tracker(sources, values, [[-1, 1], [1, -1]], 2))
    transitions = np.array([[1, 0, 2], [0, NEVER, 2], [NEVER] * 3])
    outputs = np.array([[1, 0, IGNORED], [0, IGNORED, IGNORED], [IGNORED] * 3])
    automaton = Automaton(0, transitions, outputs)
    assert prune(model, automaton).tracking == (0,)
    # Both classes have the same logit after the last token, where nothing is scored.
    found = search(model, automaton)
    assert (found.verdict, found.margin) == ("proven", 2.0)
    # At place 1 the block does not hold what token 1 loads.
    transitions[1, 1] = 1
    assert prune(model, Automaton(0, transitions, outputs)).tracking == ()


def test_blocks_that_do_not_track_are_pruned(of_group):
    # One block keeps the last token but one of {1, 2}, the other is shifted by every token.
    keeps = [[-1 if token in (1, 2, 6) else entry for entry in range(3)] for token in range(7)]
    shifts = [[(entry + 1) % 3 for entry in range(3)]] * 6 + [[-1] * 3]
    model = harden(of_group("S_3", keeps, shifts))
    whole = search(model, S_3)
    assert whole.verdict == "proven"
    assert whole.pairs > 6
    rest = prune(model, S_3)
    # All entries of the block that is shifted hold one value, so nothing is there to follow.
    assert (rest.tracking, rest.num_blocks) == ((0, 2), 3)
    found = search(rest.model, S_3)
    assert (found.verdict, found.pairs, found.margin) == ("proven", 6, whole.margin)
    assert model.backbone.blocks[0].mixer.value_proj.weight.abs().sum() > 0
    # The other block is not read, whatever the readout does.
    with torch.no_grad():
        model.readouts["answer"].weight[0, 3:6] = 10
    assert search(model, S_3).verdict == "refuted"
    assert search(prune(model, S_3).model, S_3).verdict == "proven"


def test_a_block_that_is_pruned_forgets_its_learned_state(of_group):
    # The block is never written, and the transposition 1 turns what it has held from the start.
    turns = [[1, 0, 2] if token == 1 else [0, 1, 2] for token in range(7)]
    model = of_group("S_3", turns, initial_state="learned")
    with torch.no_grad():
        model.backbone.blocks[0].mixer.learned_state[1] = torch.tensor([1.0, 2.0, 3.0])
    assert search(harden(model), S_3).pairs == 12
    rest = prune(harden(model), S_3)
    assert rest.tracking == (0,)
    assert search(rest.model, S_3).pairs == 6


def test_the_head_that_answers_may_be_chosen(of_group):
    model = harden(of_group("S_3"))
    other = torch.nn.Linear(model.readouts["answer"].in_features, 6)
    model.readouts = torch.nn.ModuleDict({"other": other, "answer": model.readouts["answer"]})
    model.heads = {"other": 6, "answer": 6}
    assert search(model, S_3, head="answer").verdict == "proven"
    assert search(model, S_3).verdict == "refuted"


@pytest.mark.parametrize(("most", "length"), [(5, 0), (6, 1), (257, 2)])
def test_whole_lengths_are_checked_before_the_search_gives_up(most, length):
    """No two words lead an LSTM to one state, so there are 6, 42, 258 ... of them."""
    model = TokenClassifier(6, {"answer": 6}, 8, [LayerSpec("lstm")])
    found = search(model, ANYTHING, max_pairs=most)
    assert (found.verdict, found.margin, found.word) == ("open", None, ())
    assert (found.answer, found.expected, found.checked) == (None, None, length)
    assert found.reason == f"more than {most} pairs of states"
    with pytest.raises(ValueError, match="model must have a layer with gates to harden"):
        harden(model)
    with pytest.raises(TypeError, match=r"no layers but BD-LRUs to prune, got \['LSTM'\]"):
        prune(model, ANYTHING)


@pytest.mark.parametrize(
    ("output", "state", "scale", "verdict"),
    [
        (0, 1e-6, 1, "open"),
        (1e-5, 0, 1, "open"),
        # Roundings are relative to the logits.
        (1e-6, 0, 1e-3, "open"),
        (1e-8, 0, 1e3, "proven"),
    ],
)
def test_rows_may_round_logits_by_their_place_and_nothing_else(
    of_group, monkeypatch, output, state, scale, verdict
):
    model = harden(of_group("S_3"))
    with torch.no_grad():
        model.readouts["answer"].weight *= scale
    layer = model.backbone.blocks[0].mixer
    forward = layer.forward

    def leaky(x, before=None, cu_seqlens=None):
        y, after = forward(x, before, cu_seqlens)
        places = torch.arange(len(y)).view(-1, 1, 1)
        return y + output * places, after + state * places

    monkeypatch.setattr(layer, "forward", leaky)
    found = search(model, S_3)
    assert found.verdict == verdict
    if verdict == "open":
        assert found.pairs == 0
        assert found.reason == "a row of a step depends on where it stands in its batch"


def test_a_failure_of_steps_alone_is_not_a_refutation(of_group, monkeypatch):
    model = harden(of_group("S_3"))
    monkeypatch.setattr(model, "forward", of_group("S_3").forward)
    with torch.no_grad():
        model.readouts["answer"].weight[3] *= -1
    found = search(model, S_3)
    assert found.verdict == "open"
    assert found.reason == "steps fail on the word [3], the whole does not"


def test_what_is_no_number_is_wrong(of_group):
    model = harden(of_group("S_3"))
    with torch.no_grad():
        model.readouts["answer"].weight[2] = torch.nan
    found = search(model, S_3)
    assert (found.verdict, found.answer, found.expected) == ("refuted", None, found.word[0])


def test_a_tie_is_wrong(of_group):
    model = harden(of_group("S_2"))
    with torch.no_grad():
        model.readouts["answer"].weight.zero_()
    found = search(model, Permutation(group="S_2").automaton())
    assert (found.verdict, found.word) == ("refuted", (0,))
    # Of the classes that are level, the wrong one is shown.
    assert (found.answer, found.expected) == (1, 0)


def test_the_only_class_has_no_margin():
    layer = LayerSpec("bd_lru", num_blocks=2, block_size=2, input_gate_bias=6.0)
    model = TokenClassifier(2, {"answer": 1}, 8, [layer], seed=0)
    table = np.array([[0, 1], [1, 0]])
    found = prove(model, Automaton(0, table, np.zeros_like(table)))
    # No block tracks.
    assert (found.result.verdict, found.result.margin, found.tracking) == ("proven", None, ())
    json.dumps(found.to_plain(), allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "x"}, r"head must be one of \['answer'\], got 'x'"),
        ({"max_pairs": 0}, "max_pairs must be at least 1, got 0"),
        ({"automaton": Automaton(0, ONE_STATE[:, 1:], ONE_STATE[:, 1:])}, "the 6 tokens .* got 5"),
        ({"automaton": Automaton(0, ONE_STATE, ONE_STATE + 6)}, "outputs must be below the 6"),
        ({"automaton": [[0]]}, r"automaton must be an Automaton, got \[\[0\]\]"),
    ],
)
def test_bad_requests_are_named(of_group, changes, message):
    for proof in (search, prove):
        with pytest.raises((ValueError, TypeError), match=message):
            proof(of_group("S_3"), **{"automaton": S_3} | changes)


@pytest.mark.parametrize("automaton", [ANYTHING, Automaton(0, ONE_STATE + NEVER, ONE_STATE)])
def test_an_automaton_must_score_an_answer_to_some_word(of_group, automaton):
    with pytest.raises(ValueError, match="automaton must score an answer to some word, got none"):
        prove(of_group("S_3"), automaton)


def test_only_classifiers_are_searched():
    layers = [LayerSpec("bd_lru", num_blocks=2, block_size=2)]
    with pytest.raises(TypeError, match="model must classify each token by itself, got Sequence"):
        search(SequenceAutoencoder(6, {"answer": 6}, 8, layers), S_3)


def hard_blocks(draw, tracker):
    """A random model of hard blocks over few tokens, and its own automaton, perhaps damaged."""
    num_blocks, num_tokens, m = (draw(st.integers(1, most)) for most in (2, 3, 2))
    classes = draw(st.integers(2, 3))
    # The learned token writes first: it loads every entry, and none is ever 0.
    shape = (num_blocks, num_tokens + 1, m)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sources = rng.integers(-1, m, shape)
    sources[:, -1] = -1
    values = rng.integers(1, 4, shape)
    readout = rng.integers(-9, 10, (classes, num_blocks * m)) + rng.random((classes, 1))
    model = harden(tracker(sources.tolist(), values.tolist(), readout, classes))
    # The automaton by the tables, in integers; one answer is changed if it is damaged.
    readout, damaged = readout.astype(np.float32), draw(st.booleans())
    start = tuple(values[:, -1].ravel().tolist())
    states, transitions, outputs = [start], [], []
    for state in states:
        held = np.array(state).reshape(num_blocks, m)
        row, answers = [], []
        for token in range(num_tokens):
            copied = np.take_along_axis(held, np.maximum(sources[:, token], 0), axis=1)
            after = np.where(sources[:, token] < 0, values[:, token], copied)
            logits = readout @ after.ravel()
            best = np.sort(logits)[::-1]
            near = best[0] - best[1] < 1e-3
            answers.append(IGNORED if near else int(logits.argmax()))
            reached = tuple(after.ravel().tolist())
            if reached not in states:
                states.append(reached)
            row.append(states.index(reached))
        transitions.append(row)
        outputs.append(answers)
    outputs = np.array(outputs)
    if damaged:
        place = tuple(rng.integers(0, size) for size in outputs.shape)
        if outputs[place] != IGNORED:
            outputs[place] = (outputs[place] + 1) % len(readout)
    return model, Automaton(0, np.array(transitions), outputs)


@given(st.data())
def test_verdicts_agree_with_all_words_of_up_to_six_tokens(tracker, data):
    model, automaton = hard_blocks(data.draw, tracker)
    found = search(model, automaton)
    assert found.verdict in ("proven", "refuted")
    failing = [failing_words(model, automaton, length) for length in range(1, 7)]
    shortest = next((length for length, words in enumerate(failing, 1) if words), None)
    assert found.checked == (None if found.verdict == "proven" else len(found.word) - 1)
    if found.verdict == "proven":
        assert shortest is None
    elif len(found.word) <= 6:
        assert len(found.word) == shortest
        assert found.word in failing[shortest - 1]
    else:
        assert shortest is None


def test_words_that_are_no_expressions_are_named():
    automaton = ModularArithmetic().automaton()
    assert automaton.answers([2, 7, 3, 6, 4, 8]) == [IGNORED] * 5 + [2]  # 2 * 3 - 4 =
    for word, position in (([5], 0), ([1, 2], 1), ([1, 8, 1], 2)):
        with pytest.raises(ValueError, match=f"cannot stand at position {position}"):
            automaton.answers(word)
    for token in (-1, automaton.num_tokens):
        with pytest.raises(ValueError, match=f"tokens must be in .*, got {token}"):
            automaton.answers([token])


@pytest.mark.parametrize(
    ("start", "transitions", "outputs", "error"),
    [
        (0, [[0, 1]], np.zeros((1, 2), np.int64), TypeError),
        (0, np.zeros((1, 2), np.int64), np.zeros((2, 1), np.int64), ValueError),
        (1, np.zeros((1, 2), np.int64), np.zeros((1, 2), np.int64), ValueError),
        (0, np.full((1, 2), 1), np.zeros((1, 2), np.int64), ValueError),
        (0, np.zeros((1, 2), np.int64), np.full((1, 2), -1), ValueError),
    ],
)
def test_tables_that_are_no_automaton_are_refused(start, transitions, outputs, error):
    with pytest.raises(error):
        Automaton(start, transitions, outputs)


def test_pairs_beyond_memory_are_refused(of_group, monkeypatch):
    model, automaton = harden(of_group("S_3")), S_3
    state = 3 * 4
    monkeypatch.setattr(product_search, "available_bytes", lambda: 1000 * (150 + state))
    assert search(model, automaton, max_pairs=1000).verdict == "proven"
    with pytest.raises(RequestError, match=r"^max_pairs must fit into memory \(.*\), got 1001$"):
        search(model, automaton, max_pairs=1001)


def test_a_token_leads_to_the_same_bytes_whatever_tokens_can_follow():
    """Products of one row and of two may be rounded otherwise."""
    torch.manual_seed(0)
    layer = LayerSpec("bd_lru", num_blocks=8, block_size=3, initial_state="learned")
    model = harden(TokenClassifier(2, {"answer": 3}, 32, [layer])).eval()
    after = []
    for transitions in ([[0, 0]], [[0, NEVER]]):
        table = np.array(transitions)
        step = next(walk(model, Automaton(0, table, np.zeros_like(table))))
        after.append(step.after[0][0])
    assert torch.equal(*after)


def test_an_answer_that_rounding_may_change_is_no_proof(of_group):
    """A constant that is added to all logits changes no difference, but makes rounding larger."""
    model = of_group("S_3")
    assert prove(model, S_3).verdict == "proven"
    with torch.no_grad():
        model.readouts["answer"].weight += 2.0**18
    found = search(harden(model), S_3)
    assert found.verdict == "open"
    assert found.reason.startswith("rounding may change the answer after the word [")
    # A readout that is fitted again has no common part.
    again = prove(model, S_3)
    assert (again.verdict, again.network) == ("proven", "refitted")
