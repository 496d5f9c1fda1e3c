"""The layers of comparisons: their names in tables, their colours, and options of one size."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from statemix.layers import LAYERS, Layer, LayerSpec
from statemix.layers.fixed_point.fixed_point_layer import LEAST_BUDGET

STATE_PER_CHANNEL = 4
"""Entries of the state of a sequence, divided by the width of the layer."""


@dataclass(frozen=True)
class Look:
    """How a layer is shown.

    Attributes:
        name: its name.
        colour: its colour in figures; each has a contrast of 3 with white and with black pages.
        label: returns what is added to the name for some options.
    """

    name: str
    colour: str
    label: Callable[[Mapping[str, Any]], str] = lambda _: ""


def _range(options: Mapping[str, Any]) -> str:
    return f" [{-1 if options.get('allow_neg_eigval', True) else 0}, 1]"


def _mixer(options: Mapping[str, Any]) -> str:
    mixer = options.get("mixer", "householder")
    return f" {mixer}" + ("" if mixer == "kronecker" else f" {options.get('rank', 1)}")


LOOKS = {
    "bd_lru": Look("BD-LRU", "#0072B2", lambda options: f" m={options['block_size']}"),
    "h_lru": Look("H-LRU", "#009E73", lambda options: f" m={options['order']}"),
    "lstm": Look("LSTM", "#D55E00"),
    "mamba2": Look("Mamba-2", "#9A7D0A", lambda options: f" S={options.get('d_state', 128)}"),
    "delta_net": Look("DeltaNet", "#CC79A7", _range),
    "delta_product": Look(
        "DeltaProduct",
        "#7E57C2",
        lambda options: f" n={options.get('num_householder', 4)}{_range(options)}",
    ),
    "attention": Look(
        "Attention", "#7F7F7F", lambda options: " with RoPE" if options.get("rope") else ""
    ),
    "conv": Look("Convolution", "#8C564B", lambda options: f" K={options['kernel_size']}"),
    "fp_rnn": Look("FP-RNN", "#C0392B"),
    "fp_mamba1": Look("FP-Mamba1", "#2E86AB", _mixer),
    "fp_mamba2": Look("FP-Mamba2", "#B8860B", _mixer),
}
"""Name of a layer -> how it is shown. A layer without an entry is shown by its name."""


def display_name(layer: str) -> str:
    """Return the name of a layer in tables and figures."""
    return LOOKS[layer].name if layer in LOOKS else layer


def layer_label(layer: str, options: Mapping[str, Any]) -> str:
    """Return the name of a layer with the options that distinguish it in a comparison.

    Example:
        >>> layer_label("bd_lru", {"num_blocks": 64, "block_size": 3})
        'BD-LRU m=3'
    """
    look = LOOKS.get(layer, Look(layer, ""))
    gated = "Gated " if options.get("use_forget_gate") and layer.startswith("delta") else ""
    depthwise = layer == "conv" and options.get("depthwise")
    name = "Depthwise convolution" if depthwise else look.name
    return f"{gated}{name}{look.label(options)}"


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
