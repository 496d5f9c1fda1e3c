"""The short convolution against the convolution of torch."""

import pytest
import torch
from torch.nn.functional import conv1d, silu

from statemix.layers.short_conv import ShortConvolution, shifted_sum, sum_over_taps


def drawn(kernel_size, **options):
    conv = ShortConvolution(3, kernel_size, dtype=torch.float64, **options)
    conv.reset_parameters(torch.Generator().manual_seed(0))
    return conv


def tokens(batch, length, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("kernel_size", "bias"), [(1, True), (4, False), (4, True)])
def test_it_is_a_depthwise_convolution_and_silu(kernel_size, bias):
    conv, x = drawn(kernel_size, bias=bias), tokens(2, 6)
    past = tokens(2, kernel_size - 1, seed=2)
    y, state = conv(x, past)
    window = torch.cat([past, x], 1)
    expected = conv1d(window.mT, conv.weight.T.unsqueeze(1), conv.bias, groups=3).mT
    torch.testing.assert_close(y, silu(expected), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(state, window[:, 6:], rtol=0, atol=0)


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


def test_no_taps_leave_silu():
    conv, x = drawn(0, bias=True), tokens(2, 6)
    assert list(conv.parameters()) == []
    y, state = conv(x, tokens(2, 0))
    torch.testing.assert_close(y, silu(x), rtol=0, atol=0)
    assert state.shape == (2, 0, 3)


def test_rows_keep_the_inputs_before_their_own_ends():
    conv, x, past = drawn(4), tokens(4, 5), tokens(4, 3, seed=2)
    lengths = torch.tensor([0, 1, 3, 5])
    _, state = conv(x, past, lengths)
    for n, length in enumerate(lengths.tolist()):
        _, alone = conv(x[n : n + 1, :length], past[n : n + 1])
        torch.testing.assert_close(state[n : n + 1], alone, rtol=0, atol=0)
