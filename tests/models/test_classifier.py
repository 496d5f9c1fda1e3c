"""The model of the synthetic benchmarks: its options and its initial weights."""

import re

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from statemix.errors import OptionError
from statemix.layers import LAYERS, LayerSpec, take_rows
from statemix.models import MODELS, MixerSpec, TokenClassifier

CONVERGED = {"contraction": 0.5, "max_iterations": 120, "tolerance": 1e-14}
SPECS = {
    "bd_lru": LayerSpec("bd_lru", num_blocks=2, block_size=3),
    "h_lru": LayerSpec("h_lru", num_channels=4, order=2),
    "lstm": LayerSpec("lstm"),
    "attention": LayerSpec("attention", num_heads=2),
    "conv": LayerSpec("conv", kernel_size=3),
    "delta_net": LayerSpec("delta_net", num_heads=2),
    "delta_product": LayerSpec("delta_product", num_heads=2, num_householder=2),
    "mamba2": LayerSpec("mamba2", d_state=4, head_dim=4),
    "fp_rnn": LayerSpec("fp_rnn", **CONVERGED),
    "fp_mamba1": LayerSpec("fp_mamba1", d_state=2, damping=1.0, **CONVERGED),
    "fp_mamba2": LayerSpec("fp_mamba2", d_state=2, head_dim=4, damping=1.0, **CONVERGED),
}
HYBRID = tuple(SPECS.values())
HEADS = {"product": 5, "parity": 2}
MIXERS = {"none": None, "swiglu": MixerSpec("swiglu"), "mlp": MixerSpec("mlp")}


def build(*layers, heads=None, **settings):
    return TokenClassifier(7, heads or HEADS, 8, layers or (SPECS["bd_lru"],), **settings)


def draw(batch=3, length=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(7, (batch, length), generator=generator)


def test_every_registered_layer_is_covered():
    assert SPECS.keys() == LAYERS.keys()


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_head_has_logits_and_every_parameter_a_gradient(mixer):
    model = build(*HYBRID, bos=True, channel_mixer=MIXERS[mixer])
    logits = model(draw())
    assert {head: tuple(these.shape) for head, these in logits.items()} == {
        "product": (3, 6, 5),
        "parity": (3, 6, 2),
    }
    sum(these.square().sum() for these in logits.values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def normed(x):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def read(model, x):
    return {head: x @ readout.weight.T + readout.bias for head, readout in model.readouts.items()}


@pytest.mark.parametrize("mixer", ["none", "mlp"])
def test_forward_is_embedding_residual_norm_readout(mixer):
    model = build(*HYBRID, norm="rms", channel_mixer=MIXERS[mixer])
    tokens = draw()
    x = model.backbone.embedding.weight[tokens]
    for block in model.backbone.blocks:
        x = x + block.mixer(normed(x))[0]
        if block.channel_mixer is not None:
            x = x + block.channel_mixer(normed(x))
    torch.testing.assert_close(model(tokens), read(model, normed(x)))


def test_an_mlp_without_residual_can_precede_the_readouts():
    model = build(norm="rms", residual=False, readout_sizes=(5, 4))
    x = normed(model.backbone.blocks[0].mixer(normed(model.backbone.embedding(draw())))[0])
    for linear in (model.readout_mlp[0], model.readout_mlp[2]):
        x = nn.functional.gelu(x @ linear.weight.T)
    assert x.shape == (3, 6, 4)
    torch.testing.assert_close(model(draw()), read(model, x))


def test_without_residual_and_norm_only_the_layers_remain():
    model = build(residual=False, norm="none", channel_mixer=MIXERS["mlp"])
    tokens = draw()
    y, _ = model.backbone.blocks[0].mixer(model.backbone.embedding(tokens))
    torch.testing.assert_close(
        model(tokens), read(model, model.backbone.blocks[0].channel_mixer(y))
    )


def test_bos_is_a_token_whose_output_is_dropped():
    model = build(bos=True)
    spelled_out = TokenClassifier(8, HEADS, 8, [SPECS["bd_lru"]])
    spelled_out.load_state_dict(model.state_dict())
    tokens = draw()
    prepended = torch.cat([torch.full((3, 1), 7), tokens], dim=1)
    expected = {head: these[:, 1:] for head, these in spelled_out(prepended).items()}
    torch.testing.assert_close(model(tokens), expected)


def joined(pieces):
    return {head: torch.cat([piece[head] for piece in pieces], dim=1) for head in pieces[0]}


@pytest.mark.parametrize("bos", [False, True])
def test_extending_piece_by_piece_equals_the_whole_and_states_can_be_reordered(bos):
    model = build(*HYBRID, bos=bos).double()
    tokens, pieces, state = draw(), [], None
    for piece in tokens.split([1, 3, 2], dim=1):
        y, state = model.extend(piece, state)
        pieces.append(y)
    torch.testing.assert_close(joined(pieces), model(tokens))
    more, rows = draw(seed=1), torch.tensor([2, 0, 2, 1])
    logits, _ = model.extend(more[rows], take_rows(state, rows))
    whole = model(torch.cat([tokens, more], dim=1)[rows])
    torch.testing.assert_close(logits, {head: these[:, 6:] for head, these in whole.items()})


@pytest.mark.parametrize("zero_biases", [True, False])
def test_layers_and_mixers_zero_their_own_biases(monkeypatch, zero_biases):
    asked = []
    for kind in (*LAYERS.values(), type(MIXERS["mlp"].build(hidden_size=8))):
        zero = kind.zero_biases
        monkeypatch.setattr(
            kind, "zero_biases", lambda self, zero=zero: asked.append(type(self)) or zero(self)
        )
    model = build(*HYBRID, channel_mixer=MIXERS["mlp"], zero_biases=zero_biases)
    parts = [part for block in model.backbone.blocks for part in (block.mixer, block.channel_mixer)]
    assert asked == ([type(part) for part in parts] if zero_biases else [])
    gates = model.backbone.blocks[0].mixer.gate_proj
    biases = [gates.bias, *(part.up_proj.bias for part in parts[1::2])]
    biases += [readout.bias for readout in model.readouts.values()]
    assert all(bool(bias.any()) is not zero_biases for bias in biases)


def made(**changes):
    usual = {
        "vocab_size": 7,
        "heads": HEADS,
        "hidden_size": 8,
        "layers": (SPECS["bd_lru"],),
        "channel_mixer": MixerSpec("swiglu"),
    }
    return TokenClassifier(**(usual | changes))


def test_embeddings_start_as_scaled_features_and_the_start_token_at_random():
    features = torch.arange(1.0, 15.0).reshape(7, 2)
    usual, model = made(bos=True), made(bos=True, token_features=features)
    found = model.backbone.embedding.weight
    assert torch.allclose(found[:7, :2] / found[0, 0], features)
    assert not found[:7, 2:].any()
    assert found[:7].square().mean().sqrt().item() == pytest.approx(0.02)
    assert torch.equal(found[7], usual.backbone.embedding.weight[7])
    for name, weight in usual.state_dict().items():
        assert name == "backbone.embedding.weight" or torch.equal(weight, model.state_dict()[name])


def test_it_starts_as_in_mad():
    model = TokenClassifier(200, {"y": 50}, 128, [LayerSpec("bd_lru", num_blocks=64, block_size=3)])
    assert model.backbone.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert {"readouts.y", "backbone.blocks.0.mixer.gate_proj"} <= linears.keys()
    for linear in linears.values():
        assert linear.bias is None or not linear.bias.any()
        bound = linear.in_features**-0.5
        assert 0.98 * bound < linear.weight.abs().max() <= bound


BAD_ARGUMENTS = {
    "vocab_size": [0],
    "heads": [{}, [("a", 2)], {1: 2}],
    "heads['y']": [{"y": 0}, {"y": 1.5}],
    "hidden_size": [-1],
    "layers": [(), "lstm", 3],
    "block_size": [[LayerSpec("bd_lru", num_blocks=2, block_size=0)]],
    "norm": ["batch"],
    "channel_mixer": ["mlp"],
    "intermediate_size": [MixerSpec("mlp", intermediate_size=-1)],
    "readout_sizes": [5],
    "readout_sizes[1]": [(5, 0)],
    "linear_init": ["zero"],
    "token_features": [
        torch.ones(6, 2),
        torch.float16,
        torch.ones(7, 2, dtype=torch.complex64),
        torch.zeros(7, 2),
        torch.full((7, 2), torch.nan),
    ],
    "bos": ["no", 0],
    "residual": ["no", None],
    "zero_biases": ["no", 0],
    "seed": [None, -1, 2**63],
}
ARGUMENT_OF = {"block_size": "layers", "intermediate_size": "channel_mixer"}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_are_named(name):
    argument = ARGUMENT_OF.get(name, name.partition("[")[0])
    for value in BAD_ARGUMENTS[name]:
        with pytest.raises(OptionError, match=f"^{re.escape(name)} must .*got "):
            made(**{argument: value})
    with pytest.raises(OptionError, match="hidden_size must be at least 9, the features of a"):
        made(token_features=torch.ones(7, 9))


META = draw().to("meta")
PACKED, BOUNDS = {"tokens": draw(1, 5)}, {"cu_seqlens": torch.tensor([0, 5])}
MASK = torch.ones(3, 6, dtype=torch.int64)
BAD_CALLS = [
    ({"tokens": [[0]]}, TypeError, "tokens must be a tensor, got list"),
    ({"tokens": draw()[0]}, ValueError, r"tokens must have shape \(B, T\), got \(6,\)"),
    ({"tokens": draw().float()}, TypeError, r"tokens must be int32 or int64, got torch\.float32"),
    ({"tokens": draw() > 3}, TypeError, r"tokens must be int32 or int64, got torch\.bool"),
    ({"tokens": draw() - 7}, ValueError, r"tokens must be in 0\.\.6 \(vocab_size=7\), got -7"),
    ({"tokens": torch.tensor([[0, 7]])}, ValueError, r"tokens must be in 0\.\.6 .* got 7"),
    ({"tokens": META}, ValueError, "tokens must be on the device of the parameters"),
    ({"tokens": draw(1, 5) + 7, "cu_seqlens": torch.tensor([0, 5])}, ValueError, "tokens must"),
    ({"cu_seqlens": torch.tensor([0, 6])}, ValueError, r"one packed .* B = 3"),
    (PACKED | {"cu_seqlens": [0, 5]}, TypeError, "cu_seqlens must be a tensor, got list"),
    (PACKED | {"cu_seqlens": torch.tensor([0.0, 5.0])}, TypeError, "cu_seqlens must be int32 or"),
    (PACKED | {"cu_seqlens": torch.tensor([0, 9])}, ValueError, "cu_seqlens must rise from 0 to"),
    (PACKED | {"cu_seqlens": META[0, :2]}, ValueError, "cu_seqlens must be on cpu, got meta"),
    ({"lengths": [6, 6, 6]}, TypeError, "lengths must be a tensor, got list"),
    ({"lengths": torch.ones(3)}, TypeError, "lengths must be int32 or int64"),
    ({"lengths": torch.tensor([6, 6])}, ValueError, r"lengths must have shape \(B=3\), got \(2,"),
    ({"lengths": torch.tensor([6, 7, 6])}, ValueError, r"lengths must be in 0\.\.6, got 7"),
    ({"lengths": torch.tensor([6, -1, 6])}, ValueError, r"lengths must be in 0\.\.6, got -1"),
    ({"lengths": META[:, 0]}, ValueError, "lengths must be on cpu, got meta"),
    (
        PACKED | BOUNDS | {"lengths": torch.tensor([5])},
        ValueError,
        "lengths must be None with c",
    ),
    (PACKED | BOUNDS | {"attention_mask": draw(1, 5)}, ValueError, "attention_mask must be None w"),
    ({"attention_mask": draw(2) * 0}, ValueError, r"attention_mask must have shape \(B=3, T=6\)"),
    ({"attention_mask": 9 * MASK, "lengths": MASK[:, 0]}, ValueError, "lengths must be None with"),
]


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_bad_tokens_bounds_and_lengths_are_named(kind, bos):
    model = MODELS[kind](7, HEADS, 8, [SPECS["bd_lru"]], bos=bos)
    for changed, error, message in BAD_CALLS:
        with pytest.raises(error, match=message):
            model(**{"tokens": draw()} | changed)


@pytest.mark.parametrize("bos", [False, True])
def test_bad_states_and_next_tokens_are_named(bos):
    model = build(*(2 * [SPECS["bd_lru"]]), bos=bos)
    part = torch.zeros(3, 2, 3)
    for state, error, message in [
        ((), ValueError, r"state must hold one state per layer \(2\), got 0"),
        ((part, None), TypeError, "state of every layer, got None for one"),
        (torch.zeros(2, 3, 2, 3), TypeError, "state must be a tuple or None, got Tensor"),
        ((torch.zeros(4, 2, 3),) * 2, ValueError, r"state must have shape \(B=3, .*got \(4, 2, 3"),
    ]:
        with pytest.raises(error, match=message):
            model.extend(draw(), state)
    for state in (None, (part, part)):
        with pytest.raises(ValueError, match=r"tokens must be in 0\.\.6 .* got 7"):
            model.extend(torch.full((3, 1), 7), state)


# Tracing an autograd.Function makes Dynamo itself instantiate the class.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "bounds",
    [{}, {"cu_seqlens": torch.tensor([0, 2, 5])}, {"lengths": torch.tensor([4])}],
    ids=["whole", "packed", "padded"],
)
@torch.no_grad()
def test_it_compiles_and_runs_on_tensors_without_values(kind, bounds):
    model, tokens = MODELS[kind](7, HEADS, 8, [SPECS["bd_lru"]], bos=True), draw(1, 5)
    expected = model(tokens, **bounds)
    mapped = torch.vmap(lambda row: model(row, **bounds))(tokens.expand(3, 1, 5))
    for head, these in mapped.items():
        torch.testing.assert_close(these, expected[head].expand(3, -1, -1, -1))
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, **bounds), expected)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {name: mode.from_tensor(tensor) for name, tensor in bounds.items()}
        found = model(mode.from_tensor(tokens), **fake)
        assert [these.shape for these in found.values()] == [(1, 5, 5), (1, 5, 2)]
    assert model.to("meta")(tokens.to("meta"))["parity"].shape == (1, 5, 2)
