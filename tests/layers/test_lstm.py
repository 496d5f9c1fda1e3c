"""LSTM against the module that it wraps."""

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
