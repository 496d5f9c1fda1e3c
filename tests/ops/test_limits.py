"""Infinite gates and values, and the coldest and warmest temperatures, in rows worked by hand.

Each row is a channel of H-LRU at m = 1: a gate of the state before and a gate of the value.
"""

import math

import pytest
import torch
from tests.ops.conftest import in_pairs, usable

from statemix import ops

INF = math.inf
EVERY = ["softmax", "sigmoid", "relu", "signed", "tanh"]


@pytest.fixture
def step(device, backend):
    """Runs one step from a state of 1 with a value of 2; returns the state and the gradients."""

    def run(gate, pair, *, value=2.0, before=1.0, cotangent=1.0, temperature=1.0):
        gates = torch.tensor(pair, device=device).reshape(1, 1, 1, 2).requires_grad_()
        values = torch.full((1, 1, 1), value, device=device, requires_grad=True)
        initial = torch.full((1, 1, 1), before, device=device, requires_grad=True)
        options = {"temperature": temperature, "backend": backend}
        states, _ = ops.h_lru(gates, values, gate, initial, **options)
        states.backward(torch.full_like(states, cotangent))
        found = [float(x.grad) for x in (initial, values)]
        return float(states.detach()), gates.grad.flatten().tolist(), found

    return run


@in_pairs(
    **{
        "gate,pair": [
            *((gate, pair) for gate in ("sigmoid", "tanh") for pair in ((INF, 0.5), (0.5, INF))),
            ("relu", (-INF, 2.0)),
        ]
    },
    **usable(),
)
def test_a_gate_of_infinity_is_as_open_or_as_closed_as_can_be(step, gate, pair):
    opened = [float(getattr(torch, gate)(torch.tensor(g))) for g in pair]
    shares = [x / sum(opened) for x in opened]
    state, gradients, flows = step(gate, pair)
    assert state == pytest.approx(shares[0] + 2 * shares[1], rel=2e-6)
    assert flows == pytest.approx(shares, rel=2e-6)
    # No finite change of an infinite gate is one.
    assert [g for g, x in zip(gradients, pair, strict=True) if math.isinf(x)] == [0]
    assert math.isfinite(sum(gradients))


@in_pairs(gate=EVERY, **usable())
def test_an_infinite_value_gives_an_infinite_state(step, gate):
    state, _, flows = step(gate, (1.0, 2.0), value=math.inf)
    assert state == math.inf
    assert sum(flows) == pytest.approx(1, rel=2e-6)


@in_pairs(
    temperature=[1e-30, 1e-37],
    cotangent=[1.0, 100.0, 1e8],
    gate=["softmax", "sigmoid", "tanh"],
    **usable(),
)
def test_gates_far_apart_for_a_low_temperature_have_no_gradient(step, gate, cotangent, temperature):
    state, gradients, _ = step(gate, (5.0, -500.0), cotangent=cotangent, temperature=temperature)
    assert state == pytest.approx({"tanh": -0.5}.get(gate, 1.0), rel=1e-5)
    assert gradients == [0, 0]


@in_pairs(temperature=[1e-30, 1e-37], gate=EVERY, **usable())
def test_what_weighs_nothing_has_no_gradient_at_a_low_temperature(step, gate, temperature):
    pair = (0.0, 0.0) if gate in ("relu", "signed") else (1.0, 1.0)
    options = {"value": 0.0, "before": 0.0, "cotangent": 100.0}
    _, gradients, _ = step(gate, pair, temperature=temperature, **options)
    assert gradients == [0, 0]


def test_the_difference_of_gates_may_overflow(step):
    state, _, _ = step("softmax", (3e38, -3e38), temperature=8e37)
    assert state == pytest.approx(1 + 1 / (1 + math.exp(7.5)), rel=2e-6)


@pytest.mark.parametrize("size", [1, 4])
def test_a_state_that_has_all_the_weight_is_kept_and_its_gradient_too(device, backend, size):
    """The gates of the diagonal win by 400: each step gives what was before, exactly."""
    eye = torch.eye(size, size + 1, device=device)
    gates = (400 * eye - 200).expand(1, 400, 1, size, size + 1)
    before = torch.full((1, 1, size), 0.7, device=device, requires_grad=True)
    values = torch.ones(1, 400, 1, size, device=device)
    _, final = ops.bd_lru(gates, values, "softmax", before, backend=backend)
    final.sum().backward()
    assert torch.equal(final, before)
    assert torch.equal(before.grad, torch.ones_like(before))
