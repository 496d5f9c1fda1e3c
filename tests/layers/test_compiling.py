"""Every layer compiled: second lengths, packed rows, steps."""

import os
import shutil

import pytest
import torch

from statemix import FPRNN, layers

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.usefixtures("fresh_compiler"),
]


def tokens(batch, length, dtype=torch.float32):
    generator = torch.Generator().manual_seed(length)
    return torch.randn(batch, length, 8, generator=generator).to(dtype)


def agree(compiled, layer, x):
    """Compare outputs and gradients of a compiled layer with its own."""
    results = []
    for call in (compiled, layer):
        layer.zero_grad()
        y, _ = call(x)
        y.square().sum().backward()
        results.append([y, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


def test_a_compiled_layer_trains_at_a_second_length(make):
    layer = make()
    compiled = torch.compile(layer, backend="aot_eager")
    # Graphs of iterations take long to compile.
    for length in (5,) if layer.iterative else (5, 9):
        agree(compiled, layer, tokens(2, length))
    make()  # Layers can be built after one is compiled.


def test_a_mixer_of_tokens_has_one_graph():
    layer = FPRNN(8, mixer_inputs="token")
    agree(torch.compile(layer, backend="aot_eager", fullgraph=True), layer, tokens(2, 5))


@torch.no_grad()
def test_a_compiled_layer_runs_packed_rows_and_steps(make):
    layer = make()
    compiled = torch.compile(layer, backend="eager")
    bounds, x = torch.tensor([0, 2, 2, 5]), tokens(1, 5)
    torch.testing.assert_close(compiled(x, None, bounds), layer(x, None, bounds))
    step = torch.compile(layer.step, backend="eager")
    for batch in (2, 3):
        x, state = tokens(batch, 1)[:, 0], layer.init_state(batch)
        torch.testing.assert_close(step(x, state), layer.step(x, state))


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="Inductor needs a C++ compiler"
)
def test_the_default_compiler_trains_at_a_second_length():
    layer = layers.BDLRU(8, num_blocks=4, block_size=2)
    compiled = torch.compile(layer)
    for length in (5, 9):
        agree(compiled, layer, tokens(2, length))
