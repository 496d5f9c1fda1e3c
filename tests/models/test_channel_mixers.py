"""Position-wise networks: their sizes are part of the protocol."""

import pytest
import torch

from statemix.errors import OptionError
from statemix.models.channel_mixers import CHANNEL_MIXERS, MLP, MixerSpec, SwiGLU


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_swiglu_has_the_size_of_mad_at_width_128():
    mixer = SwiGLU(128)
    assert mixer.gate_proj.out_features == 352
    assert count(mixer) == 135_168
    # 8/3 of 12 is a multiple of 16 already.
    assert SwiGLU(12).gate_proj.out_features == 32


def test_mlp_is_four_times_as_wide_inside_and_has_biases():
    assert count(MLP(16)) == 2 * 16 * 64 + 64 + 16


def test_swiglu_is_the_gated_product():
    torch.manual_seed(0)
    mixer = SwiGLU(6)
    x = torch.randn(2, 3, 6)
    a, b = x @ mixer.gate_proj.weight.T, x @ mixer.up_proj.weight.T
    expected = (a * a.sigmoid() * b) @ mixer.down_proj.weight.T
    torch.testing.assert_close(mixer(x), expected)


@pytest.mark.parametrize("name", CHANNEL_MIXERS)
def test_every_mixer_keeps_the_shape_and_zeroes_its_biases(name):
    mixer = MixerSpec(name).build(hidden_size=8)
    assert mixer(torch.randn(2, 3, 8)).shape == (2, 3, 8)
    before = {key: tensor.clone() for key, tensor in mixer.state_dict().items()}
    mixer.zero_biases()
    for key, tensor in mixer.state_dict().items():
        assert not tensor.any() if key.endswith("bias") else torch.equal(tensor, before[key])


@pytest.mark.parametrize("kind", CHANNEL_MIXERS.values())
def test_bad_sizes_are_named(kind):
    for name, value in [("hidden_size", 0), ("intermediate_size", 0), ("intermediate_size", 2.5)]:
        with pytest.raises(OptionError, match=f"^{name} must be"):
            kind(**{"hidden_size": 8, name: value})
