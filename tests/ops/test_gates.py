"""Each gate family: its equation, its bound, and finite numbers everywhere."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.conftest import FAMILIES, RECURRENCES, in_pairs, usable

from statemix import ops

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SUMMED = ["softmax", "sigmoid", "relu", "signed", "tanh"]

sizes = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 16])
seeds = st.integers(0, 2**32 - 1)
scales = st.sampled_from([0.0, 1e-4, 1.0, 30.0, 1e4])


def drawn(kind, *, length, size, seed, scale, dtype):
    """Gates of one size, every tenth of them at +-1e4, with values and states within [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    rows = (1, length, 5) + ((size,) if kind == "blocks" else ())
    gates = torch.randn(*rows, size + 1, generator=generator, dtype=torch.float64) * scale
    spikes = torch.rand(gates.shape, generator=generator) < 0.1
    gates = torch.where(spikes, gates.sign() * 1e4, gates)
    values = torch.rand(rows, generator=generator, dtype=torch.float64) * 2 - 1
    # The extremes themselves: at the bound, not only below it.
    values = torch.where(values.abs() < 0.3, values.sign(), values)
    h_0 = torch.rand(1, 5, size, generator=generator, dtype=torch.float64) * 2 - 1
    return gates.to(dtype), values.to(dtype), h_0.to(torch.promote_types(dtype, torch.float32))


# The norms of states and of values in the bound of a family.
NORMS = {"householder": (2, 2), "column_softmax": (1, math.inf)}


@in_pairs(
    **{"kind,gate": [family for family in FAMILIES if family[1] != "none"]},
    dtype=DTYPES,
    channels=[None, 2],
)
@given(size=sizes, length=st.integers(1, 30), seed=seeds, scale=scales)
def test_states_keep_the_bound_of_their_family(
    kind, gate, dtype, channels, size, length, seed, scale
):
    """|h_t| <= max(|h_0|, max |v|) in each block and channel, such as Proposition 1."""
    gates, values, h_0 = drawn(kind, length=length, size=size, seed=seed, scale=scale, dtype=dtype)
    if channels and kind == "blocks":
        values, h_0 = (torch.stack([x, -x.flip(-1) / 2], -1) for x in (values, h_0))
    _, final = RECURRENCES[kind](gates, values, gate, h_0)
    # The carried states, not their rounding to 16 bits.
    wide = values.to(h_0.dtype)
    states, _ = RECURRENCES[kind](gates.to(h_0.dtype), wide, gate, h_0)
    if kind == "lags":
        wide, states = wide.unsqueeze(-1), states.unsqueeze(-1)
    of_states, of_values = NORMS.get(gate, (math.inf, math.inf))
    norm = torch.linalg.vector_norm
    limit = torch.maximum(norm(h_0, of_states, dim=2), norm(wide, of_values, dim=3).amax(1))
    # Rounding of the products of each step may let the bound creep up.
    terms = {"householder": size * (size + 4), "column_softmax": 2 * size}.get(gate, size)
    limit *= (1 + (terms + 4) * torch.finfo(h_0.dtype).eps) ** length
    assert (norm(states, of_states, dim=3) <= limit.unsqueeze(1)).all()
    assert (norm(final, of_states, dim=2) <= limit).all()


@given(size=sizes, seed=seeds, scale=st.sampled_from([1e-4, 1.0, 30.0, 1e4]))
def test_householder_blocks_have_spectral_norm_below_one_minus_the_input_gate(size, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    gates = torch.randn(4, size, size + 1, generator=generator, dtype=torch.float64) * scale
    A, a_0 = ops.normalize(gates, "householder")
    norms = torch.linalg.matrix_norm(A, ord=2)
    # 1 - a_0 with all its digits: its relative error is the absolute error of the mean.
    mean = gates[..., -1].mean(-1)
    kept = torch.sigmoid(3 - mean)
    torch.testing.assert_close(kept, 1 - a_0[..., 0])
    error = 1e-12 + size * torch.finfo(torch.float64).eps * mean.abs()
    # Below the normal numbers, digits are lost.
    assert (norms <= kept * (1 + error) + torch.finfo(torch.float64).tiny).all()
    assert a_0.eq(a_0[..., :1]).all()


@pytest.mark.parametrize("gate", SUMMED)
@given(size=sizes, seed=seeds, scale=scales)
def test_absolute_gates_of_a_row_sum_to_one_less_epsilon(gate, size, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    gates = torch.randn(20, size + 1, generator=generator, dtype=torch.float64) * scale
    a, a_0 = ops.normalize(gates, gate)
    total = a.abs().sum(-1) + a_0.abs()
    shares = {"relu": gates.relu(), "signed": gates.abs(), "tanh": gates.tanh().abs()}
    expected = torch.ones_like(total)
    if gate in shares:
        row = shares[gate].sum(-1)
        expected = row / (row + 1e-6)
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)


@in_pairs(gate=["relu", "signed", "tanh"], kind=list(RECURRENCES), **usable())
def test_row_without_any_share_gives_zero_and_finite_gradients(problem, kind, gate, backend):
    p = problem(kind, size=2)
    empty = p.replace(gates=torch.full_like(p.gates, -1.0 if gate == "relu" else 0.0))
    outcome = empty.outcome(gate, backend=backend)
    assert outcome["states"].eq(0).all()
    assert all(tensor.isfinite().all() for tensor in outcome.values())


@pytest.mark.parametrize("gate", ["householder", "column_softmax"])
def test_blocks_keep_the_digits_of_a_small_share_of_the_state(gate):
    """1 - sigmoid(x) for large x, where the difference of two numbers near 1 would be 0."""
    gates = torch.zeros(2, 3)
    if gate == "householder":
        gates[..., -1] = 30.0
        expected = math.exp(-27) * torch.eye(2), torch.ones(2)
    else:
        gates[0, -1] = 30.0
        expected = torch.full((2, 2), math.exp(-30) / 2), torch.tensor([1.0, math.exp(-30)])
    for found, wanted in zip(ops.normalize(gates, gate), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
