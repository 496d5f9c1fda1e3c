"""Fixed points: mixers, solver and layer, against matrices and against each other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statemix.layers import FPRNN, FPMamba1, FPMamba2
from statemix.layers.fixed_point import closed_form
from statemix.layers.fixed_point.fixed_point_layer import LEAST_BUDGET
from statemix.layers.fixed_point.mixers import build_mixer
from statemix.layers.fixed_point.solver import SolverConfig, solve

MIXERS = [("householder", 1), ("householder", 3), ("dplr", 2), ("kronecker", 1), ("monarch", 3)]
CONVERGED = {"max_iterations": 2000, "tolerance": 1e-14, "contraction": 0.9}


def build(mixer="householder", rank=1, seed=0, size=6, scale=3.0, **options):
    """A layer in float64 whose mixers are far from the identity."""
    layer = FPRNN(size, mixer=mixer, rank=rank, dtype=torch.float64, **options)
    layer.reset_parameters(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in layer.state_mixer.parameters():
            parameter.mul_(scale)
    return layer


def tokens(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrices(mixer, x, s):
    """Q for tokens x (..., N) after s, column by column."""
    coefficients = mixer.coefficients([linear(s) for linear in mixer.prepare(x)])
    columns = [
        unit - mixer.deviation(coefficients, unit.expand(x.shape))
        for unit in torch.eye(x.shape[-1], dtype=x.dtype)
    ]
    return torch.stack(columns, -1)


def dense_states(layer, x):
    """The states by the closed dense form, token by token."""
    v, _ = layer.in_proj(x).chunk(2, dim=-1)
    inputs, decays = layer._inputs(v), layer._decays(v)
    eye = torch.eye(v.shape[-1], dtype=v.dtype)
    state = layer.init_state(len(x))
    found = []
    for t in range(x.shape[1]):
        Q = matrices(layer.state_mixer, v[:, t], state)
        A = torch.linalg.inv(eye + torch.diag_embed(1 / decays[:, t] - 1) @ Q)
        state = torch.einsum("bij,bj->bi", A, state)
        state = state + torch.einsum("bij,bj->bi", eye - A, inputs[:, t])
        found.append(state)
    return torch.stack(found, 1)


def states(layer, x):
    """The states by iteration: final states of ever longer beginnings."""
    return torch.stack([layer(x[:, : t + 1])[1] for t in range(x.shape[1])], 1)


@pytest.mark.parametrize(
    ("mixer", "rank", "mixer_inputs"),
    [(*case, ("token", "both", "sum")[n % 3]) for n, case in enumerate(MIXERS)],
)
def test_the_fixed_point_is_the_closed_dense_form(mixer, rank, mixer_inputs):
    layer = build(mixer, rank, mixer_inputs=mixer_inputs, **CONVERGED).eval()
    x = tokens(2, 7, 6)
    found, expected = states(layer, x), dense_states(layer, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    # The matrices differ from the identity, and from token to token.
    v, _ = layer.in_proj(x).chunk(2, dim=-1)
    Q = matrices(layer.state_mixer, v, torch.zeros_like(v))
    assert (Q - torch.eye(6)).abs().max() > 0.1
    assert (Q[:, 0] - Q[:, 1]).abs().max() > 0.01


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    case=st.sampled_from(MIXERS),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    contraction=st.floats(0.05, 0.99),
)
def test_under_the_switch_every_iteration_is_a_contraction(seed, case, scale, contraction):
    layer = build(*case, seed=seed, scale=scale, contraction=contraction)
    with torch.no_grad():
        for name, parameter in layer.state_mixer.named_parameters():
            if name.endswith("bias"):
                # Strengths near 1, where the bounds are needed.
                parameter.add_(3)
    v = tokens(4, 5, 6, seed=seed)
    Q = matrices(layer.state_mixer, v, tokens(4, 5, 6, seed=seed + 1))
    deviation = torch.eye(6) - Q
    norms = torch.linalg.matrix_norm(deviation, 2)
    assert norms.max() <= layer.state_mixer.bound * (1 + 1e-9)
    kept = torch.diag_embed(1 - layer._decays(v)) @ deviation
    assert torch.linalg.matrix_norm(kept, 2).max() <= contraction * (1 + 1e-9)


def rows(matrix):
    return matrix / np.sqrt((matrix**2).sum(-1, keepdims=True) + 1e-6)


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def triangle(entries, n):
    matrix = np.zeros((n, n))
    matrix[np.triu_indices(n)] = silu(entries)
    return matrix


def published(name, rank, raw, size):
    """Q of one token as the source writes it, from the results of the linear maps."""
    if name in ("householder", "dplr"):
        vectors = rows(silu(raw[0]).reshape(rank, size))
        strengths = 2 * sigmoid(raw[1])
        terms = [c * np.outer(u, u) for c, u in zip(strengths, vectors, strict=True)]
        if name == "dplr":
            return np.eye(size) - sum(terms)
        Q = np.eye(size)
        for term in terms:
            Q = (np.eye(size) - term) @ Q
        return Q
    if name == "monarch":
        Q = np.eye(size)
        blocks = raw[0].reshape(size // rank, -1)
        for j, (entries, strength) in enumerate(zip(blocks, raw[1], strict=True)):
            P = triangle(entries, rank)
            K = P @ P.T
            K = K / np.sqrt((K**2).sum(0)).max()
            place = slice(j * rank, (j + 1) * rank)
            Q[place, place] -= sigmoid(strength) * K
        return Q
    a, b = 2, 3
    V, U = (
        np.diag(sigmoid(strength)) @ rows(triangle(entries, n) @ triangle(entries, n).T)
        for entries, strength, n in zip(raw[:2], raw[2:], (a, b), strict=True)
    )
    # vec by rows: vec(V X U) = (V kron U^T) vec(X).
    return np.eye(size) - 2 * np.kron(V, U.T)


@pytest.mark.parametrize(
    ("name", "rank", "inputs"),
    [(*case, ("both", "sum", "token")[n % 3]) for n, case in enumerate(MIXERS)],
)
def test_mixers_are_as_published(name, rank, inputs):
    mixer = build_mixer(name, 6, inputs, rank, contractive=False, dtype=torch.float64)
    mixer.reset_parameters(torch.Generator().manual_seed(2))
    x, s = tokens(6), tokens(6, seed=5)
    p = {"both": torch.cat([x, s]), "sum": x + s, "token": x}[inputs]
    raw = []
    for linear in mixer.linears:
        with torch.no_grad():
            linear.gain.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(7))
            lengths = linear.weight.norm(dim=1)
            bias = 0 if linear.bias is None else linear.bias
            raw.append(((linear.weight @ p) * linear.gain / lengths + bias).numpy())
    expected = published(name, rank, raw, 6)
    np.testing.assert_allclose(matrices(mixer, x, s).detach().numpy(), expected, atol=1e-6)


# Gradients.


def gradients(layer, x):
    y, _ = layer(x)
    return torch.autograd.grad((y * tokens(*y.shape, seed=9)).sum(), list(layer.parameters()))


def error(found, expected):
    pairs = zip(found, expected, strict=True)
    return max(
        float((one - other).norm() / other.norm()) for one, other in pairs if other.norm() > 0
    )


@pytest.mark.parametrize(
    ("mixer", "rank", "mixer_inputs"),
    [("householder", 3, "both"), ("kronecker", 1, "token"), ("monarch", 3, "both")],
)
def test_the_implicit_gradient_is_that_of_all_iterations(mixer, rank, mixer_inputs):
    layer = build(mixer, rank, mixer_inputs=mixer_inputs, scale=1.0, **CONVERGED)
    x = tokens(2, 6, 6)
    found = {}
    for gradient in (1, 4, 64, "implicit", "unrolled"):
        layer.gradient = gradient
        found[gradient] = gradients(layer, x)
    assert error(found["implicit"], found["unrolled"]) < 1e-8
    # More differentiated iterations come closer.
    errors = [error(found[k], found["unrolled"]) for k in (1, 4, 64)]
    assert errors[0] > 1e-3
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3


# The layer.


def test_the_reported_residual_is_that_of_the_slowest_sequence():
    layer = build(max_iterations=3, tolerance=1e-9, quantile=0.9)
    slow, fast = tokens(1, 5, 6), torch.zeros(2, 5, 6, dtype=torch.float64)
    layer(slow)
    expected = layer.reports()["residual"]
    layer(torch.cat([slow, fast]))
    torch.testing.assert_close(layer.reports()["residual"], expected)
    assert expected > 1e-3


@pytest.fixture
def solves(monkeypatch):
    """The length, budget, configuration and padding of every call of the solver."""
    seen = []

    def spy(function, start, budget, config, valid):
        seen.append((start.shape[1], budget, config, valid))
        return solve(function, start, budget, config, valid)

    monkeypatch.setattr("statemix.layers.fixed_point.solver.solve", spy)
    return seen


@pytest.mark.parametrize("kind", [FPRNN, FPMamba1, FPMamba2])
def test_settings_of_the_layer_are_those_of_the_iteration(kind, solves):
    options = {"tolerance": 0.25, "quantile": 0.5, "damping": 0.75, "gradient": "unrolled"}
    layer = kind(6, max_iterations=7, dtype=torch.float64, **options)
    layer(tokens(2, 5, 6))
    layer.max_iterations, layer.tolerance, layer.quantile = 9, 0.125, 1.0
    layer(tokens(2, 5, 6))
    changed = {**options, "tolerance": 0.125, "quantile": 1.0}
    expected = [(5, 7, SolverConfig(**options), None), (5, 9, SolverConfig(**changed), None)]
    assert solves == expected


def test_windows_have_the_budget_and_the_padding_of_their_tokens(solves):
    layer = build(window=18)
    layer(tokens(1, 40, 6))
    budgets = [(length, budget) for length, budget, *_ in solves]
    assert budgets == [(18, 18), (18, 18), (4, 16), (40, 40)]
    solves.clear()
    layer(tokens(1, 60, 6), cu_seqlens=torch.tensor([0, 40, 60]))
    whole = torch.arange(40) < torch.tensor([[40], [20]])
    windows = [whole[:, :18], whole[:, 18:36], whole[:, 36:], whole]
    assert all(valid.equal(part) for (*_, valid), part in zip(solves, windows, strict=True))


def test_evaluation_that_has_not_converged_warns_once(recwarn):
    layer = build(max_iterations=3, tolerance=1e-6)
    x = tokens(2, 6, 6)
    layer.train()(x)
    assert not recwarn.list
    message = (
        r"^fp_rnn has not converged: residual [0-9.e-]+ after 3 iterations, tolerance 1e-06; "
        "its outputs depend on max_iterations"
    )
    with pytest.warns(UserWarning, match=message):
        layer.eval()(x)
    layer(x)
    assert len(recwarn.list) == 0
    with pytest.warns(UserWarning, match="residual inf"):
        layer(x * torch.nan)
    layer(x * torch.nan)
    assert len(recwarn.list) == 0
    converged = build(**CONVERGED).eval()
    converged(x)
    assert not recwarn.list


def test_a_single_iteration_is_not_meant_to_converge(recwarn):
    layer = FPRNN(6, max_iterations=1, tolerance=1e-6).eval()
    layer(torch.randn(2, 6, 6))
    assert layer.reports()["residual"] > 1e-6
    assert not recwarn.list


def test_random_budgets_have_the_fixed_one_as_their_mean():
    layer = build(max_iterations=8, budget="gamma", tolerance=1e-300)
    torch.manual_seed(3)
    drawn = [layer._drawn(5) for _ in range(2000)]
    # Rounding up adds half an iteration; the standard deviation of the distribution is 4.
    assert np.mean(drawn) == pytest.approx(8.5, abs=0.4)
    assert np.std(drawn) == pytest.approx(4, abs=0.4)
    assert min(drawn) >= 1
    torch.manual_seed(3)
    assert [layer._drawn(5) for _ in range(20)] == drawn[:20]
    assert {layer.eval()._drawn(5) for _ in range(20)} == {8}


def test_the_budget_is_the_length_unless_given():
    layer = build(tolerance=1e-300)
    for length, expected in ((1, LEAST_BUDGET), (16, 16), (40, 40)):
        layer(tokens(1, length, 6))
        assert layer.reports()["iterations"] == expected


# Without iterations.

SOLVABLE = [(name, rank) for name in ("householder", "dplr") for rank in (1, 2, 5, 8)]
SOLVABLE += [("monarch", rank) for rank in (1, 4, 8)]


@pytest.mark.parametrize("contraction", [None, 0.9])
@pytest.mark.parametrize("mixer_inputs", ["token", "both", "sum"])
@pytest.mark.parametrize(("mixer", "rank"), SOLVABLE)
def test_states_are_those_of_the_dense_inverse(mixer, rank, mixer_inputs, contraction):
    options = {"mixer_inputs": mixer_inputs, "contraction": contraction, "scale": 1.0}
    layer = build(mixer, rank, size=8, **options)
    with torch.no_grad():
        for linear in layer.state_mixer.linears[1:]:
            # Strengths up to their bound, beyond which iterations diverge.
            linear.bias.add_(4)
    x = tokens(2, 7, 8)
    expected = dense_states(layer, x)
    found = states(layer, x)
    torch.testing.assert_close(
        found / expected.abs().max(), expected / expected.abs().max(), rtol=0, atol=1e-10
    )
    assert layer.solver == "closed"
    assert layer.reports() == {}


def in_pytorch(monkeypatch):
    monkeypatch.setattr(closed_form, "may_use_pointers", lambda *_: False)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("contraction", [None, 0.9])
@pytest.mark.parametrize("mixer_inputs", ["token", "both", "sum"])
@pytest.mark.parametrize(("mixer", "rank"), [("householder", 1), ("householder", 3), ("dplr", 2)])
@pytest.mark.parametrize(
    ("batch", "length", "size"), [(1, 6, 5), (5, 1, 33), (7, 4, 40), (2, 3, 2)]
)
def test_the_kernel_is_the_pass_in_pytorch(
    mixer, rank, mixer_inputs, contraction, dtype, batch, length, size, monkeypatch
):
    options = {"mixer_inputs": mixer_inputs, "contraction": contraction, "scale": 1.0}
    x, state = tokens(batch, length, size), tokens(batch, size, seed=4)

    def results(dtype):
        layer = build(mixer, rank, size=size, **options).to(dtype)
        given = [one.to(dtype).requires_grad_() for one in (x, state)]
        y, final = layer(*given)
        loss = (y * tokens(*y.shape, seed=9).to(dtype)).sum() + final.square().sum()
        found = torch.autograd.grad(loss, [*given, *layer.parameters()])
        return [one.detach().double() for one in (y, final, *found)]

    run, calls = closed_form.loader.fixed_point, []
    spy = lambda *given, **options: calls.append(run(*given, **options))  # noqa: E731
    monkeypatch.setattr(closed_form.loader, "fixed_point", spy)
    found = results(dtype)
    assert len(calls) == 2
    in_pytorch(monkeypatch)
    assert error(found, results(torch.float64)) < (1e-10 if dtype == torch.float64 else 1e-3)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("mixer", "rank", "mixer_inputs"),
    [
        ("householder", 2, "both"),
        ("dplr", 2, "sum"),
        ("monarch", 2, "both"),
        ("householder", 2, "token"),
    ],
)
def test_gradients_go_through_time(mixer, rank, mixer_inputs, fused, monkeypatch):
    layer = build(mixer, rank, size=4, mixer_inputs=mixer_inputs, scale=1.0)
    if not fused:
        in_pytorch(monkeypatch)
    arguments = (tokens(2, 3, 4).requires_grad_(), tokens(2, 4, seed=3).requires_grad_())
    torch.autograd.gradcheck(layer, arguments)
    if mixer_inputs != "token":
        torch.autograd.gradgradcheck(lambda *those: layer(*those)[1], arguments)


def test_gradients_are_those_of_the_fixed_point():
    """Of all iterations by default, and of the last ones if so many are asked for."""
    closed, iterated = (
        build("householder", 2, contraction=0.9),
        build("householder", 2, **CONVERGED),
    )
    x = tokens(2, 6, 6)
    assert closed.gradient == "implicit"
    assert iterated.gradient == 1
    found = {}
    for gradient in ("implicit", 1, 3):
        closed.gradient = iterated.gradient = gradient
        found[gradient] = gradients(closed, x)
        assert error(found[gradient], gradients(iterated, x)) < 1e-8
    assert error(found[1], found["implicit"]) > 1e-3


@pytest.mark.parametrize("mixer", ["monarch", "householder"])
def test_a_singular_system_spoils_its_own_sequence_alone(mixer):
    solvable = build_mixer(mixer, 4, "token", 2, contractive=True, dtype=torch.float64)
    units = torch.eye(4, dtype=torch.float64)[:2].expand(2, 2, 4)
    blocks = torch.eye(2, dtype=torch.float64).expand(2, 2, 2, 2)
    strengths = torch.tensor([[1.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    scaled = (strengths[..., None, None] * blocks,)
    coefficients = scaled if mixer == "monarch" else (units, strengths)
    v = torch.ones(2, 4, dtype=torch.float64)
    y = solvable.resolvent(coefficients, torch.ones_like(v), v)
    assert not y[0].isfinite().all()
    torch.testing.assert_close(y[1, :2], torch.full((2,), 2.0, dtype=torch.float64))


def test_options_of_iterations_choose_them():
    assert FPRNN(4).solver == "closed"
    assert not FPRNN(4).iterative
    assert FPRNN(4, solver="iterate").iterative
    for options in (
        {"mixer": "kronecker"},
        {"rank": 9},
        {"window": 2},
        {"damping": 0.5},
        {"max_iterations": 3},
    ):
        assert FPRNN(4, **options).solver == "iterate"
    layer = FPRNN(4)
    layer.max_iterations = 1
    assert layer.solver == "iterate"
    layer(torch.randn(1, 5, 4))
    assert layer.reports()["iterations"] == 1
