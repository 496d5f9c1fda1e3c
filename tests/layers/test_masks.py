"""Packing by a mask: padded rows give every layer's tokens and states what they have alone."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statemix.layers import AttentionState, LayerSpec, pack, take_rows, unpack

# Left padding, right padding, none, holes, one token, no token.
MASK = torch.tensor(
    [
        [0, 0, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 1],
        [0, 1, 0, 0, 1, 1],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
)


def drawn(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def compact(state):
    """One sequence's state without the padding that packing leaves in a cache."""
    if not isinstance(state, AttentionState):
        return state
    return AttentionState(*(part[:, state.used[0].bool()] for part in state))


def check(layer, x, mask, before):
    """Compare every row of a batch with the row alone."""
    packed, cu_seqlens = pack(x, mask)
    y, after = layer(packed, before, cu_seqlens)
    y = unpack(y, mask)
    assert not y[~mask.bool()].any()
    for n, row in enumerate(mask.bool()):
        index = torch.tensor([n])
        start = None if before is None else compact(take_rows(before, index))
        alone, state = layer(x[index][:, row], start)
        torch.testing.assert_close(y[index][:, row], alone, rtol=1e-9, atol=1e-9)
        found = compact(take_rows(after, index))
        torch.testing.assert_close(found, state, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("begun", "dtype"), [(False, torch.bool), (True, torch.int64)], ids=["fresh", "begun"]
)
@torch.no_grad()
def test_masked_rows_equal_rows_alone(build, begun, dtype):
    layer, mask = build(dtype=torch.float64).eval(), MASK.to(dtype)
    x = drawn(*mask.shape, layer.hidden_size)
    before = None
    if begun:
        # Rows of unequal lengths have been read before.
        packed, cu_seqlens = pack(drawn(*mask.shape, layer.hidden_size, seed=2), mask.flip(0))
        before = layer(packed, None, cu_seqlens)[1]
    check(layer, x, mask, before)


SPECS = [
    LayerSpec("bd_lru", num_blocks=2, block_size=2, initial_state="learned"),
    LayerSpec("h_lru", num_channels=4, order=2),
    LayerSpec("attention", num_heads=2, rope=True),
    LayerSpec("conv", kernel_size=3),
    LayerSpec("mamba2", d_state=2, head_dim=4),
    LayerSpec("lstm"),
]


@st.composite
def masks(draw):
    length = draw(st.integers(0, 7))
    row = st.lists(st.booleans(), min_size=length, max_size=length)
    rows = draw(st.lists(row, min_size=1, max_size=4))
    return torch.tensor(rows, dtype=torch.bool).view(len(rows), length)


@settings(max_examples=60, deadline=None)
@given(mask=masks(), spec=st.sampled_from(SPECS), cut=st.integers(0, 7))
@torch.no_grad()
def test_any_mask_and_any_cut_give_rows_alone(mask, spec, cut):
    torch.manual_seed(0)
    layer = spec.build(hidden_size=4, dtype=torch.float64).eval()
    x = drawn(*mask.shape, 4)
    check(layer, x, mask, None)
    state = None
    for part, piece in ((mask[:, :cut], x[:, :cut]), (mask[:, cut:], x[:, cut:])):
        packed, cu_seqlens = pack(piece, part)
        check(layer, piece, part, state)
        state = layer(packed, state, cu_seqlens)[1]


def test_gradients_reach_the_tokens_alone():
    x, mask = drawn(3, 4, 2).requires_grad_(), MASK[:3, 1:5]
    packed, _ = pack(x, mask)
    unpack(packed.square(), mask).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() * mask.unsqueeze(-1))


def test_tokens_ids_and_further_axes_are_packed_too():
    tokens = torch.arange(12).view(2, 6)
    packed, bounds = pack(tokens, MASK[:2])
    assert packed.tolist() == [[2, 3, 4, 5, 6, 7, 8]]
    assert bounds.tolist() == [0, 4, 7]
    assert unpack(packed, MASK[:2]).tolist() == (tokens * MASK[:2]).tolist()
    states, _ = pack(drawn(2, 6, 3, 2), MASK[:2])
    assert states.shape == (1, 7, 3, 2)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        ([[1, 1]], TypeError, "attention_mask must be a tensor, got list"),
        (MASK[0], ValueError, "attention_mask must have shape (B, T), got (6,)"),
        (MASK[:3], ValueError, "attention_mask must have shape (B=2, T=6), got (3, 6)"),
        (MASK[:2].float(), TypeError, "must be bool or integer, got torch.float32"),
        (2 * MASK[:2], ValueError, "attention_mask must be 0 or 1, got 2"),
        (MASK[:2].to("meta"), ValueError, "attention_mask must be on cpu, got meta"),
    ],
)
def test_bad_masks_are_named(mask, error, message):
    with pytest.raises(error, match=re.escape(message)):
        pack(torch.zeros(2, 6, 4), mask)
