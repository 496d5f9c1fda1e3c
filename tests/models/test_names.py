"""Names of parts in runs of earlier versions, which must still load."""

import re

import pytest
import torch

from statemix.layers import LayerSpec
from statemix.models import MODELS, MixerSpec, earlier_name
from statemix.training import OptimizerConfig, ParameterGroup
from statemix.training.schedules import build_optimizer

BD_LRU = LayerSpec("bd_lru", num_blocks=2, block_size=3)


def build(kind="causal", **settings):
    mixer = MixerSpec("mlp")
    return MODELS[kind](7, {"product": 5}, 8, [BD_LRU, BD_LRU], channel_mixer=mixer, **settings)


@pytest.mark.parametrize(
    ("name", "earlier"),
    [
        ("backbone.embedding.weight", "embedding.weight"),
        ("backbone.blocks.0.norm.weight", "blocks.0.norm.weight"),
        ("backbone.blocks.12.mixer.gate_proj.bias", "blocks.12.layer.gate_proj.bias"),
        ("backbone.blocks.1.channel_mixer.up_proj.bias", "blocks.1.mixer.up_proj.bias"),
        ("backbone.blocks.1.channel_norm.weight", "blocks.1.mixer_norm.weight"),
        ("backbone.blocks.1.mixer.mixer.weight", "blocks.1.layer.mixer.weight"),
        ("backbone.final_norm.weight", "final_norm.weight"),
        *((name, name) for name in ("", "backbone", "readouts.product.weight", "blocks.0.layer")),
    ],
)
def test_every_part_has_its_earlier_name(name, earlier):
    assert earlier_name(name) == earlier


@pytest.mark.parametrize("kind", MODELS)
def test_weights_of_earlier_versions_load(kind):
    stored, model = build(kind, seed=1), build(kind)
    weights = {earlier_name(name): tensor for name, tensor in stored.state_dict().items()}
    assert any(name.startswith("blocks.1.mixer_norm") for name in weights)
    model.load_state_dict(weights)
    torch.testing.assert_close(model.state_dict(), stored.state_dict(), rtol=0, atol=0)
    # A model within another module has a prefix.
    outer = torch.nn.ModuleList([build(kind)])
    outer.load_state_dict({f"0.{name}": tensor for name, tensor in weights.items()})
    torch.testing.assert_close(outer[0].state_dict(), stored.state_dict(), rtol=0, atol=0)


def test_missing_weights_have_their_present_names():
    model = build()
    weights = {earlier_name(name): tensor for name, tensor in model.state_dict().items()}
    del weights["blocks.0.layer.value_proj.weight"]
    missing = re.escape('Missing key(s) in state_dict: "backbone.blocks.0.mixer.value_proj.weight"')
    with pytest.raises(RuntimeError, match=missing):
        model.load_state_dict(weights)


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("embedding.*", ["backbone.embedding.weight"]),
        ("blocks.1.mixer.up_proj.*", ["backbone.blocks.1.channel_mixer.up_proj." + part
                                      for part in ("weight", "bias")]),
        ("backbone.blocks.1.mixer.gate_proj.bias", ["backbone.blocks.1.mixer.gate_proj.bias"]),
        ("*.layer.out_proj.*", [f"backbone.blocks.{n}.mixer.out_proj.weight" for n in (0, 1)]),
    ],
)  # fmt: skip
def test_patterns_of_parameters_match_both_names(pattern, matched):
    model = build()
    config = OptimizerConfig(groups=(ParameterGroup(pattern, learning_rate_factor=0.0),))
    _, group = build_optimizer(model, config).param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert [names[parameter] for parameter in group["params"]] == matched
