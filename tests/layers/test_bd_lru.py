"""BDLRU against closed forms."""

import itertools
import math

import pytest
import torch
from torch import nn

from statemix import ops
from statemix.layers import BDLRU, HLRU

TIGHT = {"rtol": 1e-12, "atol": 1e-13}


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


@pytest.mark.parametrize(
    ("other", "size"),
    [(BDLRU, {"num_blocks": 4, "block_size": 1}), (HLRU, {"num_channels": 4, "order": 1})],
)
def test_blocks_of_one_are_the_linear_part_of_min_gru(other, size):
    """h_t = (1 - z_t) h_{t-1} + z_t v_t, z the sigmoid of the difference of the two logits."""
    layer = BDLRU(5, num_blocks=4, block_size=1, dtype=torch.float64)
    layer.reset_parameters(generator())
    twin = other(5, **size, dtype=torch.float64)
    twin.load_state_dict(layer.state_dict())

    x = torch.randn(2, 9, 5, generator=generator(1), dtype=torch.float64)
    keep, write = layer.gate_proj(x).chunk(2, dim=-1)
    z, v = torch.sigmoid(write - keep), layer.value_proj(x)
    h = torch.zeros(2, 4, dtype=torch.float64)
    for t in range(9):
        h = (1 - z[:, t]) * h + z[:, t] * v[:, t]
        torch.testing.assert_close(twin(x)[0][:, t], layer.out_proj(h), **TIGHT)
    torch.testing.assert_close(twin(x)[1].squeeze(-1), h, **TIGHT)


def permutations(group):
    """The elements of S_n or A_n as tuples."""
    elements = list(itertools.permutations(range(int(group[2:]))))
    if group.startswith("A"):
        elements = [
            p for p in elements if sum(a > b for a, b in itertools.combinations(p, 2)) % 2 == 0
        ]
    return elements


@pytest.mark.parametrize("group", ["S_2", "S_4", "A_5"])
def test_one_block_represents_a_group_exactly(group):
    """A(x) = (1 - e) P(x)^T, a_0 = e and v(x) = (A(x) u - u) / e give h_t + u = (1 - e)^t M_t^T u.

    M_t = P(x_1) ... P(x_t), h_0 = 0: no BOS is needed, and the gates are a softmax of finite
    logits. The word has 1,024 letters.
    """
    elements, length, leak = permutations(group), 1024, 1e-3
    size, order = len(elements[0]), len(elements)
    u = torch.arange(1, size + 1, dtype=torch.float64)
    P = torch.eye(size, dtype=torch.float64)[torch.tensor(elements)]  # (order, size, size)

    layer = BDLRU(order, num_blocks=1, block_size=size, dtype=torch.float64)
    gates = torch.full((order, size, size + 1), -1e4, dtype=torch.float64)
    gates[..., :size][P.transpose(1, 2) == 1] = math.log1p(-leak)
    gates[..., size] = math.log(leak)
    with torch.no_grad():
        layer.gate_proj.weight.copy_(gates.flatten(1).T)
        layer.gate_proj.bias.zero_()
        layer.value_proj.weight.copy_((((1 - leak) * (P.transpose(1, 2) @ u) - u) / leak).T)
        layer.out_proj.weight.copy_(torch.eye(order, size))

    word = torch.randint(order, (length,), generator=generator())
    y, _ = layer(nn.functional.one_hot(word, order).double().unsqueeze(0))
    assert y.shape == (1, length, order)
    product = torch.eye(size, dtype=torch.float64)
    expected = []
    for t, letter in enumerate(word.tolist(), start=1):
        product = product @ P[letter]
        expected.append((1 - leak) ** t * (product.T @ u))
    error = y[0, :, :size] + u - torch.stack(expected)
    assert error.abs().max() < 1e-12
