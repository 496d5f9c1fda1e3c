"""BDLRU against closed forms."""

import itertools

import pytest
import torch

from statemix import ops
from statemix.layers import BDLRU


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("gate", list(ops.GATES))
def test_layer_is_projections_around_the_operator(gate):
    """The listing of the paper, written with logical shapes and no attention to memory."""
    H, m = 4, 3
    layer = BDLRU(5, num_blocks=H, block_size=m, gate=gate, dtype=torch.float64)
    layer.reset_parameters(generator())
    x = torch.randn(2, 6, 5, generator=generator(1), dtype=torch.float64)
    raw = torch.empty(2, 6, H, m, m + 1, dtype=torch.float64)
    values = torch.empty(2, 6, H, m, dtype=torch.float64)
    weight, bias = layer.gate_proj.weight, layer.gate_proj.bias
    for h, i in itertools.product(range(H), range(m)):
        values[:, :, h, i] = x @ layer.value_proj.weight[i * H + h]
        for j in range(m + 1):
            row = (i * (m + 1) + j) * H + h
            raw[:, :, h, i, j] = x @ weight[row] + bias[row]
    states, final = ops.bd_lru(raw, values, gate, backend="reference")
    y = sum(
        states[:, :, h, i, None] * layer.out_proj.weight[:, i * H + h]
        for h, i in itertools.product(range(H), range(m))
    )
    torch.testing.assert_close(layer(x), (y, final), rtol=1e-10, atol=1e-12)


def test_a_layer_of_channels_is_projections_around_the_operator():
    """One set of gates for all channels; units are innermost in every projection, then channels."""
    H, m, C = 4, 3, 2
    layer = BDLRU(5, num_blocks=H, block_size=m, value_channels=C, dtype=torch.float64)
    layer.reset_parameters(generator())
    x = torch.randn(2, 6, 5, generator=generator(1), dtype=torch.float64)
    raw = layer.gate_proj(x).unflatten(-1, (m, m + 1, H)).movedim(-1, 2)
    written = layer.value_proj.weight.unflatten(0, (m, C, H))
    read = layer.out_proj.weight.unflatten(1, (m, C, H))
    channels = []
    for c in range(C):
        values = torch.stack([x @ written[i, c].T for i in range(m)], -1)
        channels.append(ops.bd_lru(raw, values, backend="reference"))
    y = sum(
        channels[c][0][..., i] @ read[:, i, c].T for i, c in itertools.product(range(m), range(C))
    )
    final = torch.stack([one[1] for one in channels], -1)
    torch.testing.assert_close(layer(x), (y, final), rtol=1e-10, atol=1e-12)
