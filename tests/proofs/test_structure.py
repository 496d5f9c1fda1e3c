"""Proofs by structure: what tokens do to entries is what they do to places."""

import itertools

import numpy as np
import pytest
import torch

from statemix import tasks
from statemix.layers import LayerSpec
from statemix.models import MixerSpec, TokenClassifier
from statemix.place_rules import PlaceRules
from statemix.proofs import EntryMachine, SearchResult, prove_by_structure, prove_places, structure
from statemix.proofs.place_readouts import Reading, by_block
from statemix.proofs.product_search import margins
from statemix.tasks.arrangement import Arrangement

SHARP = 8.0
# Places with two contents: an exchange, a load of 1, and a move that merges.
LOADS = PlaceRules(np.array([0, 1, 0]), np.array([[1, 0, 2], [-2, 1, 2], [0, 0, 1]]), 2)


def follower(rules, *, norm="none", residual=False, readout=1.0, more_blocks=0):
    """The exact follower of some places: entry p of block 0 holds the content of place p, one-hot.

    The learned token writes the first contents; further blocks shift what they hold.
    """
    P, K, tokens = rules.num_places, rules.num_contents, rules.num_tokens
    blocks = 1 + more_blocks
    spec = LayerSpec("bd_lru", num_blocks=blocks, block_size=P, value_channels=K)
    heads, width = {f"place_{p}": K for p in range(P)}, tokens + 1 + P * K
    options = {"bos": True, "residual": residual, "norm": "none"}
    model = TokenClassifier(tokens, heads, width, [spec], **options)
    layer = model.backbone.blocks[0].mixer
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.backbone.embedding.weight[:, : tokens + 1] = torch.eye(tokens + 1)
        gates = layer.gate_proj.weight.view(P, P + 1, blocks, -1)
        loads = layer.value_proj.weight.view(P, K, blocks, -1)
        out = layer.out_proj.weight.view(-1, P, K, blocks)
        sources = np.concatenate([rules.sources, [-1 - rules.start]])
        for token, entry in itertools.product(range(tokens + 1), range(P)):
            source = sources[token, entry]
            gates[entry, source if source >= 0 else P, 0, token] = SHARP
            if source < 0:
                loads[entry, -1 - source, 0, token] = 1
            for block in range(1, blocks):
                gates[entry, entry - 1 if entry and token < tokens else P, block, token] = SHARP
                loads[entry, 0, block, token] = token
        for entry, content in itertools.product(range(P), range(K)):
            out[tokens + 1 + entry * K + content, entry, content, 0] = 1
            head = model.readouts[f"place_{entry}"]
            head.weight[content, tokens + 1 + entry * K + content] = readout
    if norm != "none":
        model.backbone.final_norm = {"rms": torch.nn.RMSNorm, "layer": torch.nn.LayerNorm}[norm](
            model.backbone.embedding.embedding_dim
        )
    return model


def test_places_without_a_head_are_followed_but_not_read():
    """A hidden place hands its content to a place with a head."""
    rules = PlaceRules(np.array([0, 1, 2]), np.array([[1, 0, 2], [2, 1, 2]]), 3)
    model = follower(rules)
    del model.readouts["place_2"], model.heads["place_2"]
    with pytest.raises(ValueError, match="must have 2 tokens and 3 heads, got 2 and 2"):
        prove_by_structure(model, rules)
    hidden = PlaceRules(rules.start, rules.sources, 3, num_hidden=1)
    found = prove_by_structure(model, hidden)
    assert (found.verdict, found.network) == ("proven", "pruned")
    gates = model.backbone.blocks[0].mixer.gate_proj.weight.data.view(3, 4, 1, -1)
    gates[2, :, 0, 0] = gates[2, :, 0, 0].roll(1)
    assert prove_by_structure(model, hidden).result.reason == "no entry follows place 1"


def rules_of(moves):
    return tasks.build("arrangement", moves=moves).places()


@pytest.fixture
def as_trained(monkeypatch):
    """Do not fit readouts again."""
    monkeypatch.setattr(Reading, "refit", lambda *_: None)


EXAMPLES = [rules_of("(1 2); (1 2 3)"), rules_of("(1 2); (1 2 3 4 5 6 7 8)"), LOADS]


@pytest.mark.parametrize(
    ("rules", "norm"), [(0, "none"), (1, "rms"), (2, "layer"), (0, "layer"), (2, "none")]
)
def test_the_exact_follower_is_proven_and_right(rules, norm):
    rules = EXAMPLES[rules]
    model = follower(rules, norm=norm, more_blocks=1)
    # The model reads a block that follows nothing, and the network that is proven does not.
    shape = -1, rules.num_places, rules.num_contents, 2
    out = model.backbone.blocks[0].mixer.out_proj.weight.data.view(shape)
    out[..., 1] = torch.randn(out[..., 1].shape, generator=torch.Generator().manual_seed(0))
    found = prove_by_structure(model, rules)
    assert (found.verdict, found.result.reason) == ("proven", "")
    assert (found.method, found.network, found.tracking) == ("structure", "pruned", (0,))
    words = torch.randint(rules.num_tokens, (4, 3000), generator=torch.Generator().manual_seed(0))
    contents = rules.contents(words.numpy())
    check_answers(found, words, contents)
    if norm == "none":
        assert found.result.margin == pytest.approx(1, abs=1e-3)


@torch.no_grad()
def check_answers(found, words, contents):
    """The network names all contents, by leads that are not below the margin."""
    for p, logits in enumerate(found.model(words).values()):
        answers = torch.from_numpy(contents[..., p])
        assert torch.equal(logits.argmax(-1), answers)
        leads = margins(logits.flatten(0, 1), answers.flatten())
        assert 0 < found.result.margin <= float(leads.min()) * (1 + 1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_proofs_and_machines_of_random_places_are_right(seed):
    """Tokens may load more contents than there are entries."""
    draw = np.random.default_rng(seed)
    answered = 0
    for _ in range(5):
        places, contents, tokens = draw.integers([1, 2, 1], [5, 8, 5])
        sources = draw.integers(-contents, places, size=(tokens, places))
        rules = PlaceRules(draw.integers(contents, size=places), sources, int(contents))
        found = prove_by_structure(follower(rules), rules)
        if found.verdict != "proven":
            # The exact follower lacks nothing but values that tell contents apart.
            assert found.result.reason.startswith("no entry follows")
            continue
        tables = structure.structure_tables(found.model, rules)
        machine = EntryMachine.from_tables(tables)
        words = draw.integers(tokens, size=(3, 40))
        expected = rules.contents(words)[:, -1]
        np.testing.assert_array_equal(machine.answers(machine.run(words)), expected)
        answered += 1
    assert answered > 1


@pytest.mark.parametrize(
    ("rules", "norm", "residual"),
    [
        *((0, "none", False), (1, "rms", False), (2, "layer", False)),
        *((2, "none", True), (0, "rms", True), (1, "layer", True)),
    ],
)
def test_a_readout_is_fitted_again_to_its_own_place(rules, norm, residual):
    rules = EXAMPLES[rules]
    model = follower(rules, norm=norm, residual=residual)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for readout in model.readouts.values():
            readout.weight.copy_(torch.randn(readout.weight.shape, generator=rng))
        if norm != "none":
            final = model.backbone.final_norm
            final.weight += 0.3 * torch.randn(final.weight.shape, generator=rng)
    found = prove_by_structure(model, rules)
    assert (found.verdict, found.network) == ("proven", "refitted")
    words = torch.randint(rules.num_tokens, (4, 500), generator=rng)
    contents = rules.contents(words.numpy())
    check_answers(found, words, contents)


@pytest.mark.parametrize("token", [0, 1])
def test_a_gate_that_differs_under_one_token_is_not_followed(token):
    rules = EXAMPLES[0]
    model = follower(rules)
    gates = model.backbone.blocks[0].mixer.gate_proj.weight.data.view(3, 4, 1, -1)
    gates[0, :, 0, token] = gates[0, :, 0, token].roll(1)
    found = prove_by_structure(model, rules)
    assert (found.verdict, found.result.reason) == ("open", "no entry follows place 1")


def test_a_value_that_depends_on_more_than_the_content_is_not_followed():
    """The token loads content 1 into place 0, with the code that content 0 has elsewhere."""
    model = follower(LOADS)
    loads = model.backbone.blocks[0].mixer.value_proj.weight.data.view(3, 2, 1, -1)
    loads[0, :, 0, 1] = torch.tensor([1.0, 0.0])
    found = prove_by_structure(model, LOADS)
    assert (found.verdict, found.result.reason) == ("open", "no entry follows place 1")


def test_a_content_may_have_several_codes(as_trained):
    """The token loads content 1 into place 0, and the learned token wrote another code for it."""
    model = follower(LOADS)
    loads = model.backbone.blocks[0].mixer.value_proj.weight.data.view(3, 2, 1, -1)
    for code, verdict in ((2.0, "proven"), (0.5, "proven"), (-1.0, "open")):
        loads[0, 1, 0, 1] = code
        found = prove_by_structure(model, LOADS)
        assert found.verdict == verdict
        if verdict == "proven":
            assert found.result.margin == pytest.approx(min(code, 1), abs=1e-3)


def test_a_readout_that_other_places_can_overrule_is_open(as_trained):
    rules = EXAMPLES[0]
    model = follower(rules)
    weight = model.readouts["place_0"].weight.data
    # Place 0 with object 0 has a lead of 1, which object 1 at place 2 takes.
    weight[1, 3 + 2 * 3 + 1] = 1.5
    found = prove_by_structure(model, rules)
    assert found.verdict == "open"
    assert found.result.reason.startswith(
        "class 1 of place_0 is not proven to stay below class 0: the bound is -0.5"
    )


def test_a_lead_that_rounding_may_take_is_open(as_trained):
    rules = EXAMPLES[0]
    model = follower(rules, readout=1e-6)
    for readout in model.readouts.values():
        readout.weight.data += 1.0
    found = prove_by_structure(model, rules)
    assert found.verdict == "open"
    assert "is not proven to stay below" in found.result.reason


def test_objects_are_at_one_place_at_a_time(as_trained):
    """An object at the place that is asked for is at no other place, where it would overrule."""
    rules = EXAMPLES[0]
    model = follower(rules)
    weight = model.readouts["place_0"].weight.data
    weight[1, 3 + 2 * 3 + 0] = 5.0
    weight[2, 3 + 2 * 3 + 0] = 5.0
    # Object 0 at place 2 raises classes 1 and 2, which matters if one of them is right.
    assert prove_by_structure(model, rules).verdict == "proven"
    weight[2, 3 + 2 * 3 + 0] = 0.0
    assert prove_by_structure(model, rules).verdict == "open"


def test_objects_may_be_at_several_places_if_words_begin_so(as_trained):
    rules = PlaceRules(np.array([0, 0, 1]), EXAMPLES[0].sources, 2)
    model = follower(rules)
    assert prove_by_structure(model, rules).verdict == "proven"
    # Object 0 at place 2 overrules object 0 at place 0.
    model.readouts["place_0"].weight.data[1, 3 + 2 * 2 + 0] = 5.0
    assert prove_by_structure(model, rules).verdict == "open"


def test_what_is_proven_is_right_in_every_arrangement(as_trained):
    """Random readouts around the exact one, with biases and a token that is read, too."""
    rules, verdicts = EXAMPLES[0], set()
    words = torch.tensor(list(itertools.product(range(2), repeat=7)))
    contents = rules.contents(words.numpy())
    for seed in range(15):
        rng, norm = torch.Generator().manual_seed(seed), ("none", "rms", "layer")[seed % 3]
        model = follower(rules, norm=norm, residual=True)
        with torch.no_grad():
            for readout in model.readouts.values():
                readout.weight += 0.12 * torch.randn(readout.weight.shape, generator=rng)
                readout.bias += 0.1 * torch.randn(readout.bias.shape, generator=rng)
            if norm != "none":
                final = model.backbone.final_norm
                final.weight += 0.3 * torch.randn(final.weight.shape, generator=rng)
        found = prove_by_structure(model, rules)
        verdicts.add(found.verdict)
        if found.verdict == "proven":
            check_answers(found, words, contents)
        else:
            assert "is not proven to stay below" in found.result.reason
    assert verdicts == {"proven", "open"}


def test_gates_that_nearly_tie_stay_open():
    rules = EXAMPLES[0]
    model = follower(rules)
    layer = model.backbone.blocks[0].mixer
    layer.gate_proj.weight.data *= 2e-7
    layer.gate_proj.bias.data[:] = 1.0
    found = prove_by_structure(model, rules)
    assert found.verdict == "open"
    assert "rounding may swap two gates" in found.result.reason


def test_equal_gates_that_are_constants_are_no_proof():
    """Constants are not rounded, so no tie is found in them."""
    rules = PlaceRules(np.array([0, 1]), np.array([[1, 0]]), 2)
    constants = {"selective": False, "value_channels": 2, "initial_state": "learned"}
    model = TokenClassifier(
        1,
        {"place_0": 2, "place_1": 2},
        4,
        [LayerSpec("bd_lru", num_blocks=1, block_size=2, **constants)],
        residual=False,
        norm="none",
    )
    layer = model.backbone.blocks[0].mixer
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        # Each entry copies the other, and its equal input gate loads 0.
        layer.gate_bias.copy_(torch.tensor([[[-1.0, 0, 0], [0, -1, 0]]]))
        layer.learned_state.copy_(torch.eye(2))
        layer.out_proj.weight.copy_(torch.eye(4))
        for place, head in enumerate(model.readouts.values()):
            head.weight[:, 2 * place : 2 * place + 2] = torch.eye(2)
    assert by_block(layer).shape == (1, 2, 4, 2)
    found = prove_by_structure(model, rules)
    assert (found.verdict, found.result.reason) == (
        "open",
        "a step of the network is no copy of entries and values",
    )
    layer.gate_bias.data[..., -1] = -1
    assert prove_by_structure(model, rules).verdict == "proven"


@pytest.mark.parametrize("place", ["channel_mixer", "readout_mlp"])
def test_a_model_with_an_mlp_stays_open(place):
    model = follower(EXAMPLES[0])
    block = model.backbone.blocks[0]
    mlp = MixerSpec("mlp").build(hidden_size=model.backbone.embedding.embedding_dim)
    if place == "channel_mixer":
        block.channel_mixer, block.channel_norm = mlp, torch.nn.Identity()
    else:
        model.readout_mlp.append(mlp)
    found = prove_by_structure(model, EXAMPLES[0])
    assert found.verdict == "open"
    assert found.result.reason == "the bound is for models without MLPs"


def test_other_models_are_searched(monkeypatch):
    rules = EXAMPLES[0]
    columns = LayerSpec("bd_lru", num_blocks=1, block_size=3, gate="column_softmax")
    rows = LayerSpec("bd_lru", num_blocks=1, block_size=3)
    ended = SearchResult("proven", 7, 1.0)
    stopped = SearchResult("open", 7, None, reason="stopped", checked=3)
    three = {f"place_{number}": 3 for number in range(3)}
    first_networks = {"lstm": "as trained", "columns": "pruned", "rows": "hardened"}
    for kind, layers in (
        ("lstm", [LayerSpec("lstm")]),
        ("columns", [columns]),
        ("rows", [rows, rows]),
    ):
        model = TokenClassifier(2, three, 8, layers)
        found = prove_by_structure(model, rules)
        assert (found.verdict, found.network, found.method) == ("open", "as trained", "structure")
        assert found.result.reason.endswith("needs one BD-LRU layer with gate='softmax'")
        # A search refutes it, as it has not been trained.
        found = prove_places(model, rules)
        form = "as trained" if kind == "lstm" else "hardened"
        assert (found.verdict, found.network, found.method) == ("refuted", form, "search")
        word = torch.tensor([found.result.word])
        contents = rules.contents(word.numpy())[0, -1, int(found.head[-1])]
        assert found.model(word)[found.head][0, -1].argmax() == found.result.answer != contents
        # A search that does not end is the verdict, too.
        with monkeypatch.context() as patched:
            patched.setattr(structure, "search", lambda *_, **__: stopped)
            found = prove_places(model.train(), rules)
        assert (found.result, found.method, model.training) == (stopped, "search", True)
        # Blocks are left out of a single layer alone.
        with monkeypatch.context() as patched:
            patched.setattr(structure, "search", lambda *_, **__: ended)
            assert prove_places(model, rules).network == first_networks[kind]
        many = TokenClassifier(2, {f"place_{number}": 8 for number in range(8)}, 8, layers)
        assert prove_places(many, EXAMPLES[1]).verdict == "open"
    with pytest.raises(ValueError, match="must have 2 tokens and 8 heads, got 2 and 3"):
        prove_by_structure(follower(rules), EXAMPLES[1])


def fano():
    """The places of PSL(2,7), and a network whose entries follow the lines of the Fano plane.

    The moves permute seven points and, in another way, seven lines of three points. An object is at
    a place if it lies on the three lines that are at the lines through the place.
    """
    points = tasks.build("arrangement", **Arrangement.presets["PSL(2,7)"]).places()
    for seed in itertools.combinations(range(7), 3):
        lines, new = [frozenset(seed)], [frozenset(seed)]
        while new:
            moved = {frozenset(row[list(one)].tolist()) for one in new for row in points.sources}
            new = sorted(moved - set(lines), key=sorted)
            lines += new
        if len(lines) == 7:
            break
    sources = [[lines.index(frozenset(row[list(one)])) for one in lines] for row in points.sources]
    model = follower(PlaceRules(np.arange(7), np.array(sources), 7))
    on = np.array([[float(point in line) for line in lines] for point in range(7)])
    with torch.no_grad():
        for place in range(7):
            weight = np.einsum("l,cm->clm", on[place], on).reshape(7, 49)
            model.readouts[f"place_{place}"].weight[:, 3:] = torch.from_numpy(weight)
    return points, model


def test_few_arrangements_are_searched_where_no_entry_follows_a_place():
    rules, model = fano()
    assert prove_by_structure(model, rules).verdict == "open"
    found = prove_places(model, rules)
    assert (found.verdict, found.method, found.network) == ("proven", "search", "pruned")
    assert found.result.pairs == 168
    # Two lines share one point: a wrong object lies on one of the three lines.
    assert found.result.margin == pytest.approx(2.0)
    for automaton in structure.place_automata(rules):
        assert automaton.num_states == 168


def test_a_search_of_arrangements_proves_nothing_if_rounding_may_swap_gates():
    rules, model = fano()
    layer = model.backbone.blocks[0].mixer
    layer.gate_proj.weight.data *= 2e-7
    layer.gate_proj.bias.data[:] = 1.0
    assert prove_places(model, rules).verdict == "open"


def test_a_wrong_head_is_refuted_by_a_word():
    rules, model = fano()
    with torch.no_grad():
        model.readouts["place_6"].weight[[0, 1]] = model.readouts["place_6"].weight[[1, 0]]
    # The readout can be fitted again, unless the block does not track.
    assert prove_places(model, rules).network == "refitted"
    gates = model.backbone.blocks[0].mixer.gate_proj.weight.data.view(7, 8, 1, -1)
    gates[2, :, 0, 0] = gates[2, :, 0, 0].roll(1)
    found = prove_places(model, rules)
    assert found.verdict == "refuted"
    assert found.result.word


def test_searches_of_many_arrangements_or_pairs_end(monkeypatch):
    rules, model = fano()
    monkeypatch.setattr(structure, "_MOST_ARRANGEMENTS", 168)
    assert prove_places(model, rules).verdict == "proven"
    monkeypatch.setattr(structure, "_MOST_ARRANGEMENTS", 167)
    found = prove_places(model, rules)
    assert (found.verdict, found.method) == ("open", "structure")
    monkeypatch.undo()
    assert prove_places(model, rules, max_pairs=100).method == "structure"
