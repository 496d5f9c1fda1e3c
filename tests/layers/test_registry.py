"""Layers by name."""

from typing import get_args

import numpy as np
import pytest
import torch

import statemix
from statemix import layers
from statemix.errors import OptionError, SettingError
from statemix.layers import LAYERS, LayerSpec
from statemix.models import CHANNEL_MIXERS
from statemix.registry import REQUIRED

# Values of required options.
SIZES = {
    "num_blocks": 2,
    "block_size": 2,
    "num_channels": 2,
    "order": 2,
    "num_heads": 2,
    "kernel_size": 2,
}


def test_every_name_builds_its_class():
    built = {
        "bd_lru": layers.build("bd_lru", hidden_size=4, num_blocks=2, block_size=3),
        "h_lru": layers.build("h_lru", hidden_size=4, num_channels=2, order=3),
        "lstm": layers.build("lstm", hidden_size=4),
        "delta_net": layers.build("delta_net", hidden_size=4, num_heads=2),
        "delta_product": layers.build("delta_product", hidden_size=4, num_heads=2),
        "mamba2": layers.build("mamba2", hidden_size=4, head_dim=4),
        "conv": layers.build("conv", hidden_size=4, kernel_size=2),
        "attention": layers.build("attention", hidden_size=4, num_heads=2),
        "fp_rnn": layers.build("fp_rnn", hidden_size=4),
        "fp_mamba1": layers.build("fp_mamba1", hidden_size=4),
        "fp_mamba2": layers.build("fp_mamba2", hidden_size=4),
    }
    assert list(built) == list(LAYERS)
    classes = [
        layers.BDLRU,
        layers.HLRU,
        layers.LSTM,
        layers.DeltaNet,
        layers.DeltaProduct,
        layers.Mamba2,
        layers.CausalConv,
        layers.Attention,
        layers.FPRNN,
        layers.FPMamba1,
        layers.FPMamba2,
    ]
    assert [type(layer) for layer in built.values()] == classes == list(LAYERS.values())


def test_options_reach_the_layer():
    options = {
        "num_channels": 2,
        "order": 3,
        "gate": "signed",
        "readout": "current",
        "realization": "observer",
        "selective": False,
        "initial_state": "learned",
        "initial_std": 0.5,
        "input_gate_bias": -2.0,
        "memory": None,
        "gate_noise": 0.125,
        "checkpoint_every": 7,
        "gate_temperature": 0.25,
        "backend": "loop",
    }
    assert options.keys() == LAYERS.options("h_lru").keys()
    spec = LayerSpec("h_lru", **options)
    for layer in (
        spec.build(hidden_size=4, dtype=torch.float64),
        layers.build("h_lru", hidden_size=4, dtype=torch.float64, **options),
    ):
        assert {name: getattr(layer, name) for name in options} == options
        assert layer.hidden_size == 4
        assert {p.dtype for p in layer.parameters()} == {torch.float64}


def test_options_list_types_and_defaults_but_not_what_all_layers_share():
    options = LAYERS.options("bd_lru")
    assert options["num_blocks"] == (int, REQUIRED)
    assert options["gate"] == (str, "softmax")
    assert get_args(options["selective"][0]) == (True, False, "pointwise")
    assert not {"self", "hidden_size", "device", "dtype"} & set(options)
    assert list(LAYERS.options("lstm")) == ["memory_size"]


def test_names_of_options_can_be_checked_without_building():
    LAYERS.check_options("bd_lru", {"num_blocks": 4, "block_size": 0})
    with pytest.raises(SettingError, match=r"must be among \[.*\], got 'device'"):
        LAYERS.check_options("bd_lru", {"device": "cpu", "hidden_size": 3})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.build("gru", hidden_size=4), r"layer must be one of \['bd_lru', .*'gru'"),
        (lambda: LAYERS.options("gru"), r"layer must be one of .* got 'gru'"),
        (lambda: LayerSpec("gru"), r"layer must be one of .* got 'gru'"),
        (
            lambda: layers.build("h_lru", hidden_size=4, num_channels=2, order=2, block_size=2),
            r"options of layer 'h_lru' must be among \[.*'num_channels', 'order', .*'block_size'",
        ),
        (
            lambda: layers.build("lstm", hidden_size=4, gate="relu"),
            r"must be among \['memory_size'\], got 'gate",
        ),
        (
            lambda: layers.build("bd_lru", hidden_size=4, num_blocks=2),
            "^block_size of layer 'bd_lru' must be given$",
        ),
    ],
)
def test_unknown_names_and_options_are_listed(call, message):
    with pytest.raises(SettingError, match=message):
        call()


SWITCHES = [
    (factories, name, option)
    for factories in (LAYERS, CHANNEL_MIXERS)
    for name in factories
    for option, (annotation, _) in factories.options(name).items()
    if annotation is bool
]


@pytest.mark.parametrize(("factories", "name", "option"), SWITCHES)
@pytest.mark.parametrize("value", ["no", 0, 1, None, np.True_])
def test_a_switch_is_true_or_false(factories, name, option, value):
    arguments = {
        option: SIZES[option]
        for option, (_, default) in factories.options(name).items()
        if default is REQUIRED
    }
    with pytest.raises(OptionError, match=f"^{option} must be True or False, got {value!r}$"):
        factories[name](hidden_size=4, **arguments | {option: value})


def test_a_layer_with_a_switch_is_known():
    assert (LAYERS, "conv", "depthwise") in SWITCHES


def test_every_layer_can_be_imported_from_the_package():
    for name, layer in LAYERS.items():
        if layer.__module__.startswith("statemix."):
            assert getattr(statemix, layer.__name__) is layer, name
            assert layer.__name__ in statemix.__all__
