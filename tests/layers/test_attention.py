"""Attention against its equation, and its growing cache."""

import pytest
import torch
from tests.layers.conftest import tokens

from statemix.layers import Attention


def drawn(num_heads=3, **options):
    layer = Attention(6, num_heads=num_heads, dtype=torch.float64, **options)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    return layer


def turned(vector, place):
    """Rotate pairs (i, i + D/2) of a vector, as complex numbers, by the angles of a place."""
    half = len(vector) // 2
    speeds = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    pairs = torch.complex(vector[:half], vector[half:])
    turned = pairs * torch.polar(torch.ones(half, dtype=torch.float64), place * speeds)
    return torch.cat([turned.real, turned.imag])


def reference(layer, x):
    """The equation of the docstring for one sequence x (T, hidden_size)."""
    H, D = layer.num_heads, layer.head_dim
    q, k, v = (x @ layer.qkv_proj.weight.T).view(-1, 3, H, D).unbind(1)
    outputs = []
    for t in range(len(x)):
        heads = []
        for h in range(H):
            query, keys = q[t, h], list(k[: t + 1, h])
            if layer.rope:
                query = turned(query, t)
                keys = [turned(key, s) for s, key in enumerate(keys)]
            weights = torch.stack([(query @ key / D**0.5).exp() for key in keys])
            heads.append((weights[:, None] * v[: t + 1, h]).sum(0) / weights.sum())
        outputs.append(layer.out_proj.weight @ torch.cat(heads))
    return torch.stack(outputs)


@pytest.mark.parametrize(("num_heads", "rope"), [(1, False), (3, True)])
def test_layer_is_the_average_over_earlier_tokens(num_heads, rope):
    layer, x = drawn(num_heads, rope=rope), tokens(1, 9).requires_grad_()
    y, state = layer(x)
    expected = reference(layer, x[0])
    torch.testing.assert_close(y[0], expected, rtol=1e-11, atol=1e-12)
    leaves = [x, *layer.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(y.sin().sum(), leaves),
        torch.autograd.grad(expected.sin().sum(), leaves),
        rtol=1e-10,
        atol=1e-11,
    )
    values = (x @ layer.qkv_proj.weight.T)[..., 12:].view(1, 9, num_heads, -1)
    torch.testing.assert_close(state.values, values, rtol=1e-12, atol=1e-13)
    assert (state.used == 1).all()


def test_gradients_flow_through_the_cache():
    layer, x = drawn(), tokens(1, 9).requires_grad_()
    head, state = layer(x[:, :4])
    tail, _ = layer(x[:, 4:], state)
    leaves = [x, *layer.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(torch.cat([head, tail], 1).sin().sum(), leaves),
        torch.autograd.grad(layer(x)[0].sin().sum(), leaves),
        rtol=1e-10,
        atol=1e-11,
    )


def test_packed_sequences_continue_as_single_ones():
    """Twice packed, with other lengths: the cache has padding in its middle."""
    layer = drawn(rope=True)
    lengths = [[0, 4, 1, 3, 0], [2, 1, 5, 0, 0]]
    packed = [tokens(1, sum(these), seed) for seed, these in enumerate(lengths)]
    bounds = [torch.tensor([0, *these]).cumsum(0) for these in lengths]
    first, state = layer(packed[0], cu_seqlens=bounds[0])
    second, state = layer(packed[1], state, bounds[1])
    assert state.used.sum(1).tolist() == [2, 5, 6, 3, 0]
    last, _ = layer.step(tokens(5, 1)[:, 0], state)
    pieces = [row.split(these, 1) for row, these in zip(packed, lengths, strict=True)]
    for n in range(5):
        whole = torch.cat([pieces[0][n], pieces[1][n], tokens(5, 1)[n : n + 1]], 1)
        found = torch.cat([first.split(lengths[0], 1)[n], second.split(lengths[1], 1)[n]], 1)
        found = torch.cat([found, last[n].view(1, 1, 6)], 1)
        torch.testing.assert_close(found, layer(whole)[0], rtol=1e-11, atol=1e-12)


def test_parts_of_unequal_lengths_are_refused():
    layer = drawn()
    _, state = layer(tokens(2, 4))
    with pytest.raises(ValueError, match=r"^state\.used must have shape \(B=2, S=4\), got \(2, 3"):
        layer(tokens(2, 1), state._replace(used=state.used[:, :3]))
