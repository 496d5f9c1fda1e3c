"""LSTM against the module that it wraps."""

import pytest
import torch

from statemix.layers import LSTM, LSTMState


def test_layer_is_the_lstm_of_torch():
    layer = LSTM(4, dtype=torch.float64)
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, (h, c) = layer.lstm(x)
    torch.testing.assert_close(layer(x), (y, LSTMState(h[0], c[0])), rtol=0, atol=0)


def test_a_memory_of_another_size_is_projected_to_the_output():
    layer = LSTM(4, memory_size=7, dtype=torch.float64)
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h, (_, c) = layer.lstm(x)
    y, state = layer(x)
    torch.testing.assert_close(y, h @ layer.out_proj.weight.T)
    torch.testing.assert_close(state, LSTMState(h[:, -1], c[0]))


def test_bounds_that_do_not_end_at_the_length_are_refused():
    layer = LSTM(4)
    with pytest.raises(ValueError, match=r"cu_seqlens must rise .* length 5, got \[0, 4"):
        layer(torch.zeros(1, 5, 4), None, torch.tensor([0, 4]))
