"""The wrapper of the synthetic benchmarks: what its switches do, and where it starts from."""

import itertools

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from statemix import layers, ops
from statemix.models import SyntheticModel

OPTIONS = {
    "bd_lru": {"num_blocks": 2, "block_size": 3},
    "h_lru": {"num_channels": 4, "order": 2},
    "lstm": {},
}


def build(layer="bd_lru", **settings):
    return SyntheticModel(7, 5, 8, layer, OPTIONS[layer], **settings)


def draw(batch=3, length=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(7, (batch, length), generator=generator)


def test_every_registered_layer_is_covered():
    assert OPTIONS.keys() == set(layers.names())


@pytest.mark.parametrize("layer", OPTIONS)
@pytest.mark.parametrize("channel_mixer", ["none", "swiglu", "mlp"])
def test_logits_have_a_class_axis_and_every_parameter_a_gradient(layer, channel_mixer):
    model = build(layer, num_layers=2, bos=True, channel_mixer=channel_mixer)
    logits = model(draw())
    assert logits.shape == (3, 6, 5)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_forward_is_embedding_residual_norm_readout():
    model = build(norm="rms")
    tokens = draw()
    x = model.embedding.weight[tokens]

    def normed(x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()

    y, _ = model.blocks[0].layer(normed(x))
    expected = normed(x + y) @ model.readout.weight.T + model.readout.bias
    torch.testing.assert_close(model(tokens), expected)


def test_without_residual_and_norm_only_the_layers_remain():
    model = build(residual=False, norm="none", channel_mixer="mlp")
    tokens = draw()
    y, _ = model.blocks[0].layer(model.embedding(tokens))
    torch.testing.assert_close(model(tokens), model.readout(model.blocks[0].mixer(y)))


def test_bos_is_a_token_whose_output_is_dropped():
    model = build(bos=True)
    spelled_out = SyntheticModel(8, 5, 8, "bd_lru", OPTIONS["bd_lru"])
    spelled_out.load_state_dict(model.state_dict())
    tokens = draw()
    prepended = torch.cat([torch.full((3, 1), 7), tokens], dim=1)
    torch.testing.assert_close(model(tokens), spelled_out(prepended)[:, 1:])


@pytest.mark.parametrize("layer", OPTIONS)
@pytest.mark.parametrize("bos", [False, True])
def test_packed_sequences_equal_single_ones(layer, bos):
    model = build(layer, bos=bos, num_layers=2, channel_mixer="swiglu")
    tokens = draw(1, 9)
    # The third sequence is empty.
    boundaries = [0, 1, 5, 5, 9]
    packed = model(tokens, torch.tensor(boundaries))
    parts = [model(tokens[:, a:b]) for a, b in itertools.pairwise(boundaries) if b > a]
    torch.testing.assert_close(packed, torch.cat(parts, dim=1))


@pytest.mark.parametrize("layer", OPTIONS)
@pytest.mark.parametrize("bos", [False, True])
def test_extending_piece_by_piece_equals_the_whole(layer, bos):
    model = build(layer, bos=bos, num_layers=2)
    tokens = draw()
    logits, states = [], None
    for piece in tokens.split([1, 3, 2], dim=1):
        y, states = model.extend(piece, states)
        logits.append(y)
    torch.testing.assert_close(torch.cat(logits, dim=1), model(tokens))


def test_one_seed_gives_one_model_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    first = build(seed=1, channel_mixer="mlp").state_dict()
    drawn = torch.rand(1)
    second = build(seed=1, channel_mixer="mlp").state_dict()
    other = build(seed=2, channel_mixer="mlp").state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)


def test_it_starts_as_in_mad():
    model = SyntheticModel(200, 50, 128, "bd_lru", {"num_blocks": 64, "block_size": 3})
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert {"readout", "blocks.0.layer.gate_proj"} <= linears.keys()
    for linear in linears.values():
        assert linear.bias is None or not linear.bias.any()
        bound = linear.in_features**-0.5
        assert 0.98 * bound < linear.weight.abs().max() <= bound


@pytest.mark.parametrize("layer", ["bd_lru", "h_lru"])
def test_pointwise_gates_start_without_bias_as_dense_ones_do(layer):
    units = {"bd_lru": {"num_blocks": 8}, "h_lru": {"num_channels": 8}}
    options = OPTIONS[layer] | units[layer] | {"selective": "pointwise"}
    for block in SyntheticModel(7, 5, 8, layer, options, num_layers=2).blocks:
        assert not block.layer.gate_bias.any()
        assert block.layer.gate_weight.abs().max() > 0.8


@pytest.mark.parametrize("gate", [name for name, g in ops.GATES.items() if not g.blocks_only])
def test_constant_gates_start_where_they_can_learn(gate):
    """At zero, ``relu`` would have no gradient at all and ``signed`` and ``tanh`` a huge one."""
    options = OPTIONS["bd_lru"] | {"selective": False, "gate": gate}
    model = SyntheticModel(7, 5, 8, "bd_lru", options)
    model(draw()).square().sum().backward()
    assert 0 < model.blocks[0].layer.gate_bias.grad.abs().max() < 1e4


def test_an_lstm_starts_as_in_torch():
    layer = build("lstm").blocks[0].layer
    bound = 8**-0.5
    for bias in (layer.lstm.bias_ih_l0, layer.lstm.bias_hh_l0):
        assert 0.8 * bound < bias.abs().max() <= bound


def test_gate_temperature_is_set_on_every_layer_that_has_one():
    model = build(num_layers=3)
    model.set_gate_temperature(0.25)
    assert [block.layer.gate_temperature for block in model.blocks] == [0.25] * 3
    build("lstm").set_gate_temperature(0.25)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"vocab_size": 0}, ValueError, "vocab_size must be at least 1, got 0"),
        ({"num_classes": 0}, ValueError, "num_classes must be at least 1, got 0"),
        ({"hidden_size": -1}, ValueError, "hidden_size must be at least 1, got -1"),
        ({"num_layers": 0}, ValueError, "num_layers must be at least 1, got 0"),
        (
            {"norm": "batch"},
            ValueError,
            r"norm must be one of \['rms', 'layer', 'none'\], got 'bat",
        ),
        ({"channel_mixer": "glu"}, ValueError, r"channel_mixer must be one of .*'swiglu'.* got"),
        ({"layer": "gru"}, ValueError, r"layer must be one of .*got 'gru'"),
        ({"layer_options": {"order": 2}}, ValueError, r"options of layer 'bd_lru' must be among"),
        ({"layer_options": {}}, ValueError, r"must include \['num_blocks', 'block_size'\]"),
        *(
            (
                {"layer_options": OPTIONS["bd_lru"] | {name: value}},
                ValueError,
                rf"options of layer 'bd_lru' must be among .*got \['{name}'\]",
            )
            for name, value in [("device", "cpu"), ("dtype", "float64"), ("hidden_size", 3)]
        ),
    ],
)
def test_bad_input_is_named(settings, error, message):
    good = {"vocab_size": 7, "num_classes": 5, "hidden_size": 8, "layer_options": OPTIONS["bd_lru"]}
    with pytest.raises(error, match=message):
        SyntheticModel(**(good | settings))


PACKED = {"tokens": draw(1, 5)}


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"tokens": [[0]]}, TypeError, "tokens must be a tensor, got list"),
        ({"tokens": draw()[0]}, ValueError, r"tokens must have shape \(B, T\), got \(6,\)"),
        (
            {"tokens": draw().float()},
            TypeError,
            r"tokens must be int32 or int64, got torch\.float32",
        ),
        ({"tokens": draw() > 3}, TypeError, r"tokens must be int32 or int64, got torch\.bool"),
        ({"tokens": draw() - 7}, ValueError, r"tokens must be in 0\.\.6 \(vocab_size=7\), got -7"),
        ({"tokens": torch.tensor([[0, 7]])}, ValueError, r"tokens must be in 0\.\.6 .* got 7"),
        ({"tokens": torch.tensor([[8, 0]])}, ValueError, r"tokens must be in 0\.\.6 .* got 8"),
        (
            {"tokens": draw().to("meta")},
            ValueError,
            r"tokens must be on the device of the parameters \(cpu\), got meta",
        ),
        ({"tokens": draw(1, 5) + 7, "cu_seqlens": torch.tensor([0, 5])}, ValueError, "tokens must"),
        (
            {"tokens": draw(), "cu_seqlens": torch.tensor([0, 6])},
            ValueError,
            r"one packed .* B = 3",
        ),
        (PACKED | {"cu_seqlens": [0, 5]}, TypeError, "cu_seqlens must be a tensor, got list"),
        (
            PACKED | {"cu_seqlens": torch.tensor([0.0, 5.0])},
            TypeError,
            "cu_seqlens must be int32 or int64",
        ),
        (
            PACKED | {"cu_seqlens": torch.tensor([0, 9])},
            ValueError,
            r"cu_seqlens must rise from 0 to the length 5, got \[0, 9\]",
        ),
        (
            PACKED | {"cu_seqlens": torch.tensor([0, 5], device="meta")},
            ValueError,
            "cu_seqlens must be on cpu, got meta",
        ),
    ],
)
def test_bad_tokens_and_bounds_are_named(changed, error, message, bos):
    with pytest.raises(error, match=message):
        build(bos=bos)(**changed)


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(
    ("states", "error", "message"),
    [
        ([], ValueError, r"states must hold one state per layer \(2\), got 0"),
        ([torch.zeros(3, 2, 3)], ValueError, r"states must hold one state per layer \(2\), got 1"),
        ([torch.zeros(3, 2, 3), None], TypeError, r"states\[1\] must be a tensor, got NoneType"),
        (torch.zeros(2, 3, 2, 3), TypeError, "states must be a list or None, got Tensor"),
        ([torch.zeros(4, 2, 3)] * 2, ValueError, r"state must have shape \(B=3, .*got \(4, 2, 3\)"),
    ],
)
def test_bad_states_are_named(states, error, message, bos):
    with pytest.raises(error, match=message):
        build(bos=bos, num_layers=2).extend(draw(), states)


@pytest.mark.parametrize("bos", [False, True])
def test_extending_by_bad_tokens_is_refused(bos):
    model = build(bos=bos)
    _, states = model.extend(draw())
    for given in (None, states):
        with pytest.raises(ValueError, match=r"tokens must be in 0\.\.6 .* got 7"):
            model.extend(torch.full((3, 1), 7), given)


# Tracing an autograd.Function makes Dynamo itself instantiate the class.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("bounds", [None, torch.tensor([0, 2, 5])])
@torch.no_grad()
def test_tokens_without_values_to_read_are_not_refused(bos, bounds):
    model, tokens = build(bos=bos), draw(1, 5)
    expected = model(tokens, bounds)
    mapped = torch.vmap(model, in_dims=(0, None))(tokens.expand(3, 1, 5), bounds)
    torch.testing.assert_close(mapped, expected.expand(3, -1, -1, -1))
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, bounds), expected)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [None if tensor is None else mode.from_tensor(tensor) for tensor in (tokens, bounds)]
        assert model(*fake).shape == expected.shape
    assert build(bos=bos).to("meta")(tokens.to("meta")).shape == expected.shape
