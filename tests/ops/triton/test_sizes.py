"""Every size of the Triton kernels: gradients of 16 bits, and the maps of chunks; packed on GPUs.

The interpreter must be chosen before Triton is imported: ``make test-triton``.
"""

import os

import pytest
import torch

from statemix import ops
from statemix.ops.backends import reason_of

pytestmark = pytest.mark.skipif(reason_of("triton") is not None, reason=str(reason_of("triton")))

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
# One family for each module of kernels.
every_kernel = pytest.mark.parametrize(
    ("kind", "gate"), [("blocks", "softmax"), ("lags", "softmax"), ("blocks", "householder")]
)


# Largest error of a gradient over its largest entry, in units of its dtype's epsilon, at every
# size: two roundings, of the states before and of the result, each of half a unit. The
# interpreter's bfloat16 has twice the error of its float16.
BOUNDS = {torch.bfloat16: 1.5, torch.float16: 1.0}


def moved(p):
    names = "gates", "values", "initial_state", "d_states", "d_final_state"
    p = p.replace(**{name: getattr(p, name).to(DEVICE) for name in names})
    return p if p.cu_seqlens is None else p.replace(cu_seqlens=p.cu_seqlens.to(DEVICE))


def outcome(p, gate, chunk):
    found = moved(p).outcome(gate, backend=ops.in_chunks(chunk))
    return {name: tensor.cpu() for name, tensor in found.items()}


@every_kernel
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("size", range(1, 17))
def test_gradients_of_16_bits_are_near_those_of_float64(problem, kind, gate, size, dtype):
    p = problem(kind, batch=1, length=2, size=size, gate=gate).to(dtype)
    found = outcome(p, gate, 0)
    expected = p.to(torch.float64).outcome(gate, backend="reference")
    for name, bound in (
        ("d_gates", BOUNDS[dtype]),
        ("d_values", BOUNDS[dtype]),
        # In float32, from states of 16 bits that are not the first one.
        ("d_initial_state", 0.01),
    ):
        error = (found[name].double() - expected[name]).abs().max()
        assert error <= bound * torch.finfo(dtype).eps * expected[name].abs().max(), name


@every_kernel
@pytest.mark.parametrize("size", [6, 7, 9, *range(11, 17)])
def test_maps_of_every_size_equal_the_reference(problem, agree, kind, gate, size):
    p = problem(kind, batch=1, length=2, blocks=1, size=size)
    found = outcome(p.to(torch.float32), gate, 1)
    agree(found, p.to(torch.float32).to(torch.float64).outcome(gate, backend="reference"))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@every_kernel
@pytest.mark.parametrize("chunk", [0, 3])
def test_bounds_of_packed_sequences_are_never_read_back(problem, kind, gate, chunk):
    p = moved(problem(kind, lengths=[4, 0, 3]).to(torch.float32))
    backend = ops.in_chunks(chunk)
    p.outcome(gate, backend=backend)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        p.outcome(gate, backend=backend)
    finally:
        torch.cuda.set_sync_debug_mode("default")
