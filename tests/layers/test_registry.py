"""Layers by name."""

import inspect
from typing import get_args

import pytest
import torch

from statemix import layers


def test_every_name_builds_its_class():
    built = {
        "bd_lru": layers.build("bd_lru", hidden_size=4, num_blocks=2, block_size=3),
        "h_lru": layers.build("h_lru", hidden_size=4, num_channels=2, order=3),
        "lstm": layers.build("lstm", hidden_size=4),
    }
    assert list(built) == layers.names()
    classes = [layers.BDLRU, layers.HLRU, layers.LSTM]
    assert [type(layer) for layer in built.values()] == classes


def test_options_reach_the_layer():
    layer = layers.build(
        "h_lru",
        hidden_size=4,
        num_channels=2,
        order=3,
        gate="signed",
        readout="current",
        gate_temperature=0.25,
        dtype=torch.float64,
    )
    assert (layer.gate, layer.readout, layer.gate_temperature) == ("signed", "current", 0.25)
    assert {p.dtype for p in layer.parameters()} == {torch.float64}


def test_options_list_types_and_defaults_but_not_what_all_layers_share():
    options = layers.options("bd_lru")
    assert options["num_blocks"] == (int, inspect.Parameter.empty)
    assert options["gate"] == (str, "softmax")
    assert get_args(options["selective"][0]) == (True, False, "pointwise")
    assert not {"self", "hidden_size", "device", "dtype"} & set(options)
    assert layers.options("lstm") == {}


def test_names_of_options_can_be_checked_without_building():
    layers.check_options("bd_lru", {"num_blocks": 4, "block_size": 0})
    with pytest.raises(ValueError, match=r"must be among \[.*\], got \['device', 'hidden_size'\]"):
        layers.check_options("bd_lru", ["device", "hidden_size"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.build("gru", hidden_size=4), r"layer must be one of \['bd_lru', .*'gru'"),
        (lambda: layers.options("gru"), r"layer must be one of .* got 'gru'"),
        (
            lambda: layers.build("h_lru", hidden_size=4, num_channels=2, order=2, block_size=2),
            r"options of layer 'h_lru' must be among \['num_channels', 'order', .*\['block_size'\]",
        ),
        (lambda: layers.build("lstm", hidden_size=4, gate="relu"), r"must be among \[\], got"),
        (
            lambda: layers.build("bd_lru", hidden_size=4, num_blocks=2),
            r"options of layer 'bd_lru' must include \['block_size'\], got \['num_blocks'\]",
        ),
    ],
)
def test_unknown_names_and_options_are_listed(call, message):
    with pytest.raises(ValueError, match=message):
        call()
