"""Gates and values as large as a dtype can hold, against the reference in float64."""

import math

import pytest
import torch
from tests.ops.conftest import FAMILIES, families_of, in_pairs, usable

from statemix import ops

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
SCALES = [1e4, 1e9, 1e30, "largest"]
SUMMED = [(kind, gate) for kind in ("blocks", "lags") for gate in families_of("lags")]
SUMMED = [(kind, gate) for kind, gate in SUMMED if gate != "none"]
# Largest error of a block in units of the terms that are added there, as in conftest.py; bfloat16
# rounds the values and the gradients of the arguments once each.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 2**-7}


def huge(p, scale, dtype):
    """Gates between 0.1 and 1 of the scale, with ties and rows of close neighbours."""
    limit = torch.finfo(dtype).max if scale == "largest" else scale
    if scale == 1e30 and dtype == torch.float64:
        limit = 1e290
    generator = torch.Generator().manual_seed(3)
    size = torch.rand(p.gates.shape, generator=generator, dtype=torch.float64) * 0.9 + 0.1
    gates = (size.to(p.gates.device) * p.gates.sign() * limit).to(dtype)
    # The second and the third row: two equal tops, and tops one apart where that can be told.
    gates[:, 1] = gates[:, 1, ..., :1]
    top = gates[:, 2].abs().amax(-1, keepdim=True)
    first_two = torch.arange(gates.shape[-1], device=gates.device) < 2
    gates[:, 2] = torch.where(first_two, top, -top)
    gates[:, 2, ..., 1] -= 1
    return p.to(dtype).replace(gates=gates)


@in_pairs(
    scale=SCALES, dtype=DTYPES, **{"kind,gate": [f for f in FAMILIES if f[1] != "none"]}, **usable()
)
def test_huge_gates_have_stable_sums(problem, kind, gate, dtype, scale, backend):
    p = huge(problem(kind, batch=1, length=6, blocks=18, size=3), scale, dtype)
    if gate == "householder":
        p.gates[..., -1] = 1.5
    check_one_step_each(p, gate, backend)


@in_pairs(scale=[None, "largest"], dtype=DTYPES, **{"kind,gate": SUMMED}, **usable())
def test_values_near_the_largest_number_have_stable_sums(
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
    equal = p.replace(gates=torch.zeros_like(p.gates) + 0.5)
    check_one_step_each(with_largest_values(equal, torch.ones_like), gate, backend)


@in_pairs(dtype=DTYPES, gate=["householder", "column_softmax"], **usable())
def test_blocks_with_values_near_the_largest_number_are_stable(problem, gate, dtype, backend):
    p = huge(problem("blocks", batch=1, length=6, blocks=18, size=3), "largest", dtype)
    p.gates[..., -1] = 1.5
    p = with_largest_values(p, torch.sign)
    # The bounds are those of lengths and of sums: states whose length or sum is finite.
    check_one_step_each(
        p.replace(values=p.values / 4, initial_state=p.initial_state / 4), gate, backend
    )


@in_pairs(**{"kind,gate": SUMMED}, **usable())
def test_large_values_and_steep_gates_have_stable_sums(problem, kind, gate, backend):
    """A low temperature multiplies only the gradients of gates whose row is as small."""
    p = problem(kind, batch=1, length=6, blocks=18, size=4)
    p = p.replace(gates=(p.gates + p.gates.sign() / 2) / 128).to(torch.float32)
    p = with_largest_values(p, torch.sign)
    check_one_step_each(p.replace(d_states=p.d_states / 1024), gate, backend, 2.0**-10)


@in_pairs(dtype=DTYPES, gate=["softmax", "sigmoid"], kind=["blocks", "lags"], **usable())
def test_what_underflows_is_zero(problem, kind, gate, dtype, backend):
    """No value passes a gate whose exponential is far below the smallest number."""
    p = problem(kind, batch=1, length=6, blocks=18, size=3).to(dtype)
    p.gates[..., 3] = -1e4
    values = p.values.sign() * torch.finfo(dtype).max
    closed = p.replace(values=values, initial_state=torch.zeros_like(p.initial_state))
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
    """Check each step separately, from its own initial state, so that gradients do not mix.

    The recurrence is linear in values: the reference computes with values of ordinary size.
    """
    unit = 2.0 ** math.floor(math.log2(float(p.values.double().abs().max())))
    options = {"cotangents": ("states",), "temperature": temperature}
    for t in range(p.values.shape[1]):
        names = ("gates", "values", "d_states")
        one = p.replace(**{name: getattr(p, name)[:, t : t + 1] for name in names})
        actual = one.outcome(gate, backend=backend, **options)
        exact = one.to(torch.float64)
        exact = exact.replace(values=exact.values / unit, initial_state=exact.initial_state / unit)
        wanted = exact.outcome(gate, backend="reference", **options)
        # Where one gate wins, a gradient is a difference of equal terms |lam| |u| f' / S, whose
        # rounding errors stay.
        v, h_0, g = (x.to("cpu") for x in (exact.values, exact.initial_state, exact.gates))
        size = torch.maximum(largest_of_blocks(v, 3), largest_of_blocks(h_0, 2).unsqueeze(1))
        flow = largest_of_blocks(exact.d_states, 3).to("cpu")
        slope = 1 / temperature
        if gate in ("relu", "signed"):
            slope = largest_of_blocks(1 / g.abs().amax(-1), 3)
        if gate == "householder":
            slope = largest_of_blocks(1 / g[..., :-1].norm(dim=-1), 3)
        # Reflections and columns add more terms.
        more = 80 if gate == "householder" else 2 if gate == "column_softmax" else 1
        check_blocks("states", actual, wanted, more * size, unit)
        # The mean of input gates that all blocks of reflections have is not steep.
        parts = [(slice(None), slope)]
        if gate == "householder":
            parts = [(slice(0, -1), slope), (slice(-1, None), 1.0)]
        for part, steepness in parts:
            columns = [x | {"d_gates": x["d_gates"][..., part]} for x in (actual, wanted)]
            check_blocks("d_gates", *columns, more * size * flow * steepness, unit)
        check_blocks("d_values", actual, wanted, more * flow)
        check_blocks("d_initial_state", actual, wanted, more * flow)


def largest_of_blocks(x, axes):
    """Largest magnitude of each block; ``axes`` axes count blocks."""
    return x.detach().abs().reshape(*x.shape[:axes], -1).amax(-1)


def check_blocks(name, actual, wanted, terms, unit=1.0):
    """Check one tensor block by block: errors are relative to the block and its terms.

    ``terms`` are the sizes of what is added in each block; they and ``wanted`` are divided by the
    unit of the tensor.
    """
    dtype = actual["d_gates"].dtype
    tiny = torch.finfo(dtype).tiny * 2**16 / unit  # smaller numbers have only a few bits
    axes = 2 if name == "d_initial_state" else 3
    found, wanted = actual[name].to("cpu").double() / unit, wanted[name].to("cpu")
    assert found.isfinite().all(), name
    size, error = (largest_of_blocks(x, axes) for x in (wanted, found - wanted))
    if name == "d_initial_state":
        terms = terms.squeeze(1)
    allowed = TOLERANCES[dtype] * torch.maximum(size, terms)
    assert (error <= allowed.clamp(min=tiny * TOLERANCES[dtype])).all(), (
        name,
        float((error / allowed).max()),
    )


@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-10])
def test_short_householder_vectors_leave_the_identity_and_finite_gradients(length, device, backend):
    gates = torch.full((1, 2, 3, 2, 3), length, device=device, requires_grad=True)
    values, before = torch.zeros_like(gates[..., 0]), torch.ones_like(gates[:, 0, ..., 0])
    states, _ = ops.bd_lru(gates, values, "householder", before, backend=backend)
    kept = 1 - torch.sigmoid(torch.tensor(length - 3))
    torch.testing.assert_close(states[:, 1], torch.full_like(before, float(kept**2)))
    states.sum().backward()
    assert gates.grad.isfinite().all()
