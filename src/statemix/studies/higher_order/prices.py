"""What the layers that are compared cost, so that no accuracy stands without its price."""

from functools import cache

from statemix.layers import LayerSpec, Price, price
from statemix.studies.higher_order.contenders import Contender
from statemix.studies.higher_order.protocols import SIZES, SizeName
from statemix.training import RunConfig

WIDTH = RunConfig().model.hidden_size
"""Width of the models that are compared."""


def price_of(contender: Contender, state_size: int) -> Price:
    """Return the price of a model's layer with so many entries of state, at the paper's width."""
    return _price(contender.layer(state_size))


@cache
def prices(contender: Contender, size: SizeName) -> list[Price]:
    """Return the prices of all layers of a model that a size tries.

    Args:
        contender: the model.
        size: name of the size.
    """
    scale = SIZES[size]
    layers = contender.choices(scale.state_sizes, all_variants=scale.all_variants)
    return [_price(layer) for layer in layers]


def _price(layer: LayerSpec) -> Price:
    return price(layer, hidden_size=WIDTH, length=1)
