"""Every layer compiled: second lengths, packed rows, steps, autocast."""

import os
import shutil

import pytest
import torch

from statemix import layers

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tokens(batch, length, dtype=torch.float32):
    generator = torch.Generator().manual_seed(length)
    return torch.randn(batch, length, 8, generator=generator).to(dtype)


def agree(compiled, layer, x, *, autocast=False, **given):
    """Compare outputs and gradients of a compiled layer with its own."""
    results = []
    for call in (compiled, layer):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y, _ = call(x, **given)
        y.float().square().sum().backward()
        results.append([y, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    tolerance = {"rtol": 0.1, "atol": 0.1} if autocast else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(*results, **tolerance)


def test_a_compiled_layer_trains_at_a_second_length(make):
    layer = make()
    compiled = torch.compile(layer, backend="aot_eager")
    # Graphs of iterations take long to compile.
    for length in (5,) if layer.iterative else (5, 9):
        agree(compiled, layer, tokens(2, length))
    make()  # Layers can be built after one is compiled.


@pytest.mark.parametrize("name", ["bd_lru", "mamba2"])
def test_a_compiled_layer_trains_under_autocast(name):
    options = {"bd_lru": {"num_blocks": 4, "block_size": 2}, "mamba2": {"head_dim": 8}}
    layer = layers.build(name, hidden_size=8, **options[name])
    agree(torch.compile(layer, backend="eager"), layer, tokens(2, 5), autocast=True)


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
