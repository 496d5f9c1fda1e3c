"""Names and colours of layers in tables and figures. A layer without an entry shows its name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.colors
import seaborn as sns  # type: ignore[import-untyped]

_Label = Callable[[Mapping[str, Any]], str]


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
    label: _Label = lambda _: ""


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
"""Name of a layer -> how it is shown."""


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


def series_colours(families: Sequence[str]) -> list[str]:
    """Return a colour for each series of a figure.

    Args:
        families: name of the layer of each series, or any other name. Series of one layer are
            shades of its colour.
    """
    others = [name for name in dict.fromkeys(families) if name not in LOOKS]
    palette = sns.color_palette("husl", len(others), desat=0.8).as_hex()
    colours = dict(zip(others, palette, strict=True)) | {
        name: look.colour for name, look in LOOKS.items()
    }
    shades = {family: iter(_shades(colours[family], families.count(family))) for family in families}
    return [next(shades[family]) for family in families]


def _shades(colour: str, count: int) -> list[str]:
    if count == 1:
        return [colour]
    # The ends stay away from white and black, so that lines can be seen on every page.
    around = (matplotlib.colors.to_rgb(mixed) for mixed in ("black", "white"))
    own = matplotlib.colors.to_rgb(colour)
    dark, light = (
        tuple(0.7 * a + 0.3 * b for a, b in zip(own, end, strict=True)) for end in around
    )
    shades: list[str] = sns.blend_palette([dark, colour, light], count).as_hex()
    return shades
