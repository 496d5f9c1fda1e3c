"""CausalConv against its equation."""

import pytest
import torch
from tests.layers.conftest import tokens

from statemix.layers import CausalConv


def drawn(kernel_size, **options):
    layer = CausalConv(6, kernel_size=kernel_size, dtype=torch.float64, **options)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    return layer


def reference(layer, x, state):
    """The equation of the docstring for one sequence x (T, 6) after K - 1 inputs."""
    K, weight = layer.kernel_size, layer.conv.weight
    past, outputs = torch.cat([state, x]), []
    for t in range(len(x)):
        y = layer.conv.bias
        for j in range(K):
            tap = weight[:, 0, j].diag() if layer.depthwise else weight[:, :, j]
            y = y + tap @ past[t + j]
        outputs.append(y)
    return torch.stack(outputs), past[len(past) - K + 1 :]


@pytest.mark.parametrize(
    ("kernel_size", "depthwise", "length"),
    [(1, False, 3), (1, True, 1), (2, False, 9), (2, True, 3), (5, False, 1), (5, True, 9)],
)
def test_layer_is_the_sum_over_taps(kernel_size, depthwise, length):
    layer, x = drawn(kernel_size, depthwise=depthwise), tokens(1, length).requires_grad_()
    past = tokens(3, kernel_size - 1)[2:].requires_grad_()
    y, state = layer(x, past)
    expected, final = reference(layer, x[0], past[0])
    torch.testing.assert_close(y[0], expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(state[0], final, rtol=0, atol=0)
    leaves = [x, past, *layer.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(y.sin().sum() + state.cos().sum(), leaves),
        torch.autograd.grad(expected.sin().sum() + final.cos().sum(), leaves),
        rtol=1e-11,
        atol=1e-12,
    )


def test_biases_can_be_zeroed():
    layer = drawn(3)
    layer.zero_biases()
    assert (layer(torch.zeros(1, 4, 6, dtype=torch.float64))[0] == 0).all()
