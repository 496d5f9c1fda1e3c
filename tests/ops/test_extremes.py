"""Gates and values as large as a dtype can hold, against stable sums in float64."""

import math

import pytest
import torch
from tests.ops.conftest import in_pairs, usable

from statemix import ops

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
SCALES = [1e4, 1e9, 1e30, "largest"]
SUMMED = ["softmax", "sigmoid", "relu", "signed", "tanh"]
# Largest error of a block in units of the terms that are added there, as in conftest.py; bfloat16
# rounds the values and the gradients of the arguments once each.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 2**-7}


def row(gate, g):
    """Normalised gates of rows (..., m+1) in float64, differentiable, without any overflow."""
    if gate == "softmax":
        return g.softmax(-1)
    if gate == "sigmoid":
        return torch.nn.functional.logsigmoid(g).softmax(-1)
    numerators = {"relu": g.relu(), "signed": g, "tanh": g.tanh()}[gate]
    # float64 holds huge float32 and bfloat16 gates easily; float64 gates are halved often.
    unit = 2.0**-20
    scaled = numerators * unit
    return scaled / (scaled.abs().sum(-1, keepdim=True) + 1e-6 * unit)


def huge(p, scale, dtype):
    """Gates between 0.1 and 1 of the scale, with ties and rows of close neighbours."""
    limit = torch.finfo(dtype).max if scale == "largest" else scale
    if scale == 1e30 and dtype == torch.float64:
        limit = 1e290
    generator = torch.Generator().manual_seed(3)
    size = torch.rand(p.gates.shape, generator=generator, dtype=torch.float64) * 0.9 + 0.1
    size = size.to(p.gates.device)
    gates = (size * p.gates.sign() * limit).to(dtype)
    # The second and the third row: two equal tops, and tops one apart where that can be told.
    gates[:, 1] = gates[:, 1, ..., :1]
    top = gates[:, 2].abs().amax(-1, keepdim=True)
    first_two = torch.arange(gates.shape[-1], device=gates.device) < 2
    gates[:, 2] = torch.where(first_two, top, -top)
    gates[:, 2, ..., 1] -= 1
    return p.to(dtype).replace(gates=gates)


@in_pairs(scale=SCALES, dtype=DTYPES, gate=SUMMED, kind=["blocks", "lags"], **usable())
def test_backend_equals_stable_sums(problem, kind, gate, dtype, scale, backend):
    p = huge(problem(kind, batch=1, length=6, blocks=18, size=3), scale, dtype)
    check_one_step_each(p, gate, backend)


@in_pairs(scale=[None, "largest"], dtype=DTYPES, gate=SUMMED, kind=["blocks", "lags"], **usable())
def test_values_near_the_largest_number_equal_stable_sums(
    problem, kind, gate, dtype, scale, backend
):
    """A weighted mean of finite numbers is finite, and so are its gradients."""
    p = problem(kind, batch=1, length=6, blocks=18, size=4)
    if scale is None:
        # Not near zero, where gradients by relu and signed gates overflow.
        p = p.replace(gates=p.gates + p.gates.sign() / 2).to(dtype)
    else:
        p = huge(p, scale, dtype)
    # Terms of equal signs have the largest sum, terms of both signs the largest differences.
    for signs in (torch.ones_like, torch.sign):
        check_one_step_each(with_largest_values(p, signs), gate, backend)
    # Equal gates: each term is as large as the greatest.
    check_one_step_each(
        with_largest_values(p, torch.ones_like).replace(gates=torch.zeros_like(p.gates) + 0.5),
        gate,
        backend,
    )


@in_pairs(gate=SUMMED, kind=["blocks", "lags"], **usable())
def test_large_values_and_steep_gates_equal_stable_sums(problem, kind, gate, backend):
    """A low temperature multiplies only the gradients of gates whose row is as small."""
    p = problem(kind, batch=1, length=6, blocks=18, size=4)
    p = p.replace(gates=(p.gates + p.gates.sign() / 2) / 128).to(torch.float32)
    p = with_largest_values(p, torch.sign)
    check_one_step_each(p.replace(d_states=p.d_states / 1024), gate, backend, 2.0**-10)


@in_pairs(dtype=DTYPES, gate=["softmax", "sigmoid"], kind=["blocks", "lags"], **usable())
def test_what_underflows_is_zero_as_in_stable_sums(problem, kind, gate, dtype, backend):
    """No value passes a gate whose exponential is far below the smallest number."""
    p = problem(kind, batch=1, length=6, blocks=18, size=3).to(dtype)
    gates = p.gates.clone()
    gates[..., 3] = -1e4
    huge_values = p.values.sign() * torch.finfo(dtype).max
    closed = p.replace(
        gates=gates, values=huge_values, initial_state=torch.zeros_like(p.initial_state)
    )
    results = closed.outcome(gate, cotangents=("states",), backend=backend)
    assert not results["states"].any()
    assert not results["d_values"].any()


def with_largest_values(p, signs):
    """The problem with values and initial states of 0.9 times the largest number of their dtype.

    Cotangents are small, so that no gradient overflows.
    """
    values, initial_state = (
        signs(x) * (0.9 * torch.finfo(p.values.dtype).max) for x in (p.values, p.initial_state)
    )
    d_states = p.d_states.clamp(-1, 1) / 16
    return p.replace(values=values, initial_state=initial_state, d_states=d_states)


def check_one_step_each(p, gate, backend, temperature=1.0):
    """Check each step separately, from its own initial state, so that gradients do not mix."""
    for t in range(p.values.shape[1]):
        one = p.replace(
            gates=p.gates[:, t : t + 1],
            values=p.values[:, t : t + 1],
            d_states=p.d_states[:, t : t + 1],
        )
        # Equal gates in step 1 and neighbours in step 2: there the gradients are large.
        options = {"backend": backend, "temperature": temperature}
        actual = one.outcome(gate, cotangents=("states",), **options)
        unit = unit_of(one)
        g = one.gates.double().requires_grad_()
        v, h_0 = ((x.double() / unit).requires_grad_() for x in (one.values, one.initial_state))
        a = row(gate, g / temperature)
        before = h_0.unsqueeze(1).unsqueeze(3) if p.kind == "blocks" else h_0.unsqueeze(1)
        states = (a[..., :-1] * before).sum(-1) + a[..., -1] * v
        d_states = one.d_states.double()
        gradients = torch.autograd.grad(states, (g, v, h_0), d_states)
        # Where one gate wins, a gradient by a gate is a difference of equal terms |lam| |u| f' / S,
        # whose rounding errors stay.
        size = torch.maximum(largest_of_blocks(v, 3), largest_of_blocks(h_0, 2).unsqueeze(1))
        flow = largest_of_blocks(d_states, 3)
        slope = 1 / temperature
        if gate in ("relu", "signed"):
            slope = 1 / g.detach().abs().amax(-1)
            slope = largest_of_blocks(slope, 3)
        check_blocks("states", actual, states, size, unit)
        check_blocks("d_gates", actual, gradients[0], size * flow * slope, unit)
        check_blocks("d_values", actual, gradients[1], flow)
        check_blocks("d_initial_state", actual, gradients[2], flow)


def unit_of(p):
    """A power of two in which values are of ordinary size; the recurrence is linear in them."""
    return 2.0 ** math.floor(math.log2(float(p.values.double().abs().max())))


def largest_of_blocks(x, axes):
    """Largest magnitude of each block; ``axes`` axes count blocks."""
    return x.detach().abs().reshape(*x.shape[:axes], -1).amax(-1)


def check_blocks(name, actual, wanted, terms, unit=1.0, tolerance=1.0):
    """Check one tensor block by block: errors are relative to the block and its terms.

    ``terms`` are the sizes of what is added in each block; they and ``wanted`` are divided by the
    unit of the tensor. ``tolerance`` is a factor of that of the dtype.
    """
    dtype = actual["d_gates"].dtype
    tiny = torch.finfo(dtype).tiny * 2**16 / unit  # smaller numbers have only a few bits
    axes = 2 if name == "d_initial_state" else 3
    found, wanted = actual[name].double() / unit, wanted.detach()
    assert found.isfinite().all(), name
    size = largest_of_blocks(wanted, axes)
    error = largest_of_blocks(found - wanted, axes)
    if name == "d_initial_state":
        terms = terms.squeeze(1)
    allowed = tolerance * TOLERANCES[dtype] * torch.maximum(size, terms)
    assert (error <= allowed.clamp(min=tiny * TOLERANCES[dtype])).all(), (
        name,
        float((error / allowed).max()),
    )


@in_pairs(scale=SCALES, dtype=DTYPES, large=[False, True], **usable())
def test_householder_equals_products_of_unit_reflections(problem, dtype, scale, large, backend):
    p = huge(problem("blocks", batch=1, length=4, blocks=5, size=3), scale, dtype)
    if large:
        p = with_largest_values(p, torch.sign)
        # The bound is one of lengths: vectors whose length is finite.
        p = p.replace(values=p.values / 2, initial_state=p.initial_state / 2)
    gates = p.gates.clone()
    gates[..., -1] = 1.5
    p = p.replace(gates=gates)
    actual = p.outcome("householder", backend=backend, cotangents=("states",))
    unit = unit_of(p)
    g = p.gates.double().requires_grad_()
    v, h_0 = ((x.double() / unit).requires_grad_() for x in (p.values, p.initial_state))
    limit = float(g.detach().abs().max())
    u = g[..., :-1] / limit
    n = u / u.norm(dim=-1, keepdim=True)  # |u|^4 / (1 + |u|^4) is 1 to all digits
    A = torch.eye(3, dtype=torch.float64, device=g.device).expand(1, 4, 5, 3, 3)
    for j in range(3):
        A = A - 2 * (A @ n[..., j, :, None]) * n[..., j, None, :]
    a_0 = torch.sigmoid(g[..., -1].mean(-1) - 3)
    h, states = h_0, []
    for t in range(4):
        h = (1 - a_0[:, t, :, None]) * (A[:, t] @ h.unsqueeze(-1)).squeeze(-1)
        h = h + a_0[:, t, :, None] * v[:, t]
        states.append(h)
    states = torch.stack(states, 1)
    gradients = torch.autograd.grad(states, (g, v, h_0), p.d_states.double())
    size, flow = (largest_of_blocks(x, 3).amax(1, keepdim=True) for x in (states, p.d_states))
    check_blocks("states", actual, states, size, unit, 20)
    check_blocks("d_values", actual, gradients[1], 4 * flow, tolerance=20)
    check_blocks("d_initial_state", actual, gradients[2], 4 * flow, tolerance=20)
    slope = largest_of_blocks(1 / u.detach().norm(dim=-1), 3) / limit
    actual["d_gates"], wanted = actual["d_gates"][..., :-1], gradients[0][..., :-1]
    check_blocks("d_gates", actual, wanted, 4 * size * flow * slope, unit, 20)


@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-10])
def test_short_householder_vectors_leave_the_identity_and_finite_gradients(length, device, backend):
    gates = torch.full((1, 2, 3, 2, 3), length, device=device, requires_grad=True)
    values, before = torch.zeros_like(gates[..., 0]), torch.ones_like(gates[:, 0, ..., 0])
    states, _ = ops.bd_lru(gates, values, "householder", before, backend=backend)
    kept = 1 - torch.sigmoid(torch.tensor(length - 3))
    torch.testing.assert_close(states[:, 1], torch.full_like(before, float(kept**2)))
    states.sum().backward()
    assert gates.grad.isfinite().all()


@in_pairs(scale=SCALES, dtype=DTYPES, **usable())
def test_columns_equal_stable_sums(problem, dtype, scale, backend):
    p = huge(problem("blocks", batch=1, length=6, blocks=18, size=3), scale, dtype)
    p = with_largest_values(p, torch.sign)
    p = p.replace(
        # Each step for itself, so that gradients do not mix.
        **{name: getattr(p, name).transpose(0, 1) for name in ("gates", "values", "d_states")},
        # The bound is one of sums: states whose sum is finite.
        initial_state=p.initial_state.expand(6, -1, -1) / 4,
    )
    actual = p.outcome("column_softmax", backend=backend, cotangents=("states",))
    unit = unit_of(p)
    g = p.gates.double().requires_grad_()
    v, h_0 = ((x.double() / unit).requires_grad_() for x in (p.values, p.initial_state))
    *a_0, kept = torch.nn.functional.pad(g[..., -1], (0, 1)).softmax(-1).unbind(-1)
    moved = (g[..., :-1].softmax(-2) * h_0[:, None, :, None]).sum(-1)
    states = kept.unsqueeze(-1) * moved + torch.stack(a_0, -1) * v
    gradients = torch.autograd.grad(states, (g, v, h_0), p.d_states.double())
    size, flow = largest_of_blocks(v, 3), largest_of_blocks(p.d_states, 3)
    check_blocks("states", actual, states, size, unit)
    check_blocks("d_gates", actual, gradients[0], 2 * size * flow, unit)
    check_blocks("d_values", actual, gradients[1], flow)
    check_blocks("d_initial_state", actual, gradients[2], flow)
