"""FPRNN without iterations: against dense inverses, its own pass in PyTorch, and iterations."""

import pytest
import torch
from test_fixed_point import CONVERGED, build, dense_states, error, gradients, states, tokens

from statemix.layers import FPRNN
from statemix.layers.fixed_point import closed_form

SOLVABLE = [(name, rank) for name in ("householder", "dplr") for rank in (1, 2, 5, 8)]
SOLVABLE += [("monarch", rank) for rank in (1, 4, 8)]


@pytest.mark.parametrize("contraction", [None, 0.9])
@pytest.mark.parametrize("mixer_inputs", ["token", "both", "sum"])
@pytest.mark.parametrize(("mixer", "rank"), SOLVABLE)
def test_states_are_those_of_the_dense_inverse(mixer, rank, mixer_inputs, contraction):
    layer = build(mixer, rank, size=8, mixer_inputs=mixer_inputs, contraction=contraction)
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
    monkeypatch.setattr(closed_form, "are_plain", lambda *_: False)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("contraction", [None, 0.9])
@pytest.mark.parametrize("mixer_inputs", ["both", "sum"])
@pytest.mark.parametrize(("mixer", "rank"), [("householder", 1), ("householder", 3), ("dplr", 2)])
@pytest.mark.parametrize(
    ("batch", "length", "size"), [(1, 6, 5), (5, 1, 33), (7, 4, 40), (2, 3, 1)]
)
def test_the_kernel_is_the_pass_in_pytorch(
    mixer, rank, mixer_inputs, contraction, dtype, batch, length, size, monkeypatch
):
    layer = build(
        mixer, rank, size=size, mixer_inputs=mixer_inputs, contraction=contraction, scale=1.5
    )
    x, state = tokens(batch, length, size), tokens(batch, size, seed=4).requires_grad_()
    x.requires_grad_()

    def results(layer, x, state):
        y, final = layer(x, state)
        loss = (y * tokens(*y.shape, seed=9).to(y)).sum() + final.square().sum()
        return [y, final, *torch.autograd.grad(loss, [x, state, *layer.parameters()])]

    layer.to(dtype)
    found = (
        results(layer, x.to(dtype), state.to(dtype))
        if dtype == torch.float64
        else [
            one.double()
            for one in results(
                layer, *(one.detach().to(dtype).requires_grad_() for one in (x, state))
            )
        ]
    )
    in_pytorch(monkeypatch)
    expected = results(layer.double(), x, state)
    assert error([torch.ones(1), *found], [torch.ones(1), *expected]) < (
        1e-10 if dtype == torch.float64 else 2e-3
    )


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


def test_options_of_iterations_choose_them():
    assert FPRNN(4).solver == "closed"
    assert not FPRNN(4).iterative
    assert FPRNN(4, solver="iterate").iterative
    for options in ({"mixer": "kronecker"}, {"window": 2}, {"damping": 0.5}, {"max_iterations": 3}):
        assert FPRNN(4, **options).solver == "iterate"
    layer = FPRNN(4)
    layer.max_iterations = 1
    assert layer.solver == "iterate"
    layer(torch.randn(1, 5, 4))
    assert layer.reports()["iterations"] == 1
