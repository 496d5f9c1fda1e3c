"""The solver of fixed points, on maps of which they are known."""

import numpy as np
import pytest
import torch

from statemix.layers.fixed_point.solver import SolverConfig, _residuals, residual_of_share, solve


def tokens(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
        # What has become still moves no further.
        still = solve(function, torch.ones(1, 1, 1), 99, SolverConfig(patience=1, decay=0.1))
    assert still.iterations < 99
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


def test_a_second_derivative_of_a_sum_is_refused():
    """The gradient that comes to the fixed point depends on nothing."""
    fixed, start = problem(1, 2, 3)
    fixed.requires_grad_()
    point = solve(lambda y: torch.tanh(0.5 * y + fixed), start, 60, SolverConfig()).value
    (first,) = torch.autograd.grad(point.sum(), fixed, create_graph=True)
    with pytest.raises(RuntimeError, match="fixed point cannot be differentiated again"):
        torch.autograd.grad(first.sum(), fixed)
