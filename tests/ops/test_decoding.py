"""Single steps equal the whole sequence, bit for bit on stepwise backends."""

import pytest
import torch

from statemix import ops

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 3, 9])
def test_steps_equal_the_sequence_bit_for_bit(
    problem, identical, kind, gate, size, dtype, stepwise_backend
):
    p = problem(kind, length=4, blocks=21, size=size, gate=gate).to(dtype)
    sequence, step = {
        "blocks": (ops.bd_lru, ops.bd_lru_step),
        "lags": (ops.h_lru, ops.h_lru_step),
    }[kind]
    state, states = p.initial_state, []
    for g_t, v_t in zip(p.gates.unbind(1), p.values.unbind(1), strict=True):
        h_t, state = step(g_t, v_t, state, gate, backend=stepwise_backend)
        assert h_t.dtype == dtype
        assert state.dtype == torch.promote_types(dtype, torch.float32)
        states.append(h_t)
    expected = sequence(p.gates, p.values, gate, p.initial_state, backend=stepwise_backend)
    identical((torch.stack(states, 1), state), expected)


@pytest.mark.parametrize("realization", ops.REALIZATIONS)
def test_steps_of_every_backend_and_realization_equal_the_sequence(
    problem, agree, realization, backend
):
    p = problem("lags", length=5, size=4)
    options = {"realization": realization, "backend": backend}
    state, states = p.initial_state, []
    for g_t, v_t in zip(p.gates.unbind(1), p.values.unbind(1), strict=True):
        h_t, state = ops.h_lru_step(g_t, v_t, state, **options)
        states.append(h_t)
    whole = p.outcome(**options)
    actual = {"states": torch.stack(states, 1), "final_state": state}
    agree(actual, {name: whole[name] for name in actual})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_of_the_scans_equal_the_scans(problem, identical, kind, dtype, stepwise_backend):
    p = problem(kind, length=4, gate="none").to(dtype)
    a, b = p.gates[..., :-1], p.values
    scan, step = {
        "blocks": (ops.block_scan, ops.block_step),
        "lags": (ops.lag_scan, ops.lag_step),
    }[kind]
    state, states = p.initial_state, []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        h_t, state = step(a_t, b_t, state, backend=stepwise_backend)
        states.append(h_t)
    actual = torch.stack(states, 1), state
    identical(actual, scan(a, b, p.initial_state, backend=stepwise_backend))


def test_gradients_flow_through_steps(problem, agree, kind):
    p = problem(kind, length=3)
    step = {"blocks": ops.bd_lru_step, "lags": ops.h_lru_step}[kind]
    leaves = gates, values, state = [leaf.clone().requires_grad_() for leaf in p.leaves]
    states = []
    for g_t, v_t in zip(gates.unbind(1), values.unbind(1), strict=True):
        h_t, state = step(g_t, v_t, state)
        states.append(h_t)
    results = torch.stack(states, 1), state
    gradients = torch.autograd.grad(results, leaves, (p.d_states, p.d_final_state))
    whole = p.outcome()
    agree(dict(zip(whole, (*results, *gradients), strict=True)), whole)


@pytest.mark.parametrize("name", ["gates", "values", "state"])
def test_pending_signs_are_applied(name):
    """The imaginary part of a conjugate is negated only when it is read."""
    arguments = {"gates": (2, 3, 5), "values": (2, 3), "state": (2, 3, 4)}
    arguments = {key: torch.randn(shape) for key, shape in arguments.items()}
    pending = torch.complex(torch.zeros_like(arguments[name]), -arguments[name]).conj().imag
    assert pending.is_neg()
    with torch.inference_mode():
        h_t, state = ops.h_lru_step(**arguments | {name: pending}, backend="cpu")
        expected = ops.h_lru_step(**arguments, backend="cpu")
    assert torch.equal(h_t, expected[0])
    assert torch.equal(state, expected[1])
