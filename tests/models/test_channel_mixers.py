"""Position-wise networks: their sizes are part of the protocol."""

import pytest
import torch

from statemix.models.channel_mixers import CHANNEL_MIXERS, MLP, SwiGLU


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_swiglu_has_the_size_of_mad_at_width_128():
    mixer = SwiGLU(128)
    assert mixer.gate_proj.out_features == 352
    assert count(mixer) == 135_168


def test_mlp_is_four_times_as_wide_inside_and_has_biases():
    assert count(MLP(16)) == 2 * 16 * 64 + 64 + 16


def test_swiglu_is_the_gated_product():
    torch.manual_seed(0)
    mixer = SwiGLU(6)
    x = torch.randn(2, 3, 6)
    a, b = x @ mixer.gate_proj.weight.T, x @ mixer.up_proj.weight.T
    expected = (a * a.sigmoid() * b) @ mixer.down_proj.weight.T
    torch.testing.assert_close(mixer(x), expected)


@pytest.mark.parametrize("name", [name for name, make in CHANNEL_MIXERS.items() if make])
def test_a_token_does_not_see_its_neighbours(name):
    torch.manual_seed(0)
    mixer = CHANNEL_MIXERS[name](8)
    x = torch.randn(1, 5, 8)
    torch.testing.assert_close(mixer(x)[:, 2:3], mixer(x[:, 2:3]))
