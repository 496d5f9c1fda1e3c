"""The price of a layer: parameters, state, FLOPs and bytes of a decoded token."""

import pytest
import torch

from statemix.errors import OptionError
from statemix.layers import LAYERS, LayerSpec, price
from statemix.layers.state import tensors
from statemix_lab.bench import compared_layers


def compared(name, hidden_size):
    return compared_layers.compared(hidden_size)[name]


@pytest.mark.parametrize("name", list(LAYERS))
def test_the_price_is_that_of_the_layer_that_is_built(name):
    spec, length = compared(name, 16), 7
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


def test_a_price_by_hand():
    """Blocks of 2 x 2 at width 4: 12 gates with biases, 4 values, 4 readouts."""
    found = price(LayerSpec("bd_lru", num_blocks=2, block_size=2), hidden_size=4, length=100)
    assert found.num_parameters == 12 * 4 + 12 + 4 * 4 + 4 * 4
    assert (found.state_size, found.state_bytes) == (4, 16)
    assert found.decode_bytes == 4 * 92 + 16 + 16
    assert found.flops.total == 2 * 4 * (12 + 4 + 4) + 2 * 12 + 3 * 12


def test_a_cache_is_read_whole_and_grows_by_a_token():
    first, last = (
        price(LayerSpec("attention", num_heads=2), hidden_size=4, length=n) for n in (1, 9)
    )
    # Keys, values and a mark for each token.
    assert (first.state_size, last.state_size) == (9, 81)
    assert first.decode_bytes == 4 * 64 + 4 * 9
    assert last.decode_bytes == 4 * 64 + 4 * (72 + 9)
    assert last.flops.transition == 9 * first.flops.transition


def test_bfloat16_halves_the_weights_but_not_the_state():
    wide, narrow = (
        price(LayerSpec("lstm"), hidden_size=4, length=1, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert wide.state_bytes == narrow.state_bytes == 4 * 8
    assert wide.decode_bytes - narrow.decode_bytes == 2 * wide.num_parameters


@pytest.mark.parametrize("name", list(LAYERS))
def test_layers_are_compared_with_states_of_comparable_size(name):
    for hidden_size in (1, 6, 64, 100, 256):
        compared(name, hidden_size).build(hidden_size=hidden_size, device="meta")
    state = compared(name, 256).build(hidden_size=256, device="meta").state_after(16)
    sizes = {part_name: part[0].numel() for part_name, part in tensors(state)}
    if name in ("lstm", "attention"):  # which have no choice
        return
    # FP-Mamba keeps its last output, too.
    kept = [size for part, size in sizes.items() if part not in ("state.conv", "state.output")]
    assert kept == [compared_layers.STATE_PER_CHANNEL * 256]


def test_a_layer_that_counts_nothing_has_no_flops(toys):
    found = price(LayerSpec("solver"), hidden_size=4, length=3)
    assert found.flops is None
    assert found.num_parameters == 20


def test_bad_arguments_are_named():
    spec = LayerSpec("attention", num_heads=2)
    for name, value in [("length", 0), ("length", 1.5), ("hidden_size", 0), ("num_heads", 5)]:
        arguments = {"hidden_size": 4, "length": 1} | {
            name.replace("num_heads", "hidden_size"): value
        }
        with pytest.raises(OptionError, match=f"^{name} must"):
            price(spec, **arguments)
