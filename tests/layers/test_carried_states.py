"""What a returned state holds: no more than itself, in its own memory, in files that load."""

import io
import warnings

import pytest
import torch

from statemix.layers import Attention
from statemix.layers.state import tensors

CASES = ["whole", "packed", "step", "no tokens", "initial", "continued"]


def after(layer, case, length=200):
    x = torch.randn(1, length, 8)
    if case == "initial":
        return layer.init_state(1)
    if case == "step":
        return layer.step(x[:, 0], layer(x)[1])[1]
    if case == "no tokens":
        return layer(x[:, :0], layer(x)[1])[1]
    if case == "continued":
        return layer(x, layer(x)[1])[1]
    bounds = torch.tensor([0, 3, 3, length]) if case == "packed" else None
    return layer(x, None, bounds)[1]


@pytest.mark.parametrize("inference", [False, True])
def test_a_state_holds_no_more_than_itself(make, inference):
    layer = make()
    for case in CASES:
        with torch.inference_mode(inference):
            parts = [part for _, part in tensors(after(layer, case))]
        for part in parts:
            assert part.untyped_storage().nbytes() <= 2 * part.nbytes + 64
        file = io.BytesIO()
        torch.save(parts, file)
        assert file.tell() < 2 * sum(part.nbytes for part in parts) + 4000


def test_a_saved_state_loads_by_default(make):
    state = after(make(), "whole")
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = torch.load(file)
    assert type(again) is type(state)
    torch.testing.assert_close(again, state)


def test_the_cost_of_packed_sequences_follows_their_tokens(make):
    lengths = [800, *[4] * 200, 900, *range(40)]
    layer, seen = make(), []
    if isinstance(layer, Attention):  # whose state has a row for each sequence, as long as any
        lengths = lengths[:30] + lengths[-30:]
    module = layer.get_submodule(layer.entry)
    module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    with torch.no_grad():
        layer(torch.randn(1, sum(lengths), 8), cu_seqlens=bounds)
    computed = [given.data if hasattr(given, "batch_sizes") else given for given in seen]
    assert sum(given.numel() // 8 for given in computed) <= 2 * (sum(lengths) + len(lengths))
    assert len(seen) <= 12
