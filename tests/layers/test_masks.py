"""Packing by a mask; test_bidirectional.py and test_backbone.py run layers on such rows."""

import re

import pytest
import torch

from statemix.layers import pack, unpack

MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])


def test_tokens_ids_and_further_axes_are_packed_too():
    tokens = torch.arange(12).view(2, 6)
    packed, bounds = pack(tokens, MASK[:2])
    assert packed.tolist() == [[2, 3, 4, 5, 6, 7, 8]]
    assert bounds.tolist() == [0, 4, 7]
    assert unpack(packed, MASK[:2]).tolist() == (tokens * MASK[:2]).tolist()
    states, _ = pack(torch.zeros(2, 6, 3, 2), MASK[:2])
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
