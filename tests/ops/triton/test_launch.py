"""Launches of the Triton kernels, in its interpreter: ``make test-triton``."""

import os

import pytest
import torch
from tests.ops.conftest import in_pairs

from statemix import ops
from statemix.ops import registered
from statemix.ops.packing import Chunks

pytest.importorskip("triton", reason="Triton is not installed")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")
# One family for each kind of kernel.
KINDS = [("blocks", "softmax"), ("lags", "softmax"), ("blocks", "householder")]
every_kernel = pytest.mark.parametrize(("kind", "gate"), KINDS)
KERNELS = ("local_forward", "local_backward", "chunk_forward", "chunk_backward")


def stubbed(monkeypatch, launched):
    """Replace each kernel by ``launched(name, kernel, grid, arguments, options)``."""
    # Imports Triton.
    from statemix.ops.triton import launch

    class Stub:
        def __init__(self, name, kernel):
            self.name, self.kernel = name, kernel

        def __getitem__(self, grid):
            return lambda *arguments, **options: launched(
                self.name, self.kernel, grid, arguments, options
            )

    for name in KERNELS:
        monkeypatch.setattr(launch.kernels, name, Stub(name, getattr(launch.kernels, name)))
    monkeypatch.setattr(launch, "carries", Stub("carries", launch.carries))
    return launch


@pytest.mark.parametrize("chunk", [0, 3])
@every_kernel
def test_bounds_of_packed_sequences_are_not_read_back(problem, monkeypatch, kind, gate, chunk):
    """Tensors on meta have no values: copying one to the CPU, by item, tolist or an if, fails."""
    launches = []
    stubbed(monkeypatch, lambda name, *_: launches.append(name))
    operator, backend = {"blocks": "block", "lags": "lag"}[kind], ops.in_chunks(chunk)
    p = problem(kind, lengths=[4, 0, 3], gate=gate).on("meta")
    scan = ops.Scan(*p.leaves, p.cu_seqlens, None, operator, backend, gate, True)
    states, final_state, saved = scan.kernel.forward(scan)
    cotangents = torch.empty_like(states), torch.empty_like(final_state)
    d_gates, _, _ = scan.kernel.backward(scan, *cotangents, states, saved)
    wanted = [("chunk_forward", "carries"), ("chunk_backward", "carries")] if chunk else [(), ()]
    assert launches == [*wanted[0], "local_forward", *wanted[1], "local_backward"]
    assert d_gates.shape == p.gates.shape


@needs_interpreter
@in_pairs(bounds=[[3, 1, 9, 2], [-5, -1, 99, 4]], chunk=[0, 2], **{"kind,gate": KINDS})
def test_bounds_that_nothing_checked_are_made_right(
    problem, agree, monkeypatch, kind, gate, chunk, bounds
):
    """On a GPU, bounds are not read; outputs are written whatever they are."""
    monkeypatch.setattr(registered, "check_cu_seqlens_values", lambda *_: None)
    p = problem(kind, lengths=[2, 3, 2], gate=gate).to(torch.float32)
    given = torch.tensor(bounds, dtype=torch.int32)
    found = p.replace(cu_seqlens=given).outcome(gate, backend=ops.in_chunks(chunk))
    right = p.to(torch.float64).replace(cu_seqlens=Chunks.of(given, 7, 7).bounds)
    agree(found, right.outcome(gate, backend="reference"))


@needs_interpreter
@in_pairs(lengths=[None, [3, 0, 2]], **{"kind,gate": KINDS})
def test_programs_of_a_kernel_may_run_in_any_order(
    problem, identical, monkeypatch, kind, gate, lengths
):
    """None reads what another one writes, and no two add to one number."""
    from triton.runtime.interpreter import interpreter_builder

    sizes = {"batch": 1, "length": 5, "blocks": 130, "size": 2, "lengths": lengths}
    p = problem(kind, gate=gate, **sizes).to(torch.float32)
    backend = ops.in_chunks(2)
    expected = p.outcome(gate, backend=backend)
    set_index, many = interpreter_builder.set_grid_idx, []

    def backwards(*index):
        grid = interpreter_builder.grid_dim
        many.append(grid != (1, 1, 1))
        set_index(*(count - 1 - i for count, i in zip(grid, index, strict=True)))

    monkeypatch.setattr(interpreter_builder, "set_grid_idx", backwards)
    found = p.outcome(gate, backend=backend)
    assert all(many)
    identical(found, expected)


@needs_interpreter
@every_kernel
def test_no_step_before_the_first_one_is_read(problem, monkeypatch, kind, gate):
    """A chunk of five steps and one of a single step, of which a thread reads four at once."""
    from triton.runtime.interpreter import interpreter_builder

    load, read, front = interpreter_builder.create_masked_load, [], 2**14

    def watched(pointers, mask, *rest):
        read.append(pointers.data[mask.data])
        return load(pointers, mask, *rest)

    monkeypatch.setattr(interpreter_builder, "create_masked_load", watched)
    p = problem(kind, batch=1, length=6, blocks=33, size=4, gate=gate).to(torch.float32)
    rooms = {}
    for name in ("gates", "values", "d_states"):
        inner = getattr(p, name).movedim(2, -1).contiguous()
        rooms[name] = torch.zeros(front + inner.numel())
        rooms[name][front:] = inner.flatten()
        p = p.replace(**{name: rooms[name][front:].view(inner.shape).movedim(-1, 2)})
    p.outcome(gate, backend=ops.in_chunks(5))
    for name, room in rooms.items():
        begin, size = room.data_ptr(), room.element_size()
        places = [(found.astype(int) - begin) // size for found in read]
        here = [found[(found >= 0) & (found < room.numel())] for found in places]
        assert sum(found.size for found in here), name
        assert all((found >= front).all() for found in here), name
