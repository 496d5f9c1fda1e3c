"""The compiled kernels: every instruction set, any number of threads, and missing kernels."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from tests.ops.conftest import FAMILIES, RECURRENCES, in_pairs

from statemix import ops
from statemix.ops import backends, cpu
from statemix.ops.cpu import loader

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.kernels
@in_pairs(**{"kind,gate": FAMILIES}, size=[1, 4, 9], channels=[None, 3], dtype=DTYPES)
def test_kernels_equal_the_reference(problem, agree, kind, gate, size, channels, dtype):
    """A small grid, which also runs once per instruction set (see below)."""
    channels = channels if kind == "blocks" else None
    for blocks, lengths in [(21, None), (3, (2, 0, 3))]:
        sizes = {"blocks": blocks, "size": size, "channels": channels, "lengths": lengths}
        p = problem(kind, **sizes, gate=gate).to(dtype)
        expected = p.to(torch.float64).outcome(gate, backend="reference")
        agree(p.outcome(gate, backend="cpu"), expected)


@pytest.mark.kernels
@in_pairs(
    **{
        "kind,blocks,size,gate,channels": [
            # 48 and 40 blocks are no whole numbers of vectors in bfloat16, and in any dtype.
            ("blocks", 48, 3, "sigmoid", None), ("lags", 40, 4, "softmax", None),
            ("blocks", 40, 3, "householder", None), ("lags", 64, 2, "tanh", None),
            ("blocks", 64, 5, "signed", None), ("lags", 64, 3, "relu", None),
            ("blocks", 64, 4, "none", None), ("blocks", 64, 4, "softmax", 3),
        ]
    },
    dtype=DTYPES,
)  # fmt: skip
def test_kernels_equal_themselves_on_parts_of_a_large_problem(
    problem, identical, kind, blocks, size, gate, channels, dtype
):
    """A problem repeated in time is bit-identical to the rows of its batch by themselves.

    The whole problem streams or fetches its gradients; one row of the batch does not. Three threads
    divide a row between tiles.
    """
    sizes = {"batch": 2, "length": 4, "blocks": blocks, "size": size, "channels": channels}
    p = problem(kind, **sizes, gate=gate).to(dtype)
    repeats = (12 << 20) // (p.gates.numel() * p.gates.element_size())
    large = p.replace(
        **{
            name: getattr(p, name).repeat(1, repeats, *(1,) * (getattr(p, name).ndim - 2))
            for name in ("gates", "values", "d_states")
        }
    )
    torch.set_num_threads(3)
    whole = large.outcome(gate, backend="cpu")
    for row in range(2):
        names = ("gates", "values", "initial_state", "d_states", "d_final_state")
        part = large.replace(**{name: getattr(large, name)[row : row + 1] for name in names})
        expected = {name: tensor[row : row + 1] for name, tensor in whole.items()}
        identical(part.outcome(gate, backend="cpu"), expected)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_are_flat_where_tanh_is_one(problem, kind, dtype):
    """There 1 - tanh(g)^2 is less than the rounding of 1; its sign may not be that rounding's."""
    p = problem(kind, blocks=21).to(dtype)
    gates = p.gates.sign() * torch.linspace(10, 60, p.gates.numel()).view_as(p.gates).to(dtype)
    d_gates = p.replace(gates=gates).outcome("tanh", backend="cpu")["d_gates"]
    assert d_gates.abs().max() < 1e-8


# NaNs whose last bits are ones: the exponential moves such bits into the exponent.
NANS = {
    torch.float64: torch.tensor(0x7FF80000000003FF, dtype=torch.int64).view(torch.float64),
    torch.float32: torch.tensor(0x7FC000FF, dtype=torch.int32).view(torch.float32),
}


@pytest.mark.kernels
@in_pairs(dtype=list(NANS), gate=["softmax", "sigmoid", "tanh"], kind=["blocks", "lags"])
def test_kernels_are_nan_where_a_gate_is(problem, kind, gate, dtype):
    p = problem(kind, batch=2, length=2, blocks=21, size=3, gate=gate).to(dtype)
    p.gates[0, 1, 4, ..., 2] = NANS[dtype]
    nan = p.outcome(gate, backend="cpu")["states"].isnan()
    assert nan[0, 1, 4].all()
    assert nan.sum() == nan[0, 1, 4].numel()


INSTRUCTION_SETS = ["baseline", "avx2", "avx512", "avx512_bf16"]
FOLDER = Path(__file__).parents[1]
FILES = [
    __file__,
    *(str(FOLDER / f"test_{name}.py") for name in ("extremes", "low_rank", "selective_scan")),
]
# Large problems in one dtype, which take longest.
TESTS_OF_EVERY_SET = (
    "equal_the_reference or (parts and bfloat16) or kernels_are or (cpu and stable)"
    " or (the_recurrence and cpu)"
)


@pytest.mark.kernels
@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_every_instruction_set_equals_the_reference(name):
    """Loading the library fixes the choice, hence a separate process."""
    best = INSTRUCTION_SETS.index(cpu.instruction_set())
    if INSTRUCTION_SETS.index(name) > best:
        pytest.skip(f"this processor has no {name}")
    if name == cpu.instruction_set():
        pytest.skip("the same tests of this process use it")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-k", TESTS_OF_EVERY_SET, *FILES],
        env=os.environ | {"STATEMIX_CPU_ISA": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout[-3000:]
    assert " passed" in tests.stdout


@pytest.mark.kernels
@in_pairs(dtype=DTYPES, sequences=[1, 3, (5, 0, 2)], kind=["blocks", "lags"])
def test_number_of_threads_changes_no_bit(problem, identical, kind, sequences, dtype):
    packed = {"lengths": sequences} if isinstance(sequences, tuple) else {"batch": sequences}
    p = problem(kind, blocks=150, size=5, **packed).to(dtype)
    expected = p.outcome(backend="cpu")
    for number in (2, 3, 4, 7, 16):
        torch.set_num_threads(number)
        identical(p.outcome(backend="cpu"), expected)


@pytest.fixture
def without_kernels(monkeypatch, tmp_path):
    """Simulates a machine without a compiler."""
    library, reason = loader.load(tmp_path / "kernels.so")
    monkeypatch.setattr(loader, "_library", library)
    monkeypatch.setattr(loader, "_reason", reason)
    backends._warned.clear()
    yield
    backends._warned.clear()


def test_a_library_that_is_damaged_or_of_other_sources_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "kernels.so"
    path.write_bytes(b"not a library")
    library, reason = loader.load(path)
    assert library is None
    assert "too short" in reason or "invalid" in reason
    assert "reinstall statemix" in reason
    if loader.LIBRARY.exists():
        # An editable installation keeps its old library when the sources change.
        monkeypatch.setattr(loader, "INTERFACE_VERSION", loader.INTERFACE_VERSION + 1)
        library, reason = loader.load(loader.LIBRARY)
        assert library is None
        assert "built from other sources: reinstall statemix" in reason


def test_the_interface_is_the_one_of_the_header():
    """Every member of both structs, in order, and the version and the families."""
    header = loader.LIBRARY.with_name("interface.h").read_text()
    for struct in (loader._Problem, loader._SelectiveScan):
        body = header.partition(f"struct {struct.__name__[1:]} {{")[2].partition("};")[0]
        code = re.sub(r"//.*", "", body)
        members = [
            name.strip(" *")
            for declaration in code.split(";")
            for name in re.sub(r"^\s*(const )?(int64_t|double|void)\b", "", declaration).split(",")
            if name.strip()
        ]
        assert members == [name for name, _ in struct._fields_]
    assert f"kInterfaceVersion = {loader.INTERFACE_VERSION};" in header
    for number, family in enumerate((*loader.FAMILIES, "given")):
        assert f"{family.upper()} = {number}" in header


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_missing_kernels_are_replaced_by_the_loop_with_one_warning(problem, identical, kind):
    p = problem(kind)
    for function in (cpu.instruction_set, lambda: p.outcome(backend="cpu")):
        with pytest.raises(ops.BackendUnavailableError, match=r"install a C\+\+ compiler"):
            function()
    with pytest.warns(RuntimeWarning, match=r"slow backend 'loop' .* install a C\+\+") as caught:
        outcome = p.outcome()
    assert len(caught) == 1
    assert caught[0].filename.endswith("conftest.py")  # where the recurrence is called
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        identical(p.outcome(), outcome)
        # Nor do they break a compiled graph.
        torch._dynamo.reset()
        compiled = torch.compile(RECURRENCES[kind], backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(
            compiled(p.gates, p.values), RECURRENCES[kind](p.gates, p.values)
        )
    identical(outcome, p.outcome(backend="loop"))
