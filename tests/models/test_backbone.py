"""The backbone: however sequences are padded or packed, tokens and states are the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statemix.layers import AttentionState, LayerSpec, take_rows
from statemix.models import Backbone, Block, MixerSpec, SequenceAutoencoder, TokenClassifier

LAYERS = (
    LayerSpec("bd_lru", num_blocks=2, block_size=3),
    LayerSpec("attention", num_heads=2, rope=True),
    LayerSpec("conv", kernel_size=3),
    LayerSpec("delta_net", num_heads=2),
    LayerSpec("lstm"),
)
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])


def build(*layers, seed=0, **options):
    torch.manual_seed(seed)
    options = {"channel_mixer": MixerSpec("swiglu"), "dtype": torch.float64} | options
    return Backbone(7, 8, layers or LAYERS, **options).eval()


def ids(batch=4, length=5, seed=0):
    return torch.randint(7, (batch, length), generator=torch.Generator().manual_seed(seed))


def compact(state):
    """One sequence's states without the padding that packing leaves in a cache."""
    return tuple(
        AttentionState(*(tensor[:, part.used[0].bool()] for tensor in part))
        if isinstance(part, AttentionState)
        else part
        for part in state
    )


def rows_of(state, n):
    return compact(tuple(take_rows(part, torch.tensor([n])) for part in state))


@st.composite
def masks(draw):
    length = draw(st.integers(0, 6))
    row = st.lists(st.booleans(), min_size=length, max_size=length)
    rows = draw(st.lists(row, min_size=1, max_size=3))
    return torch.tensor(rows, dtype=torch.bool).view(len(rows), length)


@settings(max_examples=25, deadline=None)
@given(mask=masks(), bos=st.booleans(), cut=st.integers(0, 6))
@torch.no_grad()
def test_any_mask_in_any_two_pieces_gives_rows_alone(mask, bos, cut):
    backbone, tokens = build(bos=bos), ids(*mask.shape)
    first, state = backbone(tokens[:, :cut], attention_mask=mask[:, :cut])
    second, state = backbone(tokens[:, cut:], state, attention_mask=mask[:, cut:])
    hidden = torch.cat([first, second], 1)
    for n, row in enumerate(mask):
        alone, last = backbone(tokens[n : n + 1, row])
        torch.testing.assert_close(hidden[n : n + 1, row], alone, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(rows_of(state, n), compact(last), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bos", [False, True])
@torch.no_grad()
def test_lengths_masks_and_packed_sequences_agree(bos):
    backbone, tokens = build(bos=bos), ids()
    lengths = torch.tensor([3, 0, 5, 1])
    mask = torch.arange(5) < lengths.unsqueeze(1)
    hidden, state = backbone(tokens, lengths=lengths)
    same, last = backbone(tokens, attention_mask=mask.long())
    torch.testing.assert_close((hidden, state), (same, last), rtol=0, atol=0)
    row, bounds = tokens[mask].unsqueeze(0), torch.tensor([0, 3, 3, 8, 9])
    flat, state = backbone(row, None, bounds)
    torch.testing.assert_close((flat[0], state), (hidden[mask], last))
    # Packed sequences continue from their states.
    more, _ = backbone(row, state, bounds)
    torch.testing.assert_close(more[0], backbone(tokens, last, attention_mask=mask)[0][mask])


@pytest.mark.parametrize("kind", [TokenClassifier, SequenceAutoencoder])
@pytest.mark.parametrize("bos", [False, True])
@torch.no_grad()
def test_heads_take_masks(kind, bos):
    model = kind(7, {"y": 3}, 8, LAYERS, bos=bos).double()
    tokens = ids()
    logits = model(tokens, attention_mask=MASK)["y"]
    for n, row in enumerate(MASK.bool()):
        alone = model(tokens[n : n + 1, row])["y"]
        torch.testing.assert_close(logits[n : n + 1, row], alone, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_classifier_decodes_after_padded_prompts():
    model = TokenClassifier(7, {"y": 3}, 8, LAYERS, bos=True).double()
    tokens, more = ids(), ids(length=1, seed=1)
    _, state = model.extend(tokens, attention_mask=MASK)
    logits = model.extend(more, state)[0]["y"]
    for n, row in enumerate(MASK.bool()):
        whole = torch.cat([tokens[n, row], more[n]]).unsqueeze(0)
        torch.testing.assert_close(logits[n, -1], model(whole)["y"][0, -1])


def test_gradients_ignore_padding():
    backbone = build()
    hidden, _ = backbone(ids(), attention_mask=MASK)
    hidden[MASK.bool()].square().sum().backward()
    gradients = [parameter.grad for parameter in backbone.parameters()]
    backbone.zero_grad()
    rows = zip(ids(), MASK.bool(), strict=True)
    sum(backbone(row[here].unsqueeze(0))[0].square().sum() for row, here in rows).backward()
    torch.testing.assert_close(gradients, [parameter.grad for parameter in backbone.parameters()])


def test_device_and_dtype_reach_every_parameter():
    backbone = build(device="meta", dtype=torch.bfloat16, norm="layer")
    placed = {(part.device.type, part.dtype) for part in backbone.parameters()}
    assert placed == {("meta", torch.bfloat16)}
    assert {part.dtype for part in build(dtype=None).parameters()} == {torch.float32}
    block = Block(8, LAYERS[0], MixerSpec("mlp"), device="meta", dtype=torch.float64)
    assert {(part.device.type, part.dtype) for part in block.parameters()} == {
        ("meta", torch.float64)
    }


def test_dropout_zeroes_outputs_of_parts_in_training_alone():
    backbone, tokens = build(dropout=0.5), ids(2, 200)
    plain = build()
    plain.load_state_dict(backbone.state_dict())
    assert torch.equal(backbone(tokens)[0], plain(tokens)[0])
    block = Block(64, LAYERS[0], dropout=0.25).train()
    x = torch.randn(4, 50, 64)
    assert (block(x)[0] == x).float().mean().item() == pytest.approx(0.25, abs=0.02)
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        Block(8, LAYERS[0], dropout=2.0)
