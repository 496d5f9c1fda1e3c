"""Two directions: every sequence is read from both of its ends, whatever lies beside it."""

import pytest
import torch
from torch import nn

from statemix.errors import OptionError
from statemix.layers import LSTM, Bidirectional, pack, take_rows, unpack
from statemix.layers.state import tensors

MASK = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]])


@pytest.fixture
def both(make):
    return Bidirectional(make(dtype=torch.float64), make(dtype=torch.float64))


def test_every_sequence_is_read_as_if_it_were_alone(both):
    both.combine = combine = "sum" if both.forward_layer.name == "lstm" else "concat"
    x = torch.randn(4, 5, 8, dtype=torch.float64)
    padded, padded_states = both(x, attention_mask=MASK)
    packed, bounds = pack(x, MASK)
    y, states = both(packed, cu_seqlens=bounds)
    torch.testing.assert_close(unpack(y, MASK), padded, rtol=0, atol=0)
    torch.testing.assert_close(states, padded_states, rtol=0, atol=0)
    for n, (row, mask) in enumerate(zip(x, MASK.bool(), strict=True)):
        alone = row[mask].unsqueeze(0)
        ahead, last = both.forward_layer(alone)
        behind, first = both.backward_layer(alone.flip(1))
        parts = (ahead, behind.flip(1))
        expected = sum(parts) if combine == "sum" else torch.cat(parts, -1)
        torch.testing.assert_close(padded[n, mask], expected[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(both(alone)[0], expected, rtol=1e-10, atol=1e-12)
        assert not padded[n, ~mask].any()
        for state, end in zip(states, (last, first), strict=True):
            row_state = take_rows(state, torch.tensor([n]))
            for (_, found), (_, wanted) in zip(tensors(row_state), tensors(end), strict=True):
                # The cache of a short sequence is padded to the longest.
                short = tuple(map(slice, wanted.shape))
                torch.testing.assert_close(found[short], wanted, rtol=1e-10, atol=1e-12)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(OptionError, match=r"same hidden_size, got \(8, 6\)"):
        Bidirectional(LSTM(8), LSTM(6))
    with pytest.raises(OptionError, match="combine must be one of"):
        Bidirectional(LSTM(8), LSTM(8), combine="mean")
    with pytest.raises(TypeError, match="must be a Layer, got Linear"):
        Bidirectional(LSTM(8), nn.Linear(8, 8))
    with pytest.raises(ValueError, match="attention_mask must be None"):
        Bidirectional(LSTM(8), LSTM(8))(
            torch.zeros(1, 2, 8),
            cu_seqlens=torch.tensor([0, 2]),
            attention_mask=torch.ones(1, 2, dtype=torch.bool),
        )
