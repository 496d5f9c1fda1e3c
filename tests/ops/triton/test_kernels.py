"""Triton kernels against the reference, in Triton's interpreter or on a GPU.

The interpreter must be chosen before Triton is imported: ``make test-triton``.
"""

import os

import pytest
import torch
from tests.ops.conftest import SCANS, in_pairs
from torch._dynamo.testing import CompileCounterWithBackend

from statemix import ops
from statemix.ops.backends import reason_of
from statemix.ops.triton.plan import shape_of

pytestmark = pytest.mark.skipif(reason_of("triton") is not None, reason=str(reason_of("triton")))

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
# One family for each kind of kernel.
KINDS = [("blocks", "softmax"), ("lags", "softmax"), ("blocks", "householder")]
FAMILIES = [
    (kind, gate)
    for kind in ("blocks", "lags")
    for gate in ("sigmoid", "relu", "signed", "tanh", "none")
]
every_kernel = pytest.mark.parametrize(("kind", "gate"), KINDS)
# Sequences in one chunk, or in chunks of three or four steps, of which the last may be shorter.
CHUNKS = [0, 3, 4]
# The interpreter takes seconds for large blocks.
SIZES = [1, 2, 3, 4, 8, 13, 16] if DEVICE == "cpu" else range(1, 17)
PACKED = [None, [3, 0, 4, 1]]


def outcomes(p, gate="softmax", *, chunk=0, dtype=torch.float32, temperature=None):
    """Results of the kernels on a problem in some dtype, and those of the reference in float64."""
    rounded = p.to(dtype)
    exact = rounded.to(torch.float64)
    expected = exact.outcome(gate, temperature=temperature, backend="reference")
    backend = ops.in_chunks(chunk)
    actual = rounded.on(DEVICE).outcome(gate, temperature=temperature, backend=backend)
    return {name: tensor.cpu() for name, tensor in actual.items()}, expected


def without_gates(*outcomes):
    """Gradients of gates are divided by the size of these or by the temperature, and overflow."""
    return [{n: t for n, t in found.items() if n != "d_gates"} for found in outcomes]


@in_pairs(
    **{"kind,gate": KINDS},
    sizes=[
        # Of 10 rows, a thread reads a part at once.
        *({"batch": 1, "length": 7, "blocks": 2, "size": m} for m in (5, 10, *SIZES[8:])),
        {"batch": 0, "length": 3, "blocks": 2, "size": 2},
        {"batch": 2, "length": 0, "blocks": 3, "size": 2},
        {"batch": 2, "length": 3, "blocks": 0, "size": 2},
        {"batch": 3, "length": 2, "blocks": 33, "size": 1},
        {"lengths": [3, 0, 4, 1], "blocks": 2, "size": 8},
        {"lengths": [2, 2, 2], "size": 4},
        {"lengths": [0, 5, 0], "size": 3},
        {"lengths": [], "size": 3},
        {"lengths": [0, 0], "size": 1},
    ],
    chunk=CHUNKS,
    dtype=[torch.float32, torch.float64],
)
def test_every_size_equals_the_reference(problem, agree, kind, gate, sizes, chunk, dtype):
    agree(*outcomes(problem(kind, **sizes), gate, chunk=chunk, dtype=dtype))


@in_pairs(
    **{"kind,gate": FAMILIES},
    size=[3, 1, 4],
    chunk=CHUNKS,
    lengths=PACKED,
    temperature=[0.7, None],
    dtype=[torch.float32, torch.float64],
)
def test_every_family_equals_the_reference(
    problem, agree, kind, gate, size, chunk, lengths, temperature, dtype
):
    p = problem(kind, length=5, blocks=9, size=size, gate=gate, lengths=lengths)
    agree(*outcomes(p, gate, chunk=chunk, temperature=temperature, dtype=dtype))


@in_pairs(kind=["blocks", "lags"], size=[1, 4], chunk=[0, 2], lengths=PACKED)
def test_given_coefficients_equal_the_reference(problem, agree, kind, size, chunk, lengths):
    def found(p, backend):
        leaves = [x.detach().requires_grad_() for x in (p.gates[..., :-1], *p.leaves[1:])]
        results = SCANS[kind](*leaves, p.cu_seqlens, backend=backend)
        cotangents = p.d_states, p.d_final_state
        return dict(enumerate((*results, *torch.autograd.grad(results, leaves, cotangents))))

    p = problem(kind, length=5, size=size, gate="none", lengths=lengths).to(torch.float32)
    agree(found(p.on(DEVICE), ops.in_chunks(chunk)), found(p.to(torch.float64), "reference"))


@in_pairs(**{"kind,gate": KINDS}, size=[1, 2, 3, 4], chunked=[False, True])
def test_steps_that_are_read_at_once_equal_the_reference(problem, agree, kind, gate, size, chunked):
    """Twice as many steps as a thread reads at once, and one that is left; or chunks of so many."""
    kernels = {"blocks": "block", "lags": "lag"}[kind] if gate == "softmax" else "reflect"
    kernel = "chunk_forward" if chunked else "local_forward"
    steps, _, _ = shape_of(kernels, kernel, size, 4)
    length, chunk = (4 * steps + 1, 2 * steps) if chunked else (2 * steps + 1, 0)
    agree(*outcomes(problem(kind, batch=1, length=length, blocks=3, size=size), gate, chunk=chunk))
    if chunked and size == 1:
        # Sequences end within the 16 steps that a thread reads at once, and between two chunks.
        p = problem(kind, lengths=[5, 11, 0, 7, 1, 9], blocks=2, size=1)
        agree(*outcomes(p, gate, chunk=16))


# Largest error of a gradient over its largest entry, by the size m: about 1.3 times the largest of
# three seeds in the interpreter, which truncates to bfloat16, but no less than two roundings to the
# nearest, of the states before and of the result: 2^-7.
OF_BFLOAT16 = (
    0.0095, 0.0085, 0.011, 0.0098, 0.0086, 0.008, 0.008, 0.0085,
    0.012, 0.01, 0.008, 0.01, 0.012, 0.01, 0.0115, 0.0098,
)  # fmt: skip


def check_16_bits(p, agree, tolerances_of, gate, chunk, of_float32=None):
    dtype = p.values.dtype
    # float16 is rounded to the nearest in the interpreter, too: two roundings of half a unit.
    bounds = OF_BFLOAT16 if dtype == torch.bfloat16 else [2.0**-10] * 16
    most = bounds[p.initial_state.shape[-1] - 1]
    found, expected = outcomes(p, gate, chunk=chunk, dtype=dtype)
    assert found["states"].dtype == found["d_gates"].dtype == dtype
    assert found["final_state"].dtype == found["d_initial_state"].dtype == torch.float32
    for name, bound in (
        ("d_gates", most),
        ("d_values", most),
        # In float32, from states of 16 bits that are not the first one.
        ("d_initial_state", of_float32 or 0.01 * torch.finfo(dtype).eps),
    ):
        error = (found[name].double() - expected[name]).abs().max()
        assert error <= bound * expected[name].abs().max(), name
    results = [{n: x[n] for n in ("states", "final_state")} for x in (found, expected)]
    agree(*results, tolerances_of("triton", dtype))


@in_pairs(**{"kind,gate": KINDS}, size=SIZES, chunk=[0, 1], dtype=[torch.bfloat16, torch.float16])
def test_results_of_16_bits_are_near_those_of_float64(
    problem, agree, tolerances_of, kind, gate, size, chunk, dtype
):
    p = problem(kind, batch=1, length=2, blocks=2, size=size, gate=gate)
    check_16_bits(p.to(dtype), agree, tolerances_of, gate, chunk)


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
@in_pairs(kind=["blocks", "lags"], chunk=[0, 1], size=[1, 3, 16])
def test_gradients_of_tanh_with_11_digits_are_as_near(
    problem, agree, tolerances_of, kind, chunk, size
):
    p = problem(kind, batch=1, length=2, blocks=2, size=size, gate="tanh").to(torch.bfloat16)
    # Of two steps, each with this error in a weight and in the normaliser.
    near = {dtype: 2 * limit for dtype, limit in tolerances_of("triton", torch.bfloat16).items()}
    check_16_bits(p, agree, lambda *_: near, "tanh", chunk, of_float32=4 * 2.0**-11)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("gate", ["softmax", "sigmoid", "relu", "signed", "tanh", "householder"])
def test_reciprocals_but_for_the_last_bit_will_do(problem, agree, gate):
    agree(*outcomes(problem("blocks", length=5, blocks=9, gate=gate), gate, chunk=2))
    if gate in ("relu", "signed"):
        # The largest sum of a row, and epsilon at the smallest temperatures.
        p = problem("lags", length=4, blocks=9, size=16, gate=gate)
        largest = torch.finfo(torch.float32).max
        for gates, temperature in ((p.gates.sign() * largest, None), (p.gates * 0, 1.18e-38)):
            for chunk in (0, 1):
                options = {"chunk": chunk, "temperature": temperature}
                agree(*without_gates(*outcomes(p.replace(gates=gates), gate, **options)))


def test_rows_that_32_bits_cannot_reach_are_copied():
    """Products of a stride and a place in a row are numbers of 32 bits."""
    # Imports Triton.
    from statemix.ops.triton.launch import _ordered

    for stride, copied in ((2**31 // 3 + 1, True), (2**31 // 3, False)):
        far = torch.empty_strided((1, 1, 1, 3), (1, 1, 1, stride), device="meta")
        assert (_ordered(far).stride() == (3, 3, 1, 1)) == copied


@every_kernel
@pytest.mark.parametrize("chunk", [0, 3])
def test_sequences_do_not_touch_each_other(problem, kind, gate, chunk):
    """Not even by a NaN, which 0 does not stop."""
    p = problem(kind, lengths=[4, 8, 3]).to(torch.float32)
    p.values[0, 1] = torch.nan
    p.d_states[0, 13] = torch.nan
    found, _ = outcomes(p, gate, chunk=chunk)
    assert found["states"][0, 1:4].isnan().any()
    assert found["d_values"][0, 12:].isnan().any()
    for name in ("states", "d_gates", "d_values"):
        assert found[name][0, 4:12].isfinite().all()
    for name in ("final_state", "d_initial_state"):
        assert found[name][1].isfinite().all()


NEAR = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}


@in_pairs(
    kind=["blocks", "lags"],
    dtype=list(NEAR),
    scale=[2.0**-64, 1.0, 2.0**20, 2.0**31, 2.0**59, "largest"],
    temperature=[None, 0.7, 1e-9, 1e-30, 1e30],
)
def test_huge_gates_at_every_temperature_equal_the_reference(
    problem, agree, kind, dtype, scale, temperature
):
    """Products of gates and log2 e round, and those near the largest number overflow."""
    p = problem(kind, length=4, blocks=9, size=4)
    unit = torch.finfo(dtype).max / p.gates.abs().max() if scale == "largest" else scale
    p = p.replace(gates=p.gates * unit).to(dtype)
    # The quotients of the reference may overflow: weights depend on differences alone.
    exact = p.to(torch.float64)
    exact = exact.replace(gates=exact.gates - exact.gates.amax(-1, keepdim=True))
    found, _ = outcomes(p, chunk=2, dtype=dtype, temperature=temperature)
    expected = exact.outcome(temperature=temperature, backend="reference")
    near = NEAR if dtype != torch.bfloat16 else NEAR | {torch.float32: 2e-2}
    agree(*without_gates(found, expected), near)


@in_pairs(
    kind=["blocks", "lags"],
    gate=["relu", "signed"],
    **{
        "scale,temperature": [
            *(("largest", temperature) for temperature in (1.0, 1e30, 1e-37)),
            *((1e-30, 1e-30), (1e-38, 1), (0, 1e-37)),
        ]
    },
)
def test_maps_of_gates_of_any_size_equal_the_reference(
    problem, agree, kind, gate, scale, temperature
):
    """Families whose rows are measured in one unit, whatever the gates."""
    p = problem(kind, batch=1, length=3, blocks=3, size=4)
    unit = torch.finfo(torch.float32).max / p.gates.abs().max() if scale == "largest" else scale
    p = p.replace(gates=p.gates * unit)
    agree(*without_gates(*outcomes(p, gate, chunk=1, temperature=temperature)))


@in_pairs(
    **{
        "gate,shift,scale": [
            *((gate, shift, 1) for gate in ("sigmoid", "tanh") for shift in (12, -12)),
            *(("tanh", 0, scale) for scale in (1e-30, 1e-4, 0.1, 0.3)),
        ]
    },
    chunk=[0, 3],
)
def test_gradients_of_saturated_and_of_small_gates_keep_their_digits(
    problem, agree, gate, shift, scale, chunk
):
    """1 - sigmoid and 1 - tanh^2, where a difference of numbers near 1 has no digits left."""
    p = problem("blocks", length=8, size=3)
    agree(*outcomes(p.replace(gates=shift + scale * p.gates), gate, chunk=chunk))


@in_pairs(chunk=[0, 3], temperature=[None, 1e-20, 1e20])
def test_vectors_of_every_length_reflect_as_in_the_reference(problem, agree, chunk, temperature):
    """Short vectors, one of length 0, and a temperature that makes long ones of short ones."""
    p = problem("blocks", batch=1, length=3, blocks=50, size=3)
    lengths = torch.logspace(-30, 30, 49, dtype=torch.float64)
    p.gates[:, 1, 1:, :, :3] *= lengths[:, None, None]
    p.gates[:, :, 0, :, :3] = 0
    options = {"chunk": chunk, "temperature": temperature}
    agree(*outcomes(p, "householder", dtype=torch.float64, **options))


@in_pairs(dtype=list(NEAR), largest=[True, False], chunk=[0, 3], temperature=[None, 0.5, "tiny"])
def test_extreme_vectors_reflect_the_largest_states(
    problem, agree, dtype, largest, chunk, temperature
):
    """Reflections lengthen nothing: gates and entries may be as large as their dtype allows."""
    p = problem("blocks", batch=1, length=7, blocks=5, size=3)
    top = torch.finfo(dtype).max
    p = p.replace(
        gates=p.gates.sign() * (top if largest else 0.0),
        values=p.values.sign() * (top / 2),
        initial_state=p.initial_state.sign() * (top / 2),
        d_states=p.d_states / 64,
    )
    p.gates[..., -1] = 1.5
    temperature = torch.finfo(dtype).tiny if temperature == "tiny" else temperature
    found, expected = outcomes(p, "householder", chunk=chunk, dtype=dtype, temperature=temperature)
    assert all(tensor.isfinite().all() for tensor in found.values())
    # The reference forms products, whose sums are finite only in a wider dtype.
    if dtype == torch.float32:
        agree(found, expected)


@every_kernel
def test_hooks_of_saved_tensors_may_move_what_is_kept(problem, identical, kind, gate):
    """As those that keep saved tensors on the CPU do; and every run gives the same bits."""
    p = problem(kind, length=7, blocks=3, gate=gate).to(torch.float32).on(DEVICE)
    backend, shapes = ops.in_chunks(2), []

    def packed(tensor):
        shapes.append(tensor.shape)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        found = p.outcome(gate, backend=backend)
    maps = (p.initial_state.shape[-1] + 1, *p.initial_state.mT.shape[1:])
    assert maps in [shape[1:] for shape in shapes]
    identical(found, p.outcome(gate, backend=backend))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("packed", [False, True])
def test_compiled_calls_of_any_length_keep_their_maps(problem, identical, monkeypatch, packed):
    from statemix.ops.triton.launch import Launcher

    launched, run = [], Launcher.run
    monkeypatch.setattr(
        Launcher,
        "run",
        lambda self, kernel, *rest: launched.append(kernel) or run(self, kernel, *rest),
    )
    graphs = CompileCounterWithBackend("aot_eager")

    def trained(scan, p):
        gates, values, initial = leaves = [leaf.clone().requires_grad_() for leaf in p.leaves]
        options = {"cu_seqlens": p.cu_seqlens, "backend": ops.in_chunks(2)}
        results = scan(gates, values, "softmax", initial, **options)
        gradients = torch.autograd.grad(results, leaves, (p.d_states, p.d_final_state))
        return (*results, *gradients)

    compiled = torch.compile(ops.bd_lru, backend=graphs, fullgraph=True, dynamic=True)
    for length in (5, 8, 11):
        sizes = {"lengths": [2, length]} if packed else {"length": length}
        p = problem("blocks", blocks=3, size=2, **sizes).to(torch.float32).on(DEVICE)
        launched.clear()
        results = trained(compiled, p)
        assert launched.count("chunk_forward") == 1
        identical(results, trained(ops.bd_lru, p))
    assert graphs.frame_count == 1
