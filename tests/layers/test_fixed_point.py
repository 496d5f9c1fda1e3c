"""Fixed points: mixers, solver and layer, against matrices and against each other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statemix.layers import FPRNN, FPMamba1, FPMamba2
from statemix.layers.fixed_point.fixed_point_layer import LEAST_BUDGET
from statemix.layers.fixed_point.mixers import build_mixer
from statemix.layers.fixed_point.solver import SolverConfig, _residuals, residual_of_share, solve

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


# The solver.


def linear_map(factor, fixed, seen=None):
    """Return a map with a fixed point; it adds its arguments to ``seen``."""

    def function(y):
        if seen is not None:
            seen.append(y)
        return fixed + factor * (y - fixed)

    return function


def problem(*shape):
    """Return a fixed point and zeros to start from."""
    return tokens(*shape), torch.zeros(shape, dtype=torch.float64)


def test_the_iteration_stops_at_the_tolerance_or_the_budget():
    fixed, start = problem(3, 2, 4)
    with torch.no_grad():
        found = solve(linear_map(0.5, fixed), start, 100, SolverConfig(tolerance=1e-6))
        short = solve(linear_map(0.5, fixed), start, 4, SolverConfig(tolerance=1e-6))
    assert found.residual.max() < 1e-6
    assert 18 < found.iterations < 30
    torch.testing.assert_close(found.value, fixed, rtol=1e-5, atol=1e-6)
    assert short.iterations == 4
    torch.testing.assert_close(short.value, fixed * (1 - 0.5**4))
    assert short.residual.max() > 1e-2


@pytest.mark.parametrize(
    ("residuals", "share", "expected"),
    [
        ([0.0] * 9 + [2.0], 0.95, 2.0),  # Nine of ten are fewer than 95 %.
        ([0.0, 1.0, 2.0, 3.0], 0.5, 1.0),
        ([i / 100 for i in range(100)], 0.55, 0.54),  # 0.55 * 100 is above 55.
        ([np.nan, 1.0], 0.4, 1.0),
        ([np.nan, 1.0], 1.0, np.inf),
    ],
)
def test_the_residual_of_a_share_is_that_of_a_sequence(residuals, share, expected):
    assert residual_of_share(torch.tensor(residuals), share) == pytest.approx(expected)


def test_a_share_of_the_sequences_may_be_late():
    factors = torch.tensor([0.1, 0.1, 0.1, 0.999], dtype=torch.float64)[:, None, None]
    fixed, start = problem(4, 2, 3)
    with torch.no_grad():
        every, four_fifths, most = (
            solve(linear_map(factors, fixed), start, 60, SolverConfig(quantile=quantile))
            for quantile in (1.0, 0.8, 0.6)
        )
    # Three of four sequences are less than four fifths.
    assert every.iterations == four_fifths.iterations == 60
    assert most.iterations < 8
    assert (most.residual[:3] < 1e-3).all()
    assert most.residual[3] > 0.1


def test_padding_does_not_keep_an_iteration_going():
    factors = torch.full((2, 3, 1), 0.1, dtype=torch.float64)
    factors[1, 2] = 0.999
    valid = torch.tensor([[True, True, True], [True, True, False]])
    fixed, start = problem(2, 3, 4)
    function, config = linear_map(factors, fixed), SolverConfig()
    with torch.no_grad():
        found = solve(function, start, 50, config, valid)
        short = solve(function, start, 3, config, valid)
    assert found.iterations < 8
    assert found.residual.max() < 1e-3
    expected = fixed * (1 - 0.1**found.iterations)
    torch.testing.assert_close(found.value[valid], expected[valid])
    assert short.residual.max() < 0.01


def test_an_iterate_moves_by_the_damping():
    fixed, start, seen = tokens(2, 3, 4), tokens(2, 3, 4, seed=2), []
    with torch.no_grad():
        solve(linear_map(0.5, fixed, seen), start, 3, SolverConfig(damping=0.25))
    mapped = linear_map(0.5, fixed)(start)
    torch.testing.assert_close(seen[1], 0.25 * mapped + 0.75 * start)


def test_damping_grows_once_after_as_many_failures_as_patience():
    """Of y -> -3 y, a share s makes y (1 - 4 s) y, and no residual is below the first."""
    seen = []

    def function(y):
        seen.append(y.item())
        return -3 * y

    with torch.no_grad():
        solve(function, torch.ones(1, 1, 1), 9, SolverConfig(patience=3, decay=0.75))
    shares = [1, 1, 1, 0.75, 0.75, 0.75, 0.75**2]
    assert seen[:8] == [1, *np.cumprod([1 - 4 * share for share in shares])]


def test_sequences_do_not_depend_on_their_neighbours():
    """One oscillates until it is damped, the other is slow and needs no damping."""
    factors = torch.tensor([-1.5, 0.9], dtype=torch.float64)[:, None, None]
    fixed, start = problem(2, 2, 3)
    config = SolverConfig(tolerance=1e-300, patience=3, decay=0.5)
    with torch.no_grad():
        both = solve(linear_map(factors, fixed), start, 30, config)
        for place in ([0], [1]):
            alone = solve(linear_map(factors[place], fixed[place]), start[place], 30, config)
            assert both.value[place].equal(alone.value)
            assert both.residual[place].equal(alone.residual)


@pytest.mark.parametrize(
    ("gradient", "expected"), [(1, 10), (2, -80), ("implicit", 1), ("unrolled", 1)]
)
def test_what_converges_only_if_damped_is_returned_as_it_has_converged(gradient, expected):
    """y -> c - 9 (y - c): undamped, each application moves away from c by a factor of 9."""
    c = torch.full((2, 3, 4), 1.5, dtype=torch.float64, requires_grad=True)
    config = SolverConfig(tolerance=1e-3, gradient=gradient)

    def function(y):
        return c - 9 * (y - c)

    found = solve(function, torch.zeros_like(c), 1000, config)
    own = _residuals(found.value, function(found.value), None)
    torch.testing.assert_close(found.residual, own.detach())
    assert 0 < found.residual.max() < 1e-3
    (slope,) = torch.autograd.grad(found.value.sum(), c)
    torch.testing.assert_close(slope, torch.full_like(c, expected), rtol=2e-3, atol=0)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_the_implicit_gradient_does_not_depend_on_the_size_of_the_loss(scale):
    c = torch.full((1, 2, 3), 0.5, dtype=torch.float64, requires_grad=True)
    config = SolverConfig(tolerance=1e-6, gradient="implicit")
    found = solve(lambda y: 0.5 * y + c, torch.zeros_like(c), 100, config)
    (slope,) = torch.autograd.grad(scale * found.value.sum(), c)
    torch.testing.assert_close(slope / scale, torch.full_like(c, 2.0), rtol=1e-5, atol=0)


def test_an_implicit_gradient_that_has_not_converged_warns():
    c = torch.ones(1, 1, 1, dtype=torch.float64, requires_grad=True)
    config = SolverConfig(tolerance=1e-3, gradient="implicit")
    found = solve(lambda y: 0.99 * y + c, torch.full_like(c, 100.0), 20, config)
    assert found.residual.max() < 1e-3
    with pytest.warns(UserWarning, match="implicit gradient has not converged: residual 0.04"):
        found.value.sum().backward()


def test_an_implicit_gradient_that_is_no_number_stays_so():
    c = torch.ones(1, 1, 2, dtype=torch.float64, requires_grad=True)
    config = SolverConfig(gradient="implicit")
    found = solve(lambda y: 0.5 * y + c, torch.zeros_like(c), 100, config)
    with pytest.warns(UserWarning, match="has not converged: residual inf"):
        (found.value * torch.tensor([torch.nan, 1.0])).sum().backward()
    assert c.grad[..., 0].isnan().all()


def test_of_a_diverging_iteration_the_best_iterate_counts():
    fixed = torch.ones(1, 1, 2, dtype=torch.float64)
    with torch.no_grad():
        found = solve(linear_map(-3.0, fixed), fixed * 1.1, 50, SolverConfig(decay=1.0))
    # Each iterate is further away than the one before.
    assert (found.value - fixed).abs().max() < 1.0


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
