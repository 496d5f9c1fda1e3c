"""Every size of the Triton kernels: gradients of 16 bits, gate families, and the maps of chunks.

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


# Largest error of a gradient over its largest entry, by the size m: about 1.3 times the largest of
# three seeds in the interpreter, which truncates to bfloat16, but no less than two roundings to the
# nearest, of the states before and of the result: 2^-7.
SIZES = range(1, 17)
OF_BFLOAT16 = (
    0.0095, 0.0085, 0.011, 0.0098, 0.0086, 0.008, 0.008, 0.0085,
    0.012, 0.01, 0.008, 0.01, 0.012, 0.01, 0.0115, 0.0098,
)  # fmt: skip
BOUNDS = {
    torch.bfloat16: dict(zip(SIZES, OF_BFLOAT16, strict=True)),
    # Rounded to the nearest in the interpreter, too: two roundings of half a unit.
    torch.float16: dict.fromkeys(SIZES, 2.0**-10),
}


def moved(p):
    names = "gates", "values", "initial_state", "d_states", "d_final_state"
    p = p.replace(**{name: getattr(p, name).to(DEVICE) for name in names})
    return p if p.cu_seqlens is None else p.replace(cu_seqlens=p.cu_seqlens.to(DEVICE))


def outcome(p, gate, chunk):
    found = moved(p).outcome(gate, backend=ops.in_chunks(chunk))
    return {name: tensor.cpu() for name, tensor in found.items()}


@every_kernel
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_16_bits_are_near_those_of_float64(problem, kind, gate, size, dtype):
    check_16_bits(problem(kind, batch=1, length=2, size=size, gate=gate).to(dtype), gate, 0)


@every_kernel
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_16_bits_in_chunks_are_as_near(problem, kind, gate, size, dtype):
    check_16_bits(problem(kind, batch=1, length=2, size=size, gate=gate).to(dtype), gate, 1)


@pytest.fixture
def instructions(monkeypatch):
    """Give the interpreter the approximate instructions of NVIDIA's GPUs, with their errors."""
    if DEVICE == "cuda":
        return
    # Imports Triton.
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    from statemix.ops.triton.kernels import rows

    def approximate(function, most):
        def instruction(x):
            data = x.handle.data
            exact = function(data.astype(np.float64))
            # Errors of both signs, up to the largest one.
            found = (exact * (1 + most * np.sin(1e4 * np.frexp(data)[0]))).astype(np.float32)
            found[np.abs(found) < np.finfo(np.float32).tiny] = 0
            return tl.tensor(TensorHandle(found, tl.float32), x.type)

        return instruction

    monkeypatch.setattr(rows, "nvidia", lambda: True)
    monkeypatch.setattr(rows, "_approximate_tanh", approximate(np.tanh, 2.0**-11))
    monkeypatch.setattr(rows, "_approximate_reciprocal", approximate(np.reciprocal, 2.0**-23))


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("kind", ["blocks", "lags"])
@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_tanh_with_11_digits_are_as_near(problem, kind, size, chunk):
    p = problem(kind, batch=1, length=2, size=size, gate="tanh").to(torch.bfloat16)
    # Of two steps, each with this error in a weight and in the normaliser.
    check_16_bits(p, "tanh", chunk, of_float32=4 * 2.0**-11)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("gate", ["softmax", "sigmoid", "relu", "signed", "tanh", "householder"])
def test_reciprocals_but_for_the_last_bit_will_do(problem, agree, gate):
    p = problem("blocks", length=5, blocks=9, size=3, gate=gate).to(torch.float32)
    agree(outcome(p, gate, 2), p.to(torch.float64).outcome(gate, backend="reference"))


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("gate", ["relu", "signed"])
@pytest.mark.parametrize(("unit", "temperature"), [("largest", None), (0.0, 1.18e-38)])
def test_normalisers_of_extreme_gates_have_reciprocals(problem, agree, gate, unit, temperature):
    """The largest sum of a row, and epsilon at the smallest temperatures."""
    p = problem("lags", length=4, blocks=9, size=16, gate=gate).to(torch.float32)
    if unit == "largest":
        p = p.replace(gates=p.gates.sign() * torch.finfo(torch.float32).max)
    else:
        p = p.replace(gates=p.gates * 0)
    for chunk in (0, 1):
        found = moved(p).outcome(gate, temperature=temperature, backend=ops.in_chunks(chunk))
        exact = p.to(torch.float64)
        exact = exact.outcome(gate, temperature=temperature, backend="reference")
        # Gradients of gates are divided by the size of these or by the temperature.
        names = exact.keys() - {"d_gates"}
        agree(*({name: one[name].cpu() for name in names} for one in (found, exact)))


def check_16_bits(p, gate, chunk, of_float32=None):
    size, dtype = p.initial_state.shape[-1], p.values.dtype
    found = outcome(p, gate, chunk)
    expected = p.to(torch.float64).outcome(gate, backend="reference")
    for name, bound in (
        ("d_gates", BOUNDS[dtype][size]),
        ("d_values", BOUNDS[dtype][size]),
        # In float32, from states of 16 bits that are not the first one.
        ("d_initial_state", of_float32 or 0.01 * torch.finfo(dtype).eps),
    ):
        error = (found[name].double() - expected[name]).abs().max()
        assert error <= bound * expected[name].abs().max(), name


def test_bounds_of_bfloat16_are_two_percent_at_most():
    assert max(OF_BFLOAT16) <= 2e-2


# The others have softmax and householder. The interpreter takes seconds for large blocks.
FAMILIES = [
    (kind, gate, size)
    for kind, most in (("blocks", 5), ("lags", 16))
    for gate in ("sigmoid", "relu", "signed", "tanh", "none")
    for size in ((1, 2, 4, 5, 8, 16) if DEVICE == "cpu" else SIZES)
    if DEVICE == "cuda" or size <= most
]


@pytest.mark.parametrize(("kind", "gate", "size"), FAMILIES)
def test_every_family_of_every_size_equals_the_reference(problem, agree, kind, gate, size):
    """In three chunks, so that every kernel runs and a map is followed backward."""
    p = problem(kind, batch=1, length=5, blocks=9, size=size, gate=gate).to(torch.float32)
    expected = p.to(torch.float64).outcome(gate, backend="reference")
    agree(outcome(p, gate, 2), expected)


@pytest.mark.parametrize("lengths", [None, [2, 0, 3]], ids=["batch", "packed"])
@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize("size", [1, 4] if DEVICE == "cpu" else SIZES)
def test_coefficients_of_every_size_equal_the_reference(problem, agree, kind, size, chunk, lengths):
    """Given, and not normalised from gates."""
    scan = {"blocks": ops.block_scan, "lags": ops.lag_scan}[kind]

    def found(p, backend):
        leaves = [x.detach().requires_grad_() for x in (p.gates[..., :-1], *p.leaves[1:])]
        results = scan(*leaves, p.cu_seqlens, backend=backend)
        cotangents = p.d_states, p.d_final_state
        return dict(enumerate((*results, *torch.autograd.grad(results, leaves, cotangents))))

    p = problem(kind, length=5, size=size, gate="none", lengths=lengths).to(torch.float32)
    actual = found(moved(p), ops.in_chunks(chunk))
    agree(actual, found(p.to(torch.float64), "reference"))


@every_kernel
@pytest.mark.parametrize("size", [6, 7, 9, *range(11, 17)])
def test_maps_of_every_size_equal_the_reference(problem, agree, kind, gate, size):
    p = problem(kind, batch=1, length=3, blocks=1, size=size)
    found = outcome(p.to(torch.float32), gate, 1)
    agree(found, p.to(torch.float32).to(torch.float64).outcome(gate, backend="reference"))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
# PyTorch warns of its prototype, which would be an error here.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
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
