"""Gates as large as a dtype can hold: results and gradients are those of stable float64 sums."""

import pytest
import torch

from statemix import ops

RECURRENCES = {"blocks": ops.bd_lru, "lags": ops.h_lru}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
SCALES = [1e4, 1e9, 1e30, "largest"]
# Largest error in units of the terms that are added, as in conftest.py; bfloat16 rounds the values
# and the gradients of the arguments once each.
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
    generator = torch.Generator().manual_seed(3)
    size = torch.rand(p.gates.shape, generator=generator, dtype=torch.float64) * 0.9 + 0.1
    gates = (size * p.gates.sign() * limit).to(dtype)
    # The second and the third row: two equal tops, and tops one apart where that can be told.
    gates[:, 1] = gates[:, 1, ..., :1]
    top = gates[:, 2].abs().amax(-1, keepdim=True)
    gates[:, 2] = torch.where(torch.arange(gates.shape[-1]) < 2, top, -top)
    gates[:, 2, ..., 1] -= 1
    return p.to(dtype).replace(gates=gates)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gate", ["softmax", "sigmoid", "relu", "signed", "tanh"])
def test_backend_equals_stable_sums(problem, kind, gate, dtype, scale, backend):
    if scale == 1e30 and dtype == torch.float64:
        scale = 1e290
    p = huge(problem(kind, batch=1, length=6, blocks=18, size=3), scale, dtype)
    check_one_step_each(p, gate, backend, dtype)


def check_one_step_each(p, gate, backend, dtype):
    """Check each step separately, from its own initial state, so that gradients do not mix."""
    for t in range(p.values.shape[1]):
        one = p.replace(
            gates=p.gates[:, t : t + 1],
            values=p.values[:, t : t + 1],
            d_states=p.d_states[:, t : t + 1],
        )
        # Equal gates in step 1 and neighbours in step 2: there the gradients are large.
        actual = one.outcome(gate, backend=backend, cotangents=("states",))
        g, v, h_0 = (leaf.double().clone().requires_grad_() for leaf in one.leaves)
        a = row(gate, g)
        before = h_0.unsqueeze(1).unsqueeze(3) if p.kind == "blocks" else h_0.unsqueeze(1)
        states = (a[..., :-1] * before).sum(-1) + a[..., -1] * v
        gradients = torch.autograd.grad(states, (g, v, h_0), one.d_states.double())
        expected = dict(zip(("d_gates", "d_values", "d_initial_state"), gradients, strict=True))
        terms = max(float(x.double().abs().max()) for x in (one.values, one.initial_state))
        terms *= float(one.d_states.abs().max())
        assert actual["states"].isfinite().all()
        error = (actual["states"].double() - states.detach()).abs().max()
        assert error <= terms * TOLERANCES[dtype]
        for name, wanted in expected.items():
            # In units of the largest gradient. Where one gate wins, a gradient by a gate is a
            # difference of equal terms |lam| |u| f' / S, whose rounding errors stay.
            unit = wanted.abs().max()
            if name == "d_gates":
                slope = 1 / g.detach().abs().max() if gate in ("relu", "signed") else 1.0
                unit = torch.maximum(unit, torch.as_tensor(terms * slope))
            if unit < torch.finfo(dtype).tiny * 2**16:
                continue  # too small for the dtype to hold more than a few bits of it
            if wanted.abs().max() > 1e-3 * unit:
                assert actual[name].abs().max() > 0, name
            error = (actual[name].double() - wanted).abs().max() / unit
            assert error <= TOLERANCES[dtype], (name, float(error))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_householder_equals_products_of_unit_reflections(problem, dtype, scale, backend):
    if scale == 1e30 and dtype == torch.float64:
        scale = 1e290
    p = huge(problem("blocks", batch=1, length=4, blocks=5, size=3), scale, dtype)
    gates = p.gates.clone()
    gates[..., -1] = 1.5
    p = p.replace(gates=gates)
    actual = p.outcome("householder", backend=backend, cotangents=("states",))
    g, v, h_0 = (leaf.double().clone().requires_grad_() for leaf in p.leaves)
    limit = float(g.detach().abs().max())
    u = g[..., :-1] / limit
    n = u / u.norm(dim=-1, keepdim=True)  # |u|^4 / (1 + |u|^4) is 1 to all digits
    A = torch.eye(3, dtype=torch.float64).expand(1, 4, 5, 3, 3)
    for j in range(3):
        A = A - 2 * (A @ n[..., j, :, None]) * n[..., j, None, :]
    a_0 = torch.sigmoid(g[..., -1].mean(-1) - 3)
    h, states = h_0, []
    for t in range(4):
        h = (1 - a_0[:, t, :, None]) * (A[:, t] @ h.unsqueeze(-1)).squeeze(-1)
        h = h + a_0[:, t, :, None] * v[:, t]
        states.append(h)
    states = torch.stack(states, 1)
    (d_gates,) = torch.autograd.grad(states, [g], p.d_states.double())
    tolerance = 20 * TOLERANCES[dtype]
    error = (actual["states"].double() - states.detach()).abs().max()
    assert error <= tolerance * states.detach().abs().max()
    vectors, wanted = actual["d_gates"][..., :-1].double(), d_gates[..., :-1]
    if wanted.abs().max() > torch.finfo(dtype).tiny * 2**16:
        assert vectors.abs().max() > 0
        assert (vectors - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-10])
def test_short_householder_vectors_leave_the_identity_and_finite_gradients(length, backend):
    gates = torch.full((1, 2, 3, 2, 3), length, requires_grad=True)
    states, _ = ops.bd_lru(
        gates, torch.zeros(1, 2, 3, 2), "householder", torch.ones(1, 3, 2), backend=backend
    )
    kept = 1 - torch.sigmoid(torch.tensor(length - 3))
    torch.testing.assert_close(states[:, 1], torch.full((1, 3, 2), float(kept**2)))
    states.sum().backward()
    assert gates.grad.isfinite().all()


@pytest.mark.parametrize("gate", ["relu", "signed", "tanh", "sigmoid"])
def test_values_near_the_largest_number_do_not_overflow(problem, kind, gate, backend):
    """A weighted mean of finite numbers is finite."""
    p = problem(kind, size=5, length=3)
    largest = torch.finfo(torch.float32).max
    scan = RECURRENCES[kind]
    states, _ = scan(
        p.gates.abs().float() + 1,
        torch.full_like(p.values, 0.9 * largest).float(),
        gate,
        torch.full_like(p.initial_state, 0.9 * largest).float(),
        backend=backend,
    )
    expected = torch.full_like(states, 0.9 * largest)
    torch.testing.assert_close(states, expected, rtol=1e-4, atol=0)
