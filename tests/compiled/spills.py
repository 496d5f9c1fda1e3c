"""Compile the Triton kernels for GPUs that this machine lacks, and check what the compiler made.

The library launches its kernels on CPU tensors as on a GPU, but every launch only compiles. ``make
test-compiled`` runs all cases; the first, as in ``SAMPLE=12``, have pairs that others lack.
"""

import os
import re
import subprocess
import tempfile
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.ops.conftest import covering

from statemix import ops
from statemix.ops import selective_scan

triton = pytest.importorskip("triton", reason="Triton is not installed")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

TARGETS = {"sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
KINDS = [("bd_lru", "softmax"), ("bd_lru", "householder"), ("h_lru", "softmax")]
SIZES = [1, 2, 4, 5, 8]
DTYPES = [torch.bfloat16, torch.float32]
# Steps of a chunk, 0 for one chunk.
CUTS = {"pass": 0, "chunks": 16, "packed": 16}
AXES = {"size": SIZES, "kind": KINDS, "cut": list(CUTS), "target": list(TARGETS), "dtype": DTYPES}
# Rows in which each pair of values occurs, and then all others.
CASES = covering(**AXES)
CASES += [
    case
    for case in (dict(zip(AXES, values, strict=True)) for values in product(*AXES.values()))
    if case not in CASES
]
CASES = CASES[: int(os.environ.get("SAMPLE") or len(CASES))]


@pytest.fixture
def compiled(monkeypatch):
    """Return a function that makes launches compile for a target, and the list they go to."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    kernels, run = [], JITFunction.run

    def compile_only(self, *arguments, grid, warmup, **options):
        kernels.append(run(self, *arguments, grid=grid, warmup=True, **options))
        return kernels[-1]

    def compile_for(target):
        name = SimpleNamespace(
            get_current_target=lambda: triton.backends.compiler.GPUTarget(*TARGETS[target]),
            # Triton keeps the kernels of each device apart.
            get_current_device=lambda: target,
            get_current_stream=lambda device: 0,
        )
        # Without a GPU, asking for the present driver would raise an error.
        monkeypatch.setattr(driver, "_active", name)
        monkeypatch.setattr(torch.version, "hip", "7.0" if target == "gfx942" else None)
        return kernels

    monkeypatch.setattr(JITFunction, "run", compile_only)
    # The backend then accepts tensors of the CPU.
    monkeypatch.setattr("statemix.ops.triton._INTERPRETED", True)
    yield compile_for
    for chunk in {*CUTS.values()}:
        ops.BACKENDS.remove(ops.in_chunks(chunk))


def launch(operator, gate, size, dtype, cut, length=64):
    """Launch forward and backward of an operator once."""
    blocks = 192 if size == 1 else 128
    batch = 1 if cut == "packed" else 2

    def innermost(*shape):
        return torch.zeros(batch, length, *shape, blocks, dtype=dtype).movedim(-1, 2)

    rows = (size,) if operator == "bd_lru" else ()
    gates, values = (x.requires_grad_() for x in (innermost(*rows, size + 1), innermost(*rows)))
    state = torch.zeros(2 if cut == "packed" else batch, blocks, size)
    bounds = torch.tensor([0, 40, length]) if cut == "packed" else None
    states, _ = getattr(ops, operator)(
        gates, values, gate, state, cu_seqlens=bounds, backend=ops.in_chunks(CUTS[cut]),
        temperature=torch.tensor(2.0),
    )  # fmt: skip
    states.sum().backward()


def launch_selective(columns, dtype, length=64):
    """Launch forward and backward of the scan of Mamba once."""

    def zeros(*shape):
        return torch.zeros(*shape, dtype=dtype).requires_grad_()

    wide, narrow = (2, length, 192), (2, length, columns)
    outputs, _ = selective_scan.selective_scan(
        *(zeros(*wide), zeros(columns, 192), zeros(*wide)),
        *(zeros(*narrow), zeros(*narrow), zeros(2, columns, 192)),
    )
    outputs.sum().backward()


def spilled_bytes(kernel):
    """Return the bytes of registers that a thread keeps in memory."""
    if "cubin" not in kernel.asm:
        return 4 * int(re.search(r"\.vgpr_spill_count:\s+(\d+)", kernel.asm["amdgcn"])[1])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_no_register_spills_and_nothing_adds_atomically(compiled, case):
    target, cut = case["target"], case["cut"]
    kernels = compiled(target)
    launch(*case["kind"], case["size"], case["dtype"], cut)
    # Chunks take four more: maps and what leaves a chunk, and following these both ways.
    assert len(kernels) == (6 if CUTS[cut] else 2)
    for kernel in kernels:
        assert spilled_bytes(kernel) == 0, kernel.name
        # Atomic additions come in another order every time, and round otherwise.
        text = kernel.asm["ptx"] if target == "sm_90" else kernel.asm["amdgcn"]
        assert re.findall(r"\b(?:atom|red)\.\S*|\b\w*_atomic_\w*", text) == [], kernel.name


@pytest.mark.parametrize(
    ("target", "columns"), [("sm_90", 4), ("sm_90", 128), ("gfx942", 1), ("gfx942", 16)]
)
def test_no_register_of_the_selective_scan_spills(compiled, target, columns, monkeypatch):
    monkeypatch.setattr(selective_scan, "_kernels", lambda *_: selective_scan._TRITON)
    kernels = compiled(target)
    launch_selective(columns, torch.float32)
    assert [spilled_bytes(kernel) for kernel in kernels] == [0, 0]


def test_another_length_compiles_no_kernel(compiled, monkeypatch):
    kernels = compiled("sm_90")
    for length in (64, 96, 1040):
        launch("h_lru", "softmax", 1, torch.bfloat16, "chunks", length)
    assert len({id(kernel) for kernel in kernels}) == 6
    monkeypatch.setattr(selective_scan, "_kernels", lambda *_: selective_scan._TRITON)
    kernels.clear()
    for length in (64, 95, 1):
        launch_selective(4, torch.float32, length)
    assert len({id(kernel) for kernel in kernels}) == 2
