"""Layers in exported graphs: any length, single steps, other runtimes."""

import subprocess
import sys

import pytest
import torch
from tests.layers.conftest import SMALLEST

from statemix import layers
from statemix.layers import LAYERS
from statemix.layers.exporting import DecodeStep, WholeSequence

WIDTH = 8
# An exported graph takes all iterations, and nobody is told that they were too few.
pytestmark = pytest.mark.filterwarnings("ignore:fp_.* has not converged")


def build(name):
    layer = layers.build(name, hidden_size=WIDTH, **SMALLEST.get(name, {}))
    layer.reset_parameters(torch.Generator().manual_seed(0))
    return layer


@pytest.fixture(params=list(LAYERS))
def layer(request):
    return build(request.param)


def exported(call):
    return torch.export.export(call, call.inputs(), dynamic_shapes=call.dynamic_shapes())


def arguments(call, *sizes):
    """Random input and state; a cache holds tokens only."""
    generator = torch.Generator().manual_seed(1)
    found = [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in call.inputs(*sizes)]
    if call.layer.name == "attention":
        found[-1] = torch.ones_like(found[-1])
    return found


def operators(program):
    """Names of all operators of a graph and of the graphs within it."""
    return {
        str(node.target)
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
    }


def near(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_graph_of_whole_sequences_serves_any_length(layer):
    # float64: a graph may multiply in another order, and iterations enlarge errors of rounding.
    whole = WholeSequence(layer.double())
    graph = exported(whole).module()
    # A single token, and chunks that end within a sequence.
    for batch, length in ((3, 1), (1, 131)):
        given = arguments(whole, batch, length)
        torch.testing.assert_close(graph(*given), whole(*given), rtol=1e-10, atol=1e-10)


def test_a_graph_on_the_loop_runs_where_gradients_are_enabled():
    """Its parameters ask for gradients, and some functions of the loop have none."""
    whole = WholeSequence(layers.HLRU(WIDTH, num_channels=4, order=3, backend="loop"))
    given = arguments(whole, 3, 100)
    near(exported(whole).module()(*given), whole(*given))


@torch.no_grad()
def test_a_graph_of_a_step_has_only_operators_of_pytorch(layer):
    step = DecodeStep(layer.bfloat16())
    program = exported(step)
    assert not [name for name in operators(program) if name.startswith("statemix")]
    for batch in (1, 3):
        given = arguments(step, batch)
        found, expected = program.module()(*given), step(*given)
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@torch.no_grad()
def test_a_backend_that_is_named_is_kept():
    layer = layers.BDLRU(WIDTH, num_blocks=3, block_size=3, backend="loop")
    assert "statemix.scan_forward.default" in operators(exported(DecodeStep(layer)))


# A layer of our operators, one of PyTorch's, and one whose state grows.
@pytest.mark.slow
@torch.no_grad()
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("layer", ["bd_lru", "lstm", "attention"], indirect=True)
def test_a_step_runs_in_onnxruntime(layer, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    step = DecodeStep(layer)
    program = torch.onnx.export(
        step, step.inputs(), dynamic_shapes=step.dynamic_shapes(), dynamo=True, verbose=False
    )
    program.save(tmp_path / "step.onnx")
    session = runtime.InferenceSession(tmp_path / "step.onnx")
    assert not [node.domain for node in program.model.graph if "statemix" in node.domain]
    for batch in (1, 3):
        given = arguments(step, batch)
        named = {one.name: x.numpy() for one, x in zip(session.get_inputs(), given, strict=True)}
        near(map(torch.from_numpy, session.run(None, named)), step(*given))


# Loads a package where the modules named after it cannot be imported.
LOADER = """
import sys
package, tensors, *hidden = sys.argv[1:]
sys.modules.update(dict.fromkeys(hidden))
import torch
if "statemix" not in hidden:
    import statemix.ops
given, expected = torch.load(tensors)
model = torch._inductor.aoti_load_package(package)
for found, wanted in zip(model(*given), expected, strict=True):
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
print("equal")
"""


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "call", "sizes", "hidden"),
    [
        ("h_lru", DecodeStep, (3,), ["statemix"]),
        ("bd_lru", WholeSequence, (3, 21), ["statemix.layers"]),
    ],
)
@torch.no_grad()
def test_packages_load_without_the_source_of_the_model(name, call, sizes, hidden, tmp_path):
    """A step needs PyTorch alone; a sequence, the operators of this library."""
    built = call(build(name))
    package = str(tmp_path / "layer.pt2")
    torch._inductor.aoti_compile_and_package(exported(built), package_path=package)
    given = arguments(built, *sizes)
    torch.save((given, built(*given)), tmp_path / "tensors.pt")
    command = [sys.executable, "-c", LOADER, package, str(tmp_path / "tensors.pt"), *hidden]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "iterate"}, "max_iterations must be given, and window must be None"),
        ({"max_iterations": 2, "window": 4}, "max_iterations must be given, and window must be"),
        ({}, "solver must be 'iterate', or mixer_inputs 'token'"),
    ],
)
def test_solutions_must_not_depend_on_the_length(options, message):
    whole = WholeSequence(layers.FPRNN(8, **options))
    with pytest.raises(ValueError, match=message):
        exported(whole)


def test_bad_arguments_are_named():
    layer = layers.LSTM(WIDTH)
    with pytest.raises(TypeError, match="layer must be a Layer, got Linear"):
        DecodeStep(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="state must be 2 tensors, got 1"):
        DecodeStep(layer)(torch.zeros(1, WIDTH), torch.zeros(1, WIDTH))
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        DecodeStep(layer).inputs(0)
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        WholeSequence(layer).inputs(2, 0)
