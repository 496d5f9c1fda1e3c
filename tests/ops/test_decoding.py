"""Single steps equal the whole sequence, bit for bit on stepwise backends."""

import pytest
import torch
from tests.ops.conftest import FAMILIES, RECURRENCES, SCANS, in_pairs, usable

from statemix import ops
from statemix.ops.decoding import are_plain, projected_step

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


ORDERS = {
    "row-major": lambda t: t.contiguous(),
    "units innermost": lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1),
    "batch innermost": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "every other entry": lambda t: torch.stack([t, -t], -1)[..., 0],
}


@pytest.mark.kernels  # the loop's sums are rounded differently in another memory order
@in_pairs(order=list(ORDERS), name=["gates", "values", "state"], kind=list(STEPS))
def test_steps_of_equal_shapes_may_differ_in_memory_order(problem, identical, kind, name, order):
    p = problem(kind, batch=3, length=1, blocks=5, size=2).to(torch.float32)
    step = STEPS[kind]
    arguments = {"gates": p.gates[:, 0], "values": p.values[:, 0], "state": p.initial_state}
    expected = step(**arguments)
    with torch.inference_mode():
        # The first call prepares the step, which must not serve the second.
        first = {key: ORDERS["units innermost"](one) for key, one in arguments.items()}
        for changed in (first, first | {name: ORDERS[order](arguments[name])}):
            identical(step(**changed), expected)


def test_a_prepared_step_does_not_outlive_its_backend():
    def register(number):
        def step(gates, values, state, temperature):
            return torch.full_like(values, number), state

        kernel = ops.Kernel(forward=None, prepare_step=lambda scan: step)
        ops.BACKENDS.register(ops.Backend("toy", kernels={"lag": kernel}, families=("softmax",)))

    for number in (1.0, 2.0):
        register(number)
        try:
            projections = torch.zeros(1, 6), torch.zeros(1, 2), torch.zeros(1, 2, 2)
            h_t, _ = projected_step("lag", None, *projections, "softmax", None, "toy")
            assert h_t.tolist() == [[number, number]]
        finally:
            ops.BACKENDS.remove("toy")


def test_a_temperature_given_as_a_number_is_rounded_alike_in_inference_mode(
    problem, identical, kind
):
    p = problem(kind, batch=20, length=1, blocks=9).to(torch.float32)
    step = STEPS[kind]
    arguments = p.gates[:, 0], p.values[:, 0], p.initial_state
    for temperature in (0.3, 4.081020518377686, torch.tensor(0.3)):
        expected = step(*arguments, temperature=temperature)
        with torch.inference_mode():
            identical(step(*arguments, temperature=temperature), expected)


def test_only_dense_tensors_of_torch_itself_are_plain():
    class Sub(torch.Tensor):
        pass

    assert are_plain(torch.ones(2))
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
