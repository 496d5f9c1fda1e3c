"""The short convolution against the convolution of torch."""

import pytest
import torch

from statemix.layers.padded import shifted_sum, sum_over_taps


def tokens(batch, length, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("length", "dtype"), [(0, torch.float32), (1, torch.float64), (9, torch.float32)]
)
def test_both_forms_of_the_sum_and_their_gradients_are_those_of_the_equation(length, dtype):
    window, weight = tokens(2, length + 3), tokens(1, 4, seed=2)[0]
    d_y = tokens(2, length, seed=3)
    expected = torch.zeros_like(d_y)
    d_window, d_weight = torch.zeros_like(window), torch.zeros_like(weight)
    for t in range(length):
        for j in range(4):
            expected[:, t] += weight[j] * window[:, t + j]
            d_window[:, t + j] += weight[j] * d_y[:, t]
            d_weight[j] += (window[:, t + j] * d_y[:, t]).sum(0)
    for form in (sum_over_taps, lambda x, w: shifted_sum(x, w, length)):
        x, w = (tensor.to(dtype, copy=True).requires_grad_() for tensor in (window, weight))
        y = form(x, w)
        y.backward(d_y.to(dtype))
        for got, wanted in [(y, expected), (x.grad, d_window), (w.grad, d_weight)]:
            torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
