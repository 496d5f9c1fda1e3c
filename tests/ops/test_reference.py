"""The reference equals the equations number by number, and finite differences."""

import math

import pytest
import torch
from tests.ops.conftest import RECURRENCES, SCANS
from torch.autograd import gradcheck

EPSILON = 1e-6


def share(gate, g):
    """f(g) of Eq. 6, one number."""
    if gate in ("softmax", "sigmoid"):
        return math.exp(g) if gate == "softmax" else 1 / (1 + math.exp(-g))
    return {"relu": max(g, 0.0), "tanh": math.tanh(g)}.get(gate, g)


def row(gate, gates):
    """The normalised gates of one row, the input gate last."""
    shares = [share(gate, g) for g in gates]
    if gate == "none":
        return shares
    epsilon = EPSILON if gate in ("relu", "signed", "tanh") else 0.0
    total = sum(abs(f) for f in shares) + epsilon
    return [f / total for f in shares]


def householder(gates):
    """Transition and input gate of one block: the product of its m reflections, as matrices."""
    size = len(gates)
    input_gate = 1 / (1 + math.exp(3 - sum(row[size] for row in gates) / size))
    A = torch.eye(size, dtype=torch.float64) * (1 - input_gate)
    for u in torch.tensor(gates, dtype=torch.float64)[:, :size]:
        length = float(u @ u)
        A = A @ (torch.eye(size, dtype=torch.float64) - 2 * length / (1 + length**2) * u.outer(u))
    return A.tolist(), [input_gate] * size


def columns(gates):
    """Transition and input gates of one block: column by column, the input column with a zero."""
    size = len(gates)
    *inputs, kept = row("softmax", [g[size] for g in gates] + [0.0])
    moved = [row("softmax", [g[j] for g in gates]) for j in range(size)]
    return [[kept * moved[j][i] for j in range(size)] for i in range(size)], inputs


def block_lru(gates, values, h, gate):
    """h_t = A_t h_{t-1} + a_0 v_t for one block, from lists."""
    size, states = len(h), []
    for g_t, v_t in zip(gates, values, strict=True):
        if gate == "householder":
            A, a_0 = householder(g_t)
        elif gate == "column_softmax":
            A, a_0 = columns(g_t)
        else:
            rows = [row(gate, g) for g in g_t]
            A, a_0 = [r[:size] for r in rows], [r[size] for r in rows]
        h = [sum(A[i][j] * h[j] for j in range(size)) + a_0[i] * v_t[i] for i in range(size)]
        states.append(h)
    return states, h


def higher_order_lru(gates, values, lags, gate):
    """h_t = sum_i a_i h_{t-i} + a_0 v_t for one channel, from lists."""
    states = []
    for g_t, v_t in zip(gates, values, strict=True):
        *a, a_0 = row(gate, g_t)
        h_t = sum(a_i * lag for a_i, lag in zip(a, lags, strict=True)) + a_0 * v_t
        lags = [h_t, *lags[:-1]]
        states.append(h_t)
    return states, lags


ONE_BY_ONE = {"blocks": block_lru, "lags": higher_order_lru}


@pytest.mark.parametrize("size", [1, 3])
def test_reference_follows_the_equations_number_by_number(problem, kind, gate, size):
    p = problem(kind, length=6, blocks=2, size=size, gate=gate, seed=size)
    states, final_state = RECURRENCES[kind](
        p.gates, p.values, gate, p.initial_state, backend="reference"
    )
    for b in range(2):
        for k in range(2):
            arguments = (p.gates[b, :, k], p.values[b, :, k], p.initial_state[b, k])
            expected = ONE_BY_ONE[kind](*(tensor.tolist() for tensor in arguments), gate)
            actual = (states[b, :, k], final_state[b, k])
            for tensor, numbers in zip(actual, expected, strict=True):
                wanted = torch.tensor(numbers, dtype=torch.float64)
                torch.testing.assert_close(tensor, wanted, rtol=1e-12, atol=1e-12)


def gradchecked(p, gate, **options):
    leaves = [leaf.requires_grad_() for leaf in p.leaves]
    return gradcheck(
        lambda gates, values, h_0: RECURRENCES[p.kind](
            gates, values, gate, h_0, p.cu_seqlens, backend="reference", **options
        ),
        leaves,
    )


@pytest.mark.parametrize("lengths", [None, (2, 0, 3)], ids=["dense", "packed"])
def test_gradients_match_finite_differences(problem, kind, gate, lengths):
    p = problem(kind, batch=1, length=3, blocks=1, size=2, gate=gate, lengths=lengths)
    assert gradchecked(p, gate)
    if kind == "lags" and gate == "softmax":
        p = problem("lags", batch=1, length=4, blocks=1, size=3, lengths=lengths)
        assert gradchecked(p, gate, realization="observer")


def test_gradients_of_the_scans_match_finite_differences(problem, kind, backend):
    p = problem(kind, batch=1, length=3, blocks=2, size=2)
    leaves = [p.gates[..., :-1].clone(), p.values, p.initial_state]
    assert gradcheck(
        lambda *leaves: SCANS[kind](*leaves, backend=backend),
        [leaf.requires_grad_() for leaf in leaves],
    )
