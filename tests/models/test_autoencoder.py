"""The autoencoder against its definition in plain Python, and its start against MAD's."""

import itertools
import math

import pytest
import torch
from torch import nn

from statemix.layers import LayerSpec
from statemix.models import MODELS, MixerSpec

BD_LRU = LayerSpec("bd_lru", num_blocks=2, block_size=3)
LAYERS = (BD_LRU, LayerSpec("lstm"), LayerSpec("conv", kernel_size=3))
HEADS = {"token": 7, "parity": 2}


def build(*layers, kind="autoencoder", hidden_size=8, **settings):
    return MODELS[kind](7, HEADS, hidden_size, layers or (BD_LRU,), **settings)


def drawn(*layers, seed=0, **settings):
    """A float64 model of which every parameter, norms and biases included, is random."""
    model = build(*layers, **settings).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    return model


def ids(batch=3, length=6, seed=0):
    return torch.randint(7, (batch, length), generator=torch.Generator().manual_seed(seed))


def normed(vector, norm):
    scale = 1 / math.sqrt(sum(entry**2 for entry in vector) / len(vector) + 1e-5)
    return [scale * entry * w for entry, w in zip(vector, norm.weight.tolist(), strict=True)]


def mapped(vector, linear):
    return [
        c + sum(w * entry for w, entry in zip(row, vector, strict=True))
        for row, c in zip(linear.weight.tolist(), linear.bias.tolist(), strict=True)
    ]


def gelu(vector):
    return [entry / 2 * (1 + math.erf(entry / math.sqrt(2))) for entry in vector]


def position_of(place, size):
    """The sines and cosines of one position, one by one."""
    half = size // 2
    rates = [10_000 ** -(i / (half - 1)) if half > 1 else 1.0 for i in range(half)]
    sines = [math.sin(place * rate) for rate in rates]
    return sines + [math.cos(place * rate) for rate in rates] + [0.0] * (size % 2)


def defined(model, tokens):
    """The logits of one sequence: the layers run as they are, everything else is plain Python."""
    x = model.backbone.embedding.weight[tokens].unsqueeze(0)
    for block in model.backbone.blocks:
        x = x + block.mixer(block.norm(x))[0]
    last = x[0, -1].tolist()
    first_norm, first, _, second_norm, second, _ = model.decoder.network
    rows = {head: [] for head in HEADS}
    for place in range(len(tokens)):
        y = [a + b for a, b in zip(last, position_of(place, len(last)), strict=True)]
        y = gelu(mapped(normed(y, first_norm), first))
        y = gelu(mapped(normed(y, second_norm), second))
        y = normed(y, model.backbone.final_norm)
        for head, readout in model.readouts.items():
            rows[head].append(mapped(y, readout))
    return {head: torch.tensor(row, dtype=torch.float64) for head, row in rows.items()}


@pytest.mark.parametrize(("hidden_size", "length"), [(2, 7), (3, 2), (8, 1), (9, 7)])
def test_logits_are_those_of_the_definition(hidden_size, length):
    model = drawn(*LAYERS, hidden_size=hidden_size)
    tokens = ids(2, length)
    logits = model(tokens)
    for row, sequence in enumerate(tokens):
        found = {head: these[row] for head, these in logits.items()}
        torch.testing.assert_close(found, defined(model, sequence), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bos", [False, True])
def test_the_output_is_as_long_as_the_input(bos):
    model = build(bos=bos)
    for length in (0, 1, 1281):
        assert model(ids(2, length))["token"].shape == (2, length, 7)


def single(model, row):
    return {head: these[0] for head, these in model(row.unsqueeze(0)).items()}


@pytest.mark.parametrize("bos", [False, True])
def test_packed_and_padded_sequences_equal_single_ones(bos):
    model = drawn(*LAYERS, bos=bos)
    tokens = ids(1, 12)
    # The third sequence is empty.
    bounds = [0, 1, 5, 5, 12]
    sequences = [tokens[0, a:b] for a, b in itertools.pairwise(bounds)]
    expected = [single(model, sequence) for sequence in sequences]
    packed = model(tokens, torch.tensor(bounds))
    for head in HEADS:
        joined = torch.cat([one[head] for one in expected])
        torch.testing.assert_close(packed[head][0], joined, rtol=1e-9, atol=1e-9)
    for filler in (0, 6):
        rows = torch.full((4, 8), filler)
        for row, sequence in zip(rows, sequences, strict=True):
            row[: len(sequence)] = sequence
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        padded = model(rows, lengths=lengths)
        for row, one in enumerate(expected):
            found = {head: these[row, : lengths[row]] for head, these in padded.items()}
            torch.testing.assert_close(found, one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(
    ("lengths", "widths"), [(None, [1, 3, 2]), (torch.tensor([6, 1, 0, 4, 3]), [0, 4, 0, 2])]
)
def test_pieces_equal_the_whole(kind, bos, lengths, widths):
    model = drawn(*LAYERS, bos=bos, kind=kind)
    tokens = ids(5)
    whole = model(tokens, lengths=lengths)
    found = list(model.in_pieces(tokens.split(widths, dim=1), lengths))
    assert [these["token"].shape[1] for these in found] == widths
    joined = {head: torch.cat([these[head] for these in found], dim=1) for head in HEADS}
    torch.testing.assert_close(joined, whole, rtol=1e-9, atol=1e-9)


def test_a_causal_model_answers_a_piece_before_it_takes_the_next():
    taken = []
    pieces = (taken.append(piece) or piece for piece in ids().split(2, dim=1))
    answers = build(kind="causal").in_pieces(pieces)
    next(answers)
    assert len(taken) == 1


def test_lengths_do_not_concern_a_causal_model():
    model, tokens = build(kind="causal"), ids()
    torch.testing.assert_close(model(tokens, lengths=torch.tensor([6, 0, 2])), model(tokens))


def parameters(kind, **settings):
    """Trained numbers apart from the mixer, at MAD's width and vocabulary."""
    model = MODELS[kind](16, {"token": 16}, 128, [BD_LRU], **settings)
    mixer = sum(p.numel() for block in model.backbone.blocks for p in block.mixer.parameters())
    return sum(p.numel() for p in model.parameters()) - mixer


def test_parameters_are_as_many_as_in_mad():
    swiglu = {"channel_mixer": MixerSpec("swiglu")}
    assert parameters("autoencoder") == 37_648
    assert parameters("causal") == 4_368
    assert parameters("autoencoder", **swiglu) == 172_944
    assert parameters("causal", **swiglu) == 139_664


OTHERS = (
    LayerSpec("lstm"),
    LayerSpec("conv", kernel_size=3),
    LayerSpec("mamba2", head_dim=8),
    LayerSpec("bd_lru", num_blocks=8, block_size=2, selective=False),
    LayerSpec("h_lru", num_channels=32, order=2, selective="pointwise", initial_state="learned"),
)


@pytest.mark.parametrize("kind", MODELS)
def test_normal_redraws_the_linear_maps_and_nothing_else(kind):
    settings = {"hidden_size": 32, "kind": kind, "channel_mixer": MixerSpec("swiglu")}
    own = build(*OTHERS, **settings, linear_init="own")
    normal = build(*OTHERS, **settings, linear_init="normal")
    weights = {
        f"{name}.weight" for name, part in own.named_modules() if isinstance(part, nn.Linear)
    }
    assert len(weights) > 15
    for name, tensor in own.state_dict().items():
        redrawn = normal.get_parameter(name) if name in weights else normal.state_dict()[name]
        biased = name.removesuffix("bias") + "weight" in weights
        if name in weights:
            bound = tensor.shape[1] ** -0.5
            assert 0.9 * bound < tensor.abs().max() <= bound
            assert 0.01 < redrawn.std() < 0.03
        elif biased:
            assert not redrawn.any(), name
        else:
            assert torch.equal(tensor, redrawn), name


@pytest.mark.parametrize("kind", MODELS)
def test_one_seed_gives_one_model_and_leaves_the_global_generator_alone(kind):
    torch.manual_seed(5)
    first, same, other = (build(*LAYERS, kind=kind, seed=n).state_dict() for n in (1, 1, 2))
    drawn_after = torch.rand(1)
    assert all(torch.equal(first[name], same[name]) for name in first)
    for name in ("backbone.embedding.weight", "readouts.token.weight"):
        assert not torch.equal(first[name], other[name])
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn_after)
    # The kind of model determines the initialisation that is not given.
    usual = {"causal": "own", "autoencoder": "normal"}[kind]
    given = build(*LAYERS, kind=kind, seed=1, linear_init=usual).state_dict()
    torch.testing.assert_close(given, first, rtol=0, atol=0)


def test_the_decoder_leaves_the_other_parts_as_they_were_drawn():
    """So a causal model has the weights that it had before there was a choice."""
    causal = build(*LAYERS, kind="causal").state_dict()
    other = build(*LAYERS, linear_init="own").state_dict()
    assert causal.keys() < other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in causal.items())


def test_every_parameter_has_a_gradient():
    model = build(*LAYERS, bos=True, channel_mixer=MixerSpec("mlp"))
    sum(these.square().sum() for these in model(ids()).values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_single_channel_is_refused():
    with pytest.raises(ValueError, match="hidden_size must be at least 2 to autoencode, got 1"):
        build(hidden_size=1)
