"""Triton kernels against the reference, in Triton's interpreter or on a GPU.

The interpreter must be chosen before Triton is imported: ``make test-triton``.
"""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statemix import ops
from statemix.ops.backends import reason_of
from statemix.ops.triton.plan import forced_chunk

pytestmark = pytest.mark.skipif(reason_of("triton") is not None, reason=str(reason_of("triton")))

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
# One chunk, or chunks of three steps, the last of which may be shorter.
CHUNKS = [0, 3]
# Lags unroll four steps.
MORE_CHUNKS = [*CHUNKS, 4]


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
    with forced_chunk(chunk):
        actual = moved.outcome(gate, temperature=temperature, backend="triton")
    return {name: tensor.cpu() for name, tensor in actual.items()}, expected


@pytest.mark.parametrize("size", range(1, 17))
def test_every_size_equals_the_reference(problem, agree, kind, size):
    agree(*outcomes(problem(kind, batch=1, length=4, size=size)))


# Maps of large blocks take minutes in the interpreter. Of these sizes, 8 and 10 unroll a part of
# their rows, and 10 has several groups of columns.
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 10] if DEVICE == "cpu" else range(1, 17))
def test_chunks_of_every_size_equal_the_reference(problem, agree, kind, size):
    agree(*outcomes(problem(kind, batch=1, length=4, blocks=2, size=size), chunk=3))


@pytest.mark.parametrize("lengths", [None, [3, 0, 4, 1]], ids=["batch", "packed"])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("temperature", [None, 0.7])
def test_every_family_equals_the_reference(problem, agree, kind, gate, lengths, chunk, temperature):
    p = problem(kind, lengths=lengths, gate=gate)
    agree(*outcomes(p, gate, chunk=chunk, temperature=temperature, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_dtype_equals_the_reference(problem, agree, kind, dtype, chunk):
    """Gradients of 16 bits are computed from states of 16 bits: within 2e-2 of a block."""
    found, expected = outcomes(problem(kind, length=8, size=4), chunk=chunk, dtype=dtype)
    assert found["states"].dtype == found["d_gates"].dtype == dtype
    assert found["final_state"].dtype == found["d_initial_state"].dtype == torch.float32
    near = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
    agree(found, expected, near | ({} if dtype == torch.float32 else {torch.float32: 2e-2}))


@pytest.mark.parametrize("chunk", MORE_CHUNKS)
@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0), (1, 1, 1), (3, 2, 33)])
def test_odd_shapes_equal_the_reference(problem, agree, kind, shape, chunk):
    batch, length, blocks = shape
    p = problem(kind, batch=batch, length=length, blocks=blocks, size=2)
    agree(*outcomes(p, chunk=chunk))


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1], [5, 0], [0, 5], [2, 2, 2]], ids=str)
@pytest.mark.parametrize("chunk", MORE_CHUNKS)
def test_packed_sequences_of_any_length_equal_the_reference(problem, agree, kind, lengths, chunk):
    agree(*outcomes(problem(kind, lengths=lengths), chunk=chunk))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("order", [(0, 1, 3, 4), (1, 0, 4, 3), (4, 3, 1, 0)], ids=str)
def test_any_order_of_the_outer_axes_will_do(problem, agree, kind, order, chunk):
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
    agree(*outcomes(scattered, chunk=chunk, dtype=torch.float64))


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


@pytest.mark.parametrize("chunk", [0, 3, 5])
def test_sequences_do_not_touch_each_other(problem, identical, kind, chunk):
    """Not even by a NaN, which 0 does not stop."""
    p = problem(kind, lengths=[4, 8, 3]).to(torch.float32)
    p.values[0, 1] = torch.nan
    p.d_states[0, 13] = torch.nan
    found, _ = outcomes(p, chunk=chunk)
    assert found["states"][0, 1:4].isnan().any()
    assert found["d_values"][0, 12:].isnan().any()
    for name in ("states", "d_gates", "d_values"):
        assert found[name][0, 4:12].isfinite().all()
    for name in ("final_state", "d_initial_state"):
        assert found[name][1].isfinite().all()


def test_a_gate_that_is_no_number_is_not_hidden(problem, kind, gate):
    p = problem(kind, gate=gate).to(torch.float32)
    p.gates[0, 2, 1, ..., 0] = torch.nan
    found, _ = outcomes(p, gate)
    assert found["states"][0, 2, 1].isnan().all()
    assert found["states"][:, :2].isfinite().all()


@settings(max_examples=20 if DEVICE == "cpu" else 200, deadline=None)
@given(
    st.sampled_from(["blocks", "lags"]),
    *(st.integers(low, high) for low, high in ((1, 3), (0, 6), (1, 9), (1, 5), (0, 4))),
)
def test_random_shapes_equal_the_reference(
    problem, agree, kind, batch, length, blocks, size, chunk
):
    p = problem(kind, batch=batch, length=length, blocks=blocks, size=size)
    agree(*outcomes(p, chunk=chunk))


def test_results_are_the_same_every_time(problem, identical, kind):
    p = problem(kind, length=9, blocks=5)
    first, second = (outcomes(p, chunk=4)[0] for _ in range(2))
    identical(first, second)


def test_the_backend_is_listed():
    assert ops.BACKENDS["triton"].narrow
    assert ops.BACKENDS["triton"].kernels.keys() == {"block", "lag"}
