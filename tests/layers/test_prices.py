"""The price of a layer: parameters, state, FLOPs and bytes of a decoded token."""

import pytest
import torch

from statemix.errors import OptionError
from statemix.layers import LAYERS, LayerSpec, price
from statemix.layers.state import tensors
from statemix_lab.bench import compared_layers


@pytest.mark.parametrize("name", list(LAYERS))
def test_the_price_is_that_of_the_layer_that_is_built(name):
    spec, length = compared_layers.compared(16)[name], 7
    found = price(spec, hidden_size=16, length=length)
    layer = spec.build(hidden_size=16)
    _, before = layer(torch.randn(1, length - 1, 16))
    _, after = layer.step(torch.randn(1, 16), before)
    sizes = [
        sum(part.numel() * part.element_size() for _, part in tensors(state))
        for state in (before, after)
    ]
    weights = sum(p.numel() for p in layer.parameters())
    assert found.num_parameters == weights
    assert found.state_size == sum(part.numel() for _, part in tensors(after))
    assert found.state_bytes == sizes[1]
    assert found.flops == layer.flops_per_token(length)
    written = sizes[1] - sizes[0] if sizes[0] != sizes[1] else sizes[1]
    assert found.decode_bytes == 4 * weights + sizes[0] + written


def test_a_cache_is_read_whole_and_grows_by_a_token():
    spec = LayerSpec("attention", num_heads=2)
    first, last = (price(spec, hidden_size=4, length=n) for n in (1, 9))
    # Keys, values and a mark for each token.
    assert (first.state_size, last.state_size) == (9, 81)
    assert first.decode_bytes == 4 * 64 + 4 * 9
    assert last.decode_bytes == 4 * 64 + 4 * (72 + 9)
    assert last.flops.transition == 9 * first.flops.transition


def test_a_layer_that_counts_nothing_has_no_flops(toys):
    found = price(LayerSpec("solver"), hidden_size=4, length=3)
    assert found.flops is None
    assert found.num_parameters == 20


def test_bad_arguments_are_named():
    spec = LayerSpec("attention", num_heads=2)
    for name, value in [("length", 0), ("length", 1.5), ("hidden_size", 0), ("num_heads", 5)]:
        changed = {name.replace("num_heads", "hidden_size"): value}
        with pytest.raises(OptionError, match=f"^{name} must"):
            price(spec, **{"hidden_size": 4, "length": 1} | changed)
