"""The costs of the layers that are compared, so that no accuracy stands without its price."""

from collections.abc import Sequence
from functools import cache

from statemix.layers import LayerSpec, Price, price
from statemix.studies.result_text import counts_text
from statemix.training import RunConfig

WIDTH = RunConfig().model.hidden_size
"""Width of the models that are compared."""

PRICES = ("parameters", "FLOPs/token")
"""Heads of the columns that :func:`price_texts` fills."""


@cache
def layer_price(layer: LayerSpec) -> Price:
    """Return the price of a layer at the width of the paper."""
    return price(layer, hidden_size=WIDTH, length=1)


def price_texts(layers: Sequence[LayerSpec]) -> tuple[str, str]:
    """Write parameters and forward FLOPs per token of the layers that are tried."""
    paid = [layer_price(layer) for layer in layers]
    flops = [one.flops.total for one in paid if one.flops is not None]
    return counts_text(one.num_parameters for one in paid), counts_text(flops)
