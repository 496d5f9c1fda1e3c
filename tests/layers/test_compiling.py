"""Every layer compiled and exported: second lengths, packed rows, steps, autocast, other dtypes."""

import os
import shutil

import pytest
import torch

from statemix import layers
from statemix.layers import DecodeStep, WholeSequence

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
    for length in (5, 9):
        agree(compiled, layer, tokens(2, length))


@pytest.mark.parametrize("case", ["packed", "autocast"])
def test_a_compiled_layer_takes_packed_rows_and_autocast(make, case):
    layer = make()
    compiled = torch.compile(layer, backend="eager")
    if case == "autocast":  # The test above compiles for a second length.
        agree(compiled, layer, tokens(2, 5), autocast=True)
        return
    for length in (5, 9):
        bounds = torch.tensor([0, 2, 2, length])
        agree(compiled, layer, tokens(1, length), cu_seqlens=bounds)


def test_a_compiled_step_takes_a_second_batch(make):
    layer = make()
    step = torch.compile(layer.step, backend="eager")
    for batch in (2, 3):
        with torch.no_grad():
            x, state = tokens(batch, 1)[:, 0], layer.init_state(batch)
            torch.testing.assert_close(step(x, state), layer.step(x, state))


CHUNKED = [
    ("delta_net", {"num_heads": 2}),
    ("delta_product", {"num_heads": 2, "num_householder": 2, "use_forget_gate": True}),
    ("mamba2", {"d_state": 4, "head_dim": 8}),
]


def test_layers_can_be_built_after_one_is_compiled(make):
    torch.compile(make(), backend="aot_eager")(tokens(2, 4))
    make()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), CHUNKED)
def test_a_compiled_layer_trains_at_lengths_of_several_chunks(name, options):
    layer = layers.build(name, hidden_size=8, **options)
    compiled = torch.compile(layer, backend="aot_eager")
    for length in (70, 100):
        agree(compiled, layer, tokens(2, length))


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="Inductor needs a C++ compiler"
)
@pytest.mark.parametrize("name", ["bd_lru", "delta_net"])
def test_the_default_compiler_trains_at_a_second_length(name):
    options = {"bd_lru": {"num_blocks": 4, "block_size": 2}, "delta_net": {"num_heads": 2}}
    layer = layers.build(name, hidden_size=8, **options[name])
    compiled = torch.compile(layer)
    for length in (5, 9):
        agree(compiled, layer, tokens(2, length))


@pytest.mark.parametrize("kind", [WholeSequence, DecodeStep])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_layer_is_exported_in_other_dtypes(make, kind, dtype):
    layer = make(dtype=dtype)
    call = kind(layer)
    program = torch.export.export(call, call.inputs(), dynamic_shapes=call.dynamic_shapes())
    shape = (3, 6) if kind is WholeSequence else (3, 1)
    x = tokens(*shape, dtype)
    x = x if kind is WholeSequence else x[:, 0]
    state = [part[:1].expand(3, *part.shape[1:]).clone() for part in call.inputs()[1:]]
    with torch.no_grad():
        found, expected = program.module()(x, *state), call(x, *state)
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(found, expected, **tolerance)
