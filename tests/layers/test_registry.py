"""Layers by name."""

import math

import numpy as np
import pytest
import torch

import statemix
from statemix import layers
from statemix.errors import OptionError
from statemix.layers import LAYERS


def test_every_name_builds_its_class_which_the_package_exports():
    names = ["BDLRU", "HLRU", "LSTM", "DeltaNet", "DeltaProduct", "Mamba2", "CausalConv"]
    names += ["Attention", "FPRNN", "FPMamba1", "FPMamba2"]
    assert [kind.__name__ for kind in LAYERS.values()] == names
    for name, (options, _) in REFUSED.items():
        layer = layers.build(name, hidden_size=6, **options)
        assert type(layer) is LAYERS[name] is getattr(statemix, type(layer).__name__)
        assert type(layer).__name__ in statemix.__all__


SIZE = [0, -1, 2.5, "2", True, 2**31]
TAPS = [-1, 2.5, False, torch.zeros(2)]
GATED = {
    "selective": ["none", 1],
    "gate": ["hard"],
    "gate_temperature": [0.0, math.inf, 10**400, "1", torch.nn.Parameter(torch.ones(1))],
    "initial_state": ["one", None],
    "initial_std": [-1.0, 1.0, math.nan, 1e300, True],
    "input_gate_bias": [math.inf, 10**400, "-6"],
    "memory": [(0.5, 10), (20, 10), (1, math.inf), (1, "ten"), 500, (1, 2, 3)],
    "gate_noise": [-0.5, math.nan, None],
    "checkpoint_every": [0, 2.0],
    "backend": ["abacus"],
}
SWITCH = ["no", 0, 1, None, np.True_]
DELTA = {"head_dim": SIZE, "expand_v": SIZE, "conv_size": TAPS} | dict.fromkeys(
    ("allow_neg_eigval", "use_forget_gate", "use_output_gate"), SWITCH
)
ITERATIVE = {
    "mixer": ["dense"],
    "rank": [0],
    "mixer_inputs": ["x"],
    "contraction": [1.0, True, "x"],
    "max_iterations": [0, 2.5],
    "window": [0],
    "budget": ["poisson"],
    "tolerance": [0.0, math.inf, "1"],
    "quantile": [-0.5, 0.0, 1.5],
    "damping": [-0.5, 0.0, 1.5],
    "gradient": [0, "all"],
    "expand": SIZE,
}
# Layer -> options that fit a width of 6, and values that each option refuses beside them.
REFUSED = {
    "bd_lru": (
        {"num_blocks": 4, "block_size": 3},
        GATED
        | {"num_blocks": SIZE, "block_size": SIZE, "value_channels": SIZE}
        | {"block_dropout": [-0.1, 1, math.nan, "0.5", True]},
    ),
    "h_lru": (
        {"num_channels": 4, "order": 3},
        GATED
        | {"num_channels": SIZE, "order": SIZE, "gate": ["householder"]}
        | {"realization": ["jordan"], "readout": ["all"]},
    ),
    "lstm": ({}, {"hidden_size": SIZE, "memory_size": SIZE}),
    "delta_net": ({"num_heads": 2}, DELTA | {"num_heads": [4, *SIZE]}),
    "delta_product": ({"num_heads": 2}, DELTA | {"num_householder": SIZE}),
    "mamba2": (
        {"head_dim": 4},
        {"head_dim": [5, *SIZE], "d_state": SIZE, "d_conv": TAPS, "expand": SIZE},
    ),
    "conv": ({"kernel_size": 2}, {"kernel_size": SIZE, "depthwise": SWITCH}),
    "attention": ({"num_heads": 3}, {"num_heads": [4, *SIZE], "rope": SWITCH}),
    "fp_rnn": ({"mixer": "monarch", "rank": 3}, ITERATIVE | {"solver": ["newton"]}),
    "fp_mamba1": ({"mixer": "monarch", "rank": 3}, ITERATIVE | {"d_state": SIZE, "d_conv": TAPS}),
    "fp_mamba2": (
        {"mixer": "monarch", "rank": 3},
        ITERATIVE | {"d_state": SIZE, "d_conv": TAPS, "head_dim": [5, *SIZE]},
    ),
}
REFUSED["fp_mamba1"][1]["rank"] = REFUSED["fp_mamba2"][1]["rank"] = [0, 5]


@pytest.mark.parametrize("name", LAYERS)
def test_bad_options_are_refused_by_name(name):
    options, refused = REFUSED[name]
    for option, values in (refused | {"hidden_size": SIZE}).items():
        for value in values:
            with pytest.raises(OptionError, match=f"^{option} must .*, got "):
                LAYERS[name](**{"hidden_size": 6, **options, option: value})


def test_options_that_do_not_go_together_are_refused():
    for name, options, message in [
        ("attention", {"num_heads": 2, "rope": True}, "hidden_size / num_heads must be even"),
        ("bd_lru", {"selective": "pointwise"}, "hidden_size must equal num_blocks .*, got 6 and 4"),
        ("bd_lru", {"initial_state": "unit", "initial_std": 1.0}, "initial_std must be 0 with"),
        ("bd_lru", {"memory": (1, 500), "gate": "signed"}, "memory must be None unless gate is"),
        ("bd_lru", {"memory": (1, 500), "input_gate_bias": -1.0}, "input_gate_bias must be 0"),
        ("bd_lru", {"num_blocks": 2**20, "block_size": 2**10}, r"num_blocks times .* below 2\^31"),
        ("h_lru", {"selective": "pointwise"}, "hidden_size must equal num_channels .*, got 6"),
        ("fp_rnn", {"solver": "closed", "window": 2}, "solver must be .* window=2, got 'closed'"),
        (
            *("fp_rnn", {"mixer": "kronecker", "rank": 1, "solver": "closed"}),
            "solver must be 'iterate' with mixer='kronecker', got 'closed'",
        ),
        ("fp_rnn", {"mixer": "kronecker"}, "rank must be absent with a Kronecker mixer, got 3"),
    ]:
        with pytest.raises(OptionError, match=f"^{message}"):
            LAYERS[name](6, **REFUSED[name][0] | options)
    assert layers.FPMamba2(48).head_dim == 32
