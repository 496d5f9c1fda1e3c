"""Decays between tokens against products of the decays themselves."""

import pytest
import torch

from statemix.layers import DeltaNet, Mamba2
from statemix.layers.decays import decays_between


def strong(g, size):
    """Decays with one of e^-size in the middle."""
    g = g.clone()
    g[..., g.shape[-1] // 2] = -size
    return g


@pytest.mark.parametrize("size", [0.0, 1e3, 1e5, 1e7, 1e30, 3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_decays_are_the_products_of_those_between(size, dtype):
    generator = torch.Generator().manual_seed(0)
    g = strong(-torch.rand(2, 9, generator=generator, dtype=torch.float64), size).to(dtype)
    weights = torch.randn(2, 9, 9, generator=generator, dtype=torch.float64)
    g.requires_grad_()
    (decays_between(g) * weights.to(dtype)).sum().backward()
    exact = g.detach().double().requires_grad_()
    expected = torch.zeros(2, 9, 9, dtype=torch.float64)
    for i in range(9):
        for j in range(i + 1):
            expected[:, i, j] = exact[:, j + 1 : i + 1].exp().prod(-1)
    (expected * weights).sum().backward()
    tight = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 0}
    torch.testing.assert_close(decays_between(g).double(), expected, **tight)
    torch.testing.assert_close(g.grad.double(), exact.grad, **tight)


@pytest.mark.parametrize("size", [1e3, 1e5, 1e7])
@pytest.mark.parametrize("kind", [Mamba2, DeltaNet])
def test_a_strong_decay_costs_no_digits_of_what_comes_after_it(kind, size):
    """In single precision, against single steps in double precision."""
    torch.manual_seed(0)
    options = {
        Mamba2: {"d_state": 5, "head_dim": 4},
        DeltaNet: {"num_heads": 1, "use_forget_gate": True, "conv_size": 0},
    }[kind]
    layer, exact = (kind(6, **options, dtype=dtype) for dtype in (torch.float32, torch.float64))
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(1, 12, 6)
    for one in (layer, exact):
        # The seventh token asks for a decay of about e^-size.
        row = one.in_proj.weight[-one.num_heads :] if kind is Mamba2 else one.a_proj.weight
        with torch.no_grad():
            row.zero_()
            row[:, 0] = size
    x[..., 0] = -1.0
    x[:, 6, 0] = 1.0
    y, _ = layer(x)
    state, expected = exact.init_state(1), []
    for t in range(12):
        y_t, state = exact.step(x[:, t].double(), state)
        expected.append(y_t)
    y.square().sum().backward()
    expected = torch.stack(expected, 1)
    expected.square().sum().backward()
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.A_log.grad.double(), exact.A_log.grad, rtol=1e-3, atol=1e-5)
