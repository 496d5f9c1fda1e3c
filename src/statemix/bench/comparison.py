"""The layers of this library with options that make them comparable at one width."""

import math
from typing import Any

import torch

from statemix.layers import LAYERS, Layer, LayerSpec
from statemix.layers.fixed_point.fixed_point_layer import LEAST_BUDGET

STATE_PER_CHANNEL = 4
"""Entries of the state of a sequence, divided by the width of the layer."""


def compared(hidden_size: int) -> dict[str, LayerSpec]:
    """Return the layers by name, with their options for a comparison at a width.

    Where the options of a layer allow it, the state of a sequence has ``STATE_PER_CHANNEL`` entries
    per channel, without the inputs that a short convolution keeps. Mamba-2 has few columns, as in
    Dubinin et al.; other open choices are common ones.
    """
    delta_rule = {"num_heads": max(STATE_PER_CHANNEL * hidden_size // 16**2, 1), "head_dim": 16}
    columns = {"d_state": STATE_PER_CHANNEL // 2}
    iteration = {"contraction": 0.5, "max_iterations": LEAST_BUDGET}
    units = STATE_PER_CHANNEL * hidden_size // 4
    options: dict[str, dict[str, Any]] = {
        "bd_lru": {"num_blocks": units, "block_size": 4},
        "h_lru": {"num_channels": units, "order": 4},
        "lstm": {},
        "delta_net": delta_rule,
        "delta_product": delta_rule,
        "mamba2": {**columns, "head_dim": math.gcd(2 * hidden_size, 64)},
        "conv": {"kernel_size": STATE_PER_CHANNEL + 1},
        "attention": {"num_heads": hidden_size // math.gcd(hidden_size, 64)},
        "fp_rnn": {"expand": STATE_PER_CHANNEL, **iteration},
        "fp_mamba1": {**columns, **iteration},
        "fp_mamba2": {**columns, **iteration},
    }
    return {name: LayerSpec(name, **chosen) for name, chosen in options.items()}


def is_lost(kind: type[Layer], dtype: torch.dtype) -> bool:
    """Return whether rounding errors of a data type spoil what a layer computes by iteration."""
    return kind.iterative and dtype.itemsize < torch.float32.itemsize


def layers_of_dtype(hidden_size: int, dtype: torch.dtype) -> list[LayerSpec]:
    """Return the compared layers, without those that iterate if the data type has 16 bits."""
    every = compared(hidden_size)
    return [spec for name, spec in every.items() if not is_lost(LAYERS[name], dtype)]
