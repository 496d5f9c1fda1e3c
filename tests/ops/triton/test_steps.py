"""Steps of the Triton kernels: the numbers of a sequence, by one launch, ready for CUDA graphs.

The interpreter must be chosen before Triton is imported: ``make test-triton``.
"""

import os

import pytest
import torch
from tests.ops.conftest import FAMILIES, RECURRENCES, in_pairs

from statemix import ops
from statemix.layers import BDLRU, HLRU
from statemix.ops.backends import reason_of

pytestmark = pytest.mark.skipif(reason_of("triton") is not None, reason=str(reason_of("triton")))

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
STEPS = {"blocks": ops.bd_lru_step, "lags": ops.h_lru_step}
# One family for each kind of kernel.
KINDS = [("blocks", "softmax"), ("lags", "softmax"), ("blocks", "householder")]
every_kernel = pytest.mark.parametrize(("kind", "gate"), KINDS)


def counted(monkeypatch, launches):
    """Add the names of launched kernels to a list."""
    # Imports Triton.
    from statemix.ops.triton.kernels import scan

    class Counted:
        def __init__(self, name):
            self.name, self.kernel = name, getattr(scan, name)

        def __getitem__(self, grid):
            def launch(*arguments, **options):
                launches.append(self.name)
                self.kernel[grid](*arguments, **options)

            return launch

    for name in ("local_forward", "local_backward", "chunk_forward", "chunk_backward"):
        monkeypatch.setattr(scan, name, Counted(name))
    # Steps that other tests have prepared launch the kernels themselves.
    monkeypatch.setattr("statemix.ops.decoding._steps", {})


@in_pairs(
    **{"kind,gate": FAMILIES},
    dtype=[torch.float32, torch.float64, torch.bfloat16, torch.float16],
    sizes=[(2, 5, 3), (1, 1, 1), (3, 33, 4), (2, 2, 8)],
    temperature=[None, 0.7, torch.tensor(0.3, dtype=torch.float64)],
)
def test_steps_equal_the_sequence_bit_for_bit(
    problem, identical, monkeypatch, kind, gate, sizes, dtype, temperature
):
    """Steps of inference, each prepared once, equal the sequence as one chunk."""
    batch, blocks, size = sizes
    p = problem(kind, batch=batch, length=2, blocks=blocks, size=size, gate=gate).to(dtype)
    p, launches = p.on(DEVICE), []
    counted(monkeypatch, launches)
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.to(DEVICE)
    options = {"temperature": temperature, "backend": ops.in_chunks(0)}
    with torch.inference_mode():
        expected = RECURRENCES[kind](p.gates, p.values, gate, p.initial_state, **options)
        del launches[:]
        state, states = p.initial_state, []
        for g_t, v_t in zip(p.gates.unbind(1), p.values.unbind(1), strict=True):
            h_t, state = STEPS[kind](g_t, v_t, state, gate, **options)
            states.append(h_t)
    assert launches == ["local_forward"] * 2
    found = torch.stack(states, 1), state
    if DEVICE == "cpu":
        identical(found, expected)
    else:
        # A compiler may join a product and a sum in one of the two kernels alone.
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: BDLRU(6, num_blocks=5, block_size=3, gate="householder", backend="triton"),
        lambda: HLRU(6, num_channels=5, order=3, backend="triton"),
    ],
    ids=["householder", "lags"],
)
def test_steps_of_layers_take_one_launch(monkeypatch, agree, layer):
    torch.manual_seed(0)
    layer = layer().to(DEVICE)
    layer.gate_temperature = 0.5
    x = torch.randn(2, 3, 6, device=DEVICE)
    launches = []
    counted(monkeypatch, launches)
    with torch.inference_mode():
        y, final = layer(x)
        del launches[:]
        state, outputs = layer.init_state(2), []
        for x_t in x.unbind(1):
            y_t, state = layer.step(x_t, state)
            outputs.append(y_t)
    assert launches == ["local_forward"] * 3
    # Projections of one token round otherwise.
    torch.testing.assert_close(torch.stack(outputs, 1), y)
    torch.testing.assert_close(state, final)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@every_kernel
def test_a_graph_replays_a_step(problem, identical, kind, gate):
    p = problem(kind, length=2, size=4).to(torch.float32).on(DEVICE)
    with torch.inference_mode():
        g, v, state = p.gates[:, 0].clone(), p.values[:, 0].clone(), p.initial_state.clone()
        STEPS[kind](g, v, state, gate, backend="triton")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            h_t, after = STEPS[kind](g, v, state, gate, backend="triton")
            state.copy_(after)
        expected = p.initial_state
        for t in range(2):
            g.copy_(p.gates[:, t])
            v.copy_(p.values[:, t])
            graph.replay()
            arguments = p.gates[:, t], p.values[:, t], expected
            expected_h, expected = STEPS[kind](*arguments, gate, backend="triton")
            identical((h_t, state), (expected_h, expected))
