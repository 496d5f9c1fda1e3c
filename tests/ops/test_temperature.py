"""The temperature divides the raw gates of every family, on every backend, in every transform."""

import pytest
import torch
from tests.ops.conftest import RECURRENCES
from torch._dynamo.testing import CompileCounterWithBackend

from statemix import ops

STEPS = {"blocks": ops.bd_lru_step, "lags": ops.h_lru_step}


def test_normalize_divides(gate):
    gates = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    actual = ops.normalize(gates, gate, temperature=0.5)
    torch.testing.assert_close(actual, ops.normalize(gates * 2, gate), rtol=1e-14, atol=0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_graph_follows_the_value(problem, device, kind, registered_backend):
    torch._dynamo.reset()
    p = problem(kind)
    temperature = torch.tensor(1.0, device=device)
    counter = CompileCounterWithBackend("aot_eager")

    def run(gates, values):
        return RECURRENCES[kind](
            gates, values, temperature=temperature, backend=registered_backend
        )[0]

    compiled = torch.compile(run, backend=counter, fullgraph=True)
    for value in (1.0, 0.5, 0.3):
        temperature.fill_(value)
        torch.testing.assert_close(compiled(p.gates, p.values), run(p.gates, p.values))
    assert counter.frame_count == 1


BAD = [
    (0.0, ValueError, "temperature must be positive and .*, got 0.0"),
    (-1, ValueError, "temperature must be positive and .*, got -1"),
    (float("inf"), ValueError, "temperature must be positive and .*, got inf"),
    (float("nan"), ValueError, "temperature must be positive and .*, got nan"),
    (10**400, ValueError, "temperature must be positive and .*, got 1000"),
    ("1", TypeError, "temperature must be a 0-d tensor, a number or None, got '1'"),
    (True, TypeError, "temperature must be a 0-d tensor, a number or None, got True"),
    (torch.ones(1), ValueError, r"temperature must have shape \(\), got \(1,\)"),
    (torch.tensor(1), TypeError, "temperature must have a floating dtype, got torch.int64"),
    (torch.tensor(1.0, device="meta"), ValueError, "temperature must be on cpu, got meta"),
    (torch.tensor(1.0, requires_grad=True), ValueError, "temperature must not require a gradient"),
]


def test_bad_temperatures_are_refused(problem, kind):
    p = problem(kind).to(torch.float32)
    calls = [
        lambda value: RECURRENCES[kind](p.gates, p.values, temperature=value),
        lambda value: STEPS[kind](
            p.gates[:, 0], p.values[:, 0], p.initial_state, temperature=value
        ),
        lambda value: ops.normalize(p.gates, "softmax", temperature=value),
    ]
    for value, error, message in BAD:
        for call in calls:
            with pytest.raises(error, match=message):
                call(value)


@pytest.mark.parametrize("temperature", [1e300, 1e-300])
def test_a_number_that_the_states_cannot_hold_is_refused(temperature):
    gates, values = torch.zeros(1, 1, 1, 1, 2), torch.zeros(1, 1, 1, 1)
    with pytest.raises(ValueError, match=r"temperature must be .* the range of float32, got"):
        ops.bd_lru(gates, values, temperature=temperature)
    ops.bd_lru(gates.double(), values.double(), temperature=temperature)
