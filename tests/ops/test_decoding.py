"""Single steps equal the whole sequence, bit for bit on stepwise backends."""

import pytest
import torch
from tests.ops.conftest import FAMILIES, RECURRENCES, SCANS, in_pairs, usable

from statemix import ops
from statemix.ops.decoding import are_plain

STEPS = {"blocks": ops.bd_lru_step, "lags": ops.h_lru_step}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@in_pairs(
    **{"kind,gate": FAMILIES},
    size=[1, 3, 9],
    channels=[None, 1, 3],
    dtype=DTYPES,
    **usable("stepwise_backend"),
)
def test_steps_equal_the_sequence_bit_for_bit(
    problem, identical, kind, gate, size, channels, dtype, stepwise_backend
):
    columns = {"channels": channels} if kind == "blocks" else {}
    p = problem(kind, length=4, blocks=21, size=size, gate=gate, **columns).to(dtype)
    sequence, step = RECURRENCES[kind], STEPS[kind]
    state, states = p.initial_state, []
    for g_t, v_t in zip(p.gates.unbind(1), p.values.unbind(1), strict=True):
        h_t, state = step(g_t, v_t, state, gate, backend=stepwise_backend)
        assert h_t.dtype == dtype
        assert state.dtype == torch.promote_types(dtype, torch.float32)
        states.append(h_t)
    expected = sequence(p.gates, p.values, gate, p.initial_state, backend=stepwise_backend)
    identical((torch.stack(states, 1), state), expected)


@in_pairs(realization=ops.REALIZATIONS, **usable())
def test_steps_of_every_backend_and_realization_equal_the_sequence_and_pass_gradients(
    problem, agree, realization, backend
):
    p = problem("lags", length=5, size=4)
    options = {"realization": realization, "backend": backend}
    leaves = gates, values, state = [leaf.clone().requires_grad_() for leaf in p.leaves]
    states = []
    for g_t, v_t in zip(gates.unbind(1), values.unbind(1), strict=True):
        h_t, state = ops.h_lru_step(g_t, v_t, state, **options)
        states.append(h_t)
    results = torch.stack(states, 1), state
    gradients = torch.autograd.grad(results, leaves, (p.d_states, p.d_final_state))
    whole = p.outcome(**options)
    agree(dict(zip(whole, (*results, *gradients), strict=True)), whole)


@in_pairs(dtype=DTYPES, kind=list(STEPS), **usable("stepwise_backend"))
def test_steps_of_the_scans_equal_the_scans(problem, identical, kind, dtype, stepwise_backend):
    p = problem(kind, length=4, gate="none").to(dtype)
    a, b = p.gates[..., :-1], p.values
    step = {"blocks": ops.block_step, "lags": ops.lag_step}[kind]
    state, states = p.initial_state, []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        h_t, state = step(a_t, b_t, state, backend=stepwise_backend)
        states.append(h_t)
    actual = torch.stack(states, 1), state
    identical(actual, SCANS[kind](a, b, p.initial_state, backend=stepwise_backend))


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["gates", "values", "state"])
@pytest.mark.parametrize("channels", [1, 3])  # a single channel is never copied for its order
def test_pending_signs_are_applied(name, channels):
    """The imaginary part of a conjugate is negated only when it is read."""
    arguments = {"gates": (2, channels, 5), "values": (2, channels), "state": (2, channels, 4)}
    arguments = {key: torch.randn(shape) for key, shape in arguments.items()}
    pending = torch.complex(torch.zeros_like(arguments[name]), -arguments[name]).conj().imag
    assert pending.is_neg()
    with torch.inference_mode():
        h_t, state = ops.h_lru_step(**arguments | {name: pending}, backend="cpu")
        expected = ops.h_lru_step(**arguments, backend="cpu")
    assert torch.equal(h_t, expected[0])
    assert torch.equal(state, expected[1])


def test_only_dense_tensors_of_torch_itself_are_plain():
    class Sub(torch.Tensor):
        pass

    assert are_plain(torch.ones(2), torch.zeros(3))
    for other in (
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2).as_subclass(Sub),
        torch.ones(2, dtype=torch.cfloat).conj(),
        torch._neg_view(torch.ones(2)),
        torch.ones(2).to_sparse(),
        3,
    ):
        assert not are_plain(other)
        assert not are_plain(torch.ones(2), other)
        assert not are_plain(other, torch.ones(2))
