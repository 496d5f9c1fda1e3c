"""Triton kernels against the reference, in Triton's interpreter or on a GPU.

The interpreter must be chosen before Triton is imported: ``make test-triton``.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from statemix import ops
from statemix.ops.backends import reason_of
from statemix.ops.triton.plan import FULL_SIZE, shape_of

pytestmark = pytest.mark.skipif(reason_of("triton") is not None, reason=str(reason_of("triton")))

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
# One chunk, or chunks of three steps, the last of which may be shorter.
CHUNKS = [0, 3]
# Steps that threads read at once, also of packed sequences.
MORE_CHUNKS = [*CHUNKS, 4]
# One family for each module of kernels.
every_kernel = pytest.mark.parametrize(
    ("kind", "gate"), [("blocks", "softmax"), ("lags", "softmax"), ("blocks", "householder")]
)


def outcomes(p, gate="softmax", *, chunk=0, dtype=torch.float32, temperature=None):
    """Results of the kernels on a problem in some dtype, and those of the reference in float64."""
    rounded = p.to(dtype)
    exact = rounded.to(torch.float64)
    expected = exact.outcome(gate, temperature=temperature, backend="reference")
    moved = rounded.replace(
        **{
            name: getattr(rounded, name).to(DEVICE)
            for name in ("gates", "values", "initial_state", "d_states", "d_final_state")
        },
        cu_seqlens=None if rounded.cu_seqlens is None else rounded.cu_seqlens.to(DEVICE),
    )
    actual = moved.outcome(gate, temperature=temperature, backend=ops.in_chunks(chunk))
    return {name: tensor.cpu() for name, tensor in actual.items()}, expected


def nearly_agree(found, expected):
    """Results in 16 bits are near the reference, measured by their largest entries.

    A block of gradients may be a difference of rounded states.
    """
    for name, wanted in expected.items():
        error = (found[name].double() - wanted).abs().max()
        assert error <= 2e-2 * wanted.abs().max(), name


@every_kernel
@pytest.mark.parametrize("size", range(1, 17))
def test_every_size_equals_the_reference(problem, agree, kind, gate, size):
    agree(*outcomes(problem(kind, batch=1, length=3, size=size), gate))


# Of these sizes, 10 reads a part of its rows at once, and has several groups of columns; the
# others are in test_sizes.py, with a single step, because those of large blocks take long.
@every_kernel
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 10] if DEVICE == "cpu" else range(1, 17))
def test_chunks_of_every_size_equal_the_reference(problem, agree, kind, gate, size):
    agree(*outcomes(problem(kind, batch=1, length=7, blocks=2, size=size), gate, chunk=3))


@every_kernel
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("chunked", [False, True])
def test_steps_that_are_read_at_once_equal_the_reference(problem, agree, kind, gate, size, chunked):
    """Twice as many steps as a thread reads at once, and one that is left; or chunks of so many."""
    kernels = {"blocks": "block", "lags": "lag"}[kind] if gate == "softmax" else "reflect"
    kernel = "chunk_forward" if chunked else "local_forward"
    steps = shape_of(kernels, kernel, size, 4).steps
    length, chunk = (4 * steps + 1, 2 * steps) if chunked else (2 * steps + 1, 0)
    p = problem(kind, batch=1, length=length, blocks=3, size=size)
    agree(*outcomes(p, gate, chunk=chunk))


@every_kernel
def test_packed_steps_that_are_read_at_once_equal_the_reference(problem, agree, kind, gate):
    """Sequences end within the 16 steps that a thread reads at once, and between two chunks."""
    p = problem(kind, lengths=[5, 11, 0, 7, 1, 9], blocks=2, size=1)
    agree(*outcomes(p, gate, chunk=16))


@every_kernel
@pytest.mark.parametrize("size", range(1, FULL_SIZE + 1))
def test_eight_lanes_of_a_thread_equal_the_reference(problem, monkeypatch, kind, gate, size):
    """As where sequences are many, in 16 bits."""
    # Imports Triton.
    from statemix.ops.triton import problems

    monkeypatch.setattr(problems, "fills", lambda _: True)
    p = problem(kind, batch=1, length=9, blocks=16, size=size)
    nearly_agree(*outcomes(p, gate, dtype=torch.bfloat16))


def test_groups_of_columns_of_reflections_equal_the_reference(problem, agree):
    """Their maps are divided among threads only above m = 9."""
    agree(*outcomes(problem("blocks", lengths=[1, 2], blocks=1, size=10), "householder", chunk=2))


@pytest.mark.parametrize("lengths", [None, [3, 0, 4, 1]], ids=["batch", "packed"])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("temperature", [None, 0.7])
def test_every_family_equals_the_reference(problem, agree, kind, gate, lengths, chunk, temperature):
    p = problem(kind, lengths=lengths, gate=gate)
    agree(*outcomes(p, gate, chunk=chunk, temperature=temperature, dtype=torch.float64))


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_dtype_equals_the_reference(problem, agree, tolerances_of, kind, gate, dtype, chunk):
    found, expected = outcomes(problem(kind, length=8, size=4), gate, chunk=chunk, dtype=dtype)
    assert found["states"].dtype == found["d_gates"].dtype == dtype
    assert found["final_state"].dtype == found["d_initial_state"].dtype == torch.float32
    agree(found, expected, tolerances_of("triton", dtype))


@every_kernel
@pytest.mark.parametrize("chunk", MORE_CHUNKS)
@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0), (1, 1, 1), (3, 2, 33)])
def test_odd_shapes_equal_the_reference(problem, agree, kind, gate, shape, chunk):
    batch, length, blocks = shape
    p = problem(kind, batch=batch, length=length, blocks=blocks, size=2)
    agree(*outcomes(p, gate, chunk=chunk))


@every_kernel
@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1], [5, 0], [0, 5], [2, 2, 2]], ids=str)
@pytest.mark.parametrize("chunk", MORE_CHUNKS)
def test_packed_sequences_of_any_length_equal_the_reference(
    problem, agree, kind, gate, lengths, chunk
):
    agree(*outcomes(problem(kind, lengths=lengths), gate, chunk=chunk))


@every_kernel
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("order", [(0, 1, 3, 4), (1, 0, 4, 3), (4, 3, 1, 0)], ids=str)
def test_any_order_of_the_outer_axes_will_do(problem, agree, kind, gate, order, chunk):
    """Units are innermost, as the kernels want them; other axes lie as they like, with gaps."""
    p = problem(kind, batch=2, length=5, blocks=4, size=2)

    def stored(x):
        axes = [axis for axis in order if axis < x.ndim] + [2]
        apart = x.permute(axes).contiguous().repeat_interleave(2, 0)[::2]
        assert apart.stride(-1) == 1
        back = [axes.index(axis) for axis in range(x.ndim)]
        return apart.permute(back)

    scattered = p.replace(
        gates=stored(p.gates), values=stored(p.values), d_states=stored(p.d_states)
    )
    # In float64 a problem is not copied before it is run.
    agree(*outcomes(scattered, gate, chunk=chunk, dtype=torch.float64))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_units_need_not_be_innermost(problem, agree, kind, chunk):
    p = problem(kind, batch=2, length=5, blocks=4, size=2)
    agree(*outcomes(p.replace(d_states=p.d_states[:, :1].expand_as(p.d_states)), chunk=chunk))


def test_rows_that_32_bits_cannot_reach_are_copied():
    """Products of a stride and a place in a row are numbers of 32 bits."""
    # Imports Triton.
    from statemix.ops.triton.launch import _ordered

    for stride, copied in ((2**31 // 3 + 1, True), (2**31 // 3, False)):
        far = torch.empty_strided((1, 1, 1, 3), (1, 1, 1, stride), device="meta")
        assert (_ordered(far).stride() == (3, 3, 1, 1)) == copied


@every_kernel
@pytest.mark.parametrize("chunk", [0, 3, 5])
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [2.0**20, 2.0**30, 2.0**59, "largest"])
# Differences of gates may be minus infinity, whose exponential is 0.
def test_maps_of_huge_gates_equal_the_reference(problem, agree, kind, dtype, scale):
    """Products of gates and log2 e round, and those near the largest number overflow."""
    p = problem(kind, length=8, size=4)
    unit = torch.finfo(dtype).max / p.gates.abs().max() if scale == "largest" else scale
    found, expected = outcomes(p.replace(gates=p.gates * unit), chunk=3, dtype=dtype)
    near = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}
    agree(found, expected, near | ({} if dtype != torch.bfloat16 else {torch.float32: 2e-2}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [2.0**-64, 1.0, 2.0**31, "largest"])
def test_maps_follow_every_temperature(problem, agree, dtype, scale):
    """One number divides gates and is the base of powers, whatever the sizes of both."""
    p = problem("lags", length=4, blocks=9, size=4)
    unit = torch.finfo(dtype).max / p.gates.abs().max() if scale == "largest" else scale
    p = p.replace(gates=p.gates * unit).to(dtype)
    # The quotients of the reference may overflow: weights depend on differences alone.
    exact = p.to(torch.float64)
    exact = exact.replace(gates=exact.gates - exact.gates.amax(-1, keepdim=True))
    for temperature in (0.7, 1e-9, 1e-30, 1e30):
        found, _ = outcomes(p, chunk=2, dtype=dtype, temperature=temperature)
        expected = exact.outcome(temperature=temperature, backend="reference")
        near = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}
        near |= {} if dtype != torch.bfloat16 else {torch.float32: 2e-2}
        # Gradients of gates are divided by the temperature: those of the reference may overflow.
        names = found.keys() - {"d_gates"}
        agree(*({name: one[name] for name in names} for one in (found, expected)), near)


@pytest.mark.parametrize("gate", ["relu", "signed"])
@pytest.mark.parametrize(
    ("scale", "temperature"),
    [
        ("largest", 1.0),
        ("largest", 1e30),
        ("largest", 1e-37),
        (1e-30, 1e-30),
        (1e-38, 1),
        (0, 1e-37),
    ],
)
def test_maps_of_gates_of_any_size_equal_the_reference(
    problem, agree, kind, gate, scale, temperature
):
    """Families whose rows are measured in one unit, whatever the gates."""
    p = problem(kind, batch=1, length=3, blocks=3, size=4)
    unit = torch.finfo(torch.float32).max / p.gates.abs().max() if scale == "largest" else scale
    p = p.replace(gates=p.gates * unit)
    found, expected = outcomes(p, gate, chunk=1, temperature=temperature)
    # Gradients of gates are divided by the size of these, and may overflow.
    names = found.keys() - {"d_gates"}
    agree(*({name: one[name] for name in names} for one in (found, expected)))


def test_a_gate_that_is_no_number_is_not_hidden(problem, kind, gate):
    p = problem(kind, gate=gate).to(torch.float32)
    p.gates[0, 2, 1, ..., 0] = torch.nan
    found, _ = outcomes(p, gate)
    assert found["states"][0, 2, 1].isnan().all()
    assert found["states"][:, :2].isfinite().all()


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("gate", ["sigmoid", "tanh"])
def test_gradients_of_saturated_gates_keep_their_digits(problem, agree, gate, sign, chunk):
    """1 - sigmoid and 1 - tanh^2, where a difference of numbers near 1 has no digits left."""
    p = problem("blocks", length=8, size=3)
    p = p.replace(gates=sign * (12 + p.gates))
    agree(*outcomes(p, gate, chunk=chunk))


@pytest.mark.parametrize("scale", [1e-30, 1e-4, 0.1, 0.3])
def test_tanh_of_small_gates_keeps_its_digits(problem, agree, scale):
    p = problem("lags", length=8, size=3)
    agree(*outcomes(p.replace(gates=scale * p.gates), "tanh", chunk=3))


def test_vectors_of_every_length_reflect_as_in_the_reference(problem, agree):
    """Short vectors, one of length 0, and a temperature that makes long ones of short ones."""
    p = problem("blocks", batch=1, length=3, blocks=50, size=3)
    lengths = torch.logspace(-30, 30, 49, dtype=torch.float64)
    p.gates[:, 1, 1:, :, :3] *= lengths[:, None, None]
    p.gates[:, :, 0, :, :3] = 0
    for chunk in CHUNKS:
        for temperature in (None, 1e-20, 1e20):
            options = {"chunk": chunk, "temperature": temperature}
            agree(*outcomes(p, "householder", dtype=torch.float64, **options))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("largest", [False, True], ids=["zero", "largest"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_extreme_vectors_reflect_the_largest_states(problem, agree, dtype, largest, chunk):
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
    for temperature in (None, 0.5, torch.finfo(dtype).tiny):
        found, expected = outcomes(
            p, "householder", chunk=chunk, dtype=dtype, temperature=temperature
        )
        assert all(tensor.isfinite().all() for tensor in found.values())
        # The reference forms products, whose sums are finite only in a wider dtype.
        if dtype == torch.float32:
            agree(found, expected)


# Kernels, m, units, dtype and whether sequences are packed. For every layout a kernel is compiled
# anew.
LAYOUTS = [
    ("blocks", "softmax", 1, 250, torch.float32, False),
    ("blocks", "softmax", 3, 256, torch.bfloat16, False),
    ("blocks", "softmax", 4, 250, torch.float32, True),
    ("blocks", "softmax", 7, 31, torch.bfloat16, True),
    ("lags", "softmax", 1, 250, torch.bfloat16, True),
    ("lags", "softmax", 2, 250, torch.float32, False),
    ("lags", "softmax", 5, 256, torch.float32, True),
    ("lags", "softmax", 9, 31, torch.bfloat16, False),
    ("blocks", "householder", 2, 250, torch.bfloat16, False),
    ("blocks", "householder", 4, 256, torch.float32, True),
]
if DEVICE == "cpu":
    # The interpreter takes a second for every step of a large block.
    LAYOUTS = [layout for layout in LAYOUTS if layout[2] <= 4]
# 200 shapes or more.
EXAMPLES = -(-200 // len(LAYOUTS))


@st.composite
def shapes(draw, packed, blocks, chunks):
    """Units, batch and length, or lengths, and the steps of a chunk.

    Triton compiles anew for a size that is 1 or a multiple of 16: other tests have such sizes. The
    interpreter compiles nothing, and takes long for long sequences.
    """
    if DEVICE == "cpu":
        blocks = draw(st.integers(1, 9))
        chunk, length = draw(st.integers(0, 3)), draw(st.integers(1, 4))
        batches = [1, 2, 3]
    else:
        chunk = draw(st.sampled_from([0, *chunks]))
        # At least three chunks, and fewer than 16.
        shortest, longest = 2 * max(chunks) + 1, 15 * min(chunks)
        length = draw(st.integers(shortest, longest).filter(lambda T: T % 16))
        batches = [3, 5, 7]
    if not packed:
        return {"blocks": blocks, "batch": draw(st.sampled_from(batches)), "length": length}, chunk
    ends = draw(st.lists(st.integers(0, length), max_size=5).map(sorted))
    pairs = zip([0, *ends], [*ends, length], strict=True)
    return {"blocks": blocks, "lengths": [end - start for start, end in pairs]}, chunk


@pytest.mark.parametrize(("kind", "gate", "size", "blocks", "dtype", "packed"), LAYOUTS)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    # Problems are drawn afresh for every example.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_random_shapes_equal_the_reference(
    problem, agree, kind, gate, size, blocks, dtype, packed, data
):
    """On a GPU, some hundred kernels are compiled for them, few of them anew for a shape."""
    # Threads read steps of lags at once, but no more than a chunk has.
    chunks = [4] if kind == "lags" else [3, 5]
    shape, chunk = data.draw(shapes(packed, blocks, chunks))
    p = problem(kind, size=size, **shape)
    found, expected = outcomes(p, gate, chunk=chunk, dtype=dtype)
    if dtype == torch.float32:
        agree(found, expected)
    else:
        nearly_agree(found, expected)


@every_kernel
def test_hooks_of_saved_tensors_may_move_what_is_kept(problem, identical, kind, gate):
    """As those that keep saved tensors on the CPU do."""
    p = problem(kind, length=7, blocks=3, gate=gate).to(torch.float32).on(DEVICE)
    backend = ops.in_chunks(2)
    expected = p.outcome(gate, backend=backend)
    shapes = []

    def packed(tensor):
        shapes.append(tensor.shape)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        found = p.outcome(gate, backend=backend)
    maps = (p.initial_state.shape[-1] + 1, *p.initial_state.mT.shape[1:])
    assert maps in [shape[1:] for shape in shapes]
    identical(found, expected)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("packed", [False, True])
def test_compiled_calls_of_any_length_keep_their_maps(problem, identical, monkeypatch, packed):
    from statemix.ops.triton.problems import Problem

    found, mapped = [], Problem.mapped
    monkeypatch.setattr(
        Problem, "mapped", lambda self, *rest: found.append(1) or mapped(self, *rest)
    )
    graphs = CompileCounterWithBackend("aot_eager")

    def trained(scan, p):
        leaves = [leaf.clone().requires_grad_() for leaf in p.leaves]
        gates, values, initial = leaves
        options = {"cu_seqlens": p.cu_seqlens, "backend": ops.in_chunks(2)}
        results = scan(gates, values, "softmax", initial, **options)
        gradients = torch.autograd.grad(results, leaves, (p.d_states, p.d_final_state))
        return (*results, *gradients)

    compiled = torch.compile(ops.bd_lru, backend=graphs, fullgraph=True, dynamic=True)
    for length in (5, 8, 11):
        sizes = {"lengths": [2, length]} if packed else {"length": length}
        p = problem("blocks", blocks=3, size=2, **sizes).to(torch.float32).on(DEVICE)
        found.clear()
        results = trained(compiled, p)
        assert len(found) == 1
        identical(results, trained(ops.bd_lru, p))
    assert graphs.frame_count == 1


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU: the interpreter repeats itself")
@every_kernel
def test_results_are_the_same_every_time(problem, identical, kind, gate):
    p = problem(kind, length=9, blocks=5)
    first, second = (outcomes(p, gate, chunk=4)[0] for _ in range(2))
    identical(first, second)


def test_the_backend_is_listed():
    assert ops.BACKENDS["triton"].kernels.keys() == {"block", "lag"}
