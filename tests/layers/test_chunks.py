"""Decays against their definition, and between tokens against products; outputs of chunks."""

import math
from itertools import product

import pytest
import torch
from tests.layers.conftest import tokens

from statemix.layers import DeltaNet, Mamba2
from statemix.layers.chunks import CHUNK_SIZE, delta_rule, log_decays, ssd

OPTIONS = {
    Mamba2: {"d_state": 5, "head_dim": 4},
    DeltaNet: {"num_heads": 1, "use_forget_gate": True, "conv_size": 0},
}


@pytest.mark.parametrize("size", [1e3, 1e7])
@pytest.mark.parametrize("kind", [Mamba2, DeltaNet])
def test_a_strong_decay_costs_no_digits_of_what_comes_after_it(kind, size):
    """In single precision, against single steps in double precision."""
    torch.manual_seed(0)
    layer, exact = (
        kind(6, **OPTIONS[kind], dtype=dtype) for dtype in (torch.float32, torch.float64)
    )
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


RATES = [-3e38, -1e3, 0.0, 30.0, 80.0, 88.0, 89.0, 200.0, 1e9, 3e38]  # values of A_log


@pytest.mark.parametrize("A_log", RATES)
def test_decays_of_any_rate_and_step_equal_their_definition(A_log):
    """Also where the rate overflows and the step vanishes, but their product is ordinary."""
    offsets = (-3e38, -200.0, -1.0, 0.0, 1.0, 200.0, 3e38)
    for offset, dtype in product(offsets, (torch.float32, torch.float64)):
        A = torch.tensor([A_log], dtype=dtype, requires_grad=True)
        r = torch.tensor([[max(min(offset - A_log, 3e38), -3e38)]], dtype=dtype, requires_grad=True)
        g = log_decays(A, r)
        d_A, d_r = torch.autograd.grad(g.exp().sum(), (A, r))
        # In logarithms of Python's floats; softplus(r) is e^r for small r and r for large r.
        step = r.item()
        log_step = (
            step if step < -40 else math.log(math.log1p(math.exp(step)) if step < 700 else step)
        )
        log_g = A.item() + log_step
        size = math.exp(min(log_g, 700))
        tolerance = {"rel": 1e-4, "abs": 1e-6} if dtype == torch.float32 else {"rel": 1e-9}
        assert g.exp().item() == pytest.approx(math.exp(-size), **tolerance)
        assert d_A.item() == pytest.approx(-size * math.exp(-size), **tolerance)
        assert math.isfinite(d_r.item())


@pytest.mark.parametrize("kind", [Mamba2, DeltaNet])
def test_layers_with_any_rate_stay_finite(kind):
    layer = kind(6, **OPTIONS[kind])
    x = torch.randn(2, CHUNK_SIZE + 5, 6, requires_grad=True)
    for A_log, bias in product(RATES, (0.0, -200.0)):  # The step is positive, or vanishes.
        torch.nn.init.constant_(layer.A_log, A_log)
        torch.nn.init.constant_(layer.dt_bias, bias)
        y, state = layer(x, layer(x)[1])
        found = torch.autograd.grad(y.sum() + state[0].sum(), [x, *layer.parameters()])
        assert all(part.isfinite().all() for part in (y, *state, *found))
        with torch.no_grad():
            y_t, after = layer.step(x[:, 0], state)
        assert all(part.isfinite().all() for part in (y_t, *after))


@pytest.mark.parametrize("length", [2, CHUNK_SIZE + 3])
def test_outputs_are_no_views_of_chunks(length):
    """Inductor saves them for the backward pass and cannot order the strides of such a view."""
    heads = torch.randn(2, length, 3, 4)
    zeros = torch.zeros(2, 3, 4, 4)
    decays = -torch.rand(2, length, 3)
    updates = heads.unsqueeze(2)
    delta, _ = delta_rule(heads, updates, updates, decays.exp().unsqueeze(2), decays, zeros)
    states, _ = ssd(heads, decays, heads[:, :, 0], heads[:, :, 1], zeros)
    for o in (delta, states):
        assert o.shape == heads.shape
        assert o._base is None
        assert o.is_contiguous()


def drawn(kind, dtype=torch.float64, conv=0):
    taps = {Mamba2: {"d_conv": conv}, DeltaNet: {"conv_size": conv}}[kind]
    layer = kind(6, **OPTIONS[kind] | taps, dtype=dtype)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    return layer


@pytest.mark.parametrize("kind", [Mamba2, DeltaNet])
def test_chunks_that_end_anywhere_and_packed_sequences_equal_the_whole(kind):
    layer, length = drawn(kind), CHUNK_SIZE + 5
    x = tokens(2, length)
    whole, final = layer(x)
    for split in (1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1):
        head, state = layer(x[:, :split])
        tail, last = layer(x[:, split:], state)
        torch.testing.assert_close(torch.cat([head, tail], 1), whole, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(last, final, rtol=1e-11, atol=1e-12)
    bounds = torch.tensor([0, length, length, 2 * length])
    packed, last = layer(x.reshape(1, -1, 6), cu_seqlens=bounds)
    torch.testing.assert_close(packed.view_as(whole), whole, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(last[0][::2], final[0], rtol=1e-11, atol=1e-12)
