"""Packing by a mask: padded rows give every layer's tokens and states what they have alone."""

import re

import pytest
import torch

from statemix.layers import AttentionState, pack, take_rows, unpack

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
def test_masked_rows_equal_rows_alone(build_first, begun, dtype):
    layer, mask = build_first().eval(), MASK.to(dtype)
    x = drawn(*mask.shape, layer.hidden_size)
    before = None
    if begun:
        # Rows of unequal lengths have been read before.
        packed, cu_seqlens = pack(drawn(*mask.shape, layer.hidden_size, seed=2), mask.flip(0))
        before = layer(packed, None, cu_seqlens)[1]
    check(layer, x, mask, before)


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
