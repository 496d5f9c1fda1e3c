"""How a problem is cut for the Triton kernels."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from statemix import ops
from statemix.ops.backends import reason_of
from statemix.ops.triton.plan import (
    alignment,
    chunk_of,
    crowded,
    shape_of,
    tile_of,
)


@pytest.mark.parametrize(
    ("length", "lanes", "size", "chunk"),
    [
        # Lanes enough: one chunk.
        (2048, 34_000, 4, 2048),
        (1 << 20, 40_000, 1, 1 << 20),
        # 23 chunks of 90 steps make up for the lanes; 32 chunks of 64 have no shorter one.
        (2048, 1536, 4, 64),
        (2048, 1536, 16, 64),
        # Nothing divides a prime. A multiple of 8 can be unrolled.
        (2039, 1536, 4, 88),
        # Chunks take 1.7 times as long as one pass on a full device, large blocks 3 or 4.
        (2048, 20_000, 4, 2048),
        (2048, 20_000, 8, 2048),
        (2048, 19_999, 8, 1024),
        (2048, 11_334, 9, 2048),
        (2048, 11_333, 12, 512),
        (2048, 8_500, 16, 2048),
        (2048, 8_499, 13, 256),
        (2048, 1, 17, 2048),
        # No chunk is shorter than 16 steps, and few steps are one chunk.
        (1024, 10, 4, 16),
        (31, 10, 4, 31),
        (1, 1, 1, 1),
        # Nor are there many thousands.
        (1 << 20, 1, 4, 256),
    ],
)
def test_chunks_make_up_for_missing_lanes(length, lanes, size, chunk):
    assert chunk_of(length, lanes, size) == chunk


def test_a_backend_in_chunks_is_registered_once():
    name = ops.in_chunks(7)
    assert (name, ops.in_chunks(7)) == ("triton_7", "triton_7")
    backend, rule = ops.BACKENDS[name], ops.BACKENDS["triton"]
    assert backend.kernels.keys() == rule.kernels.keys()
    assert (backend.devices, backend.families) == (rule.devices, rule.families)
    assert not backend.automatic
    ops.BACKENDS.remove(name)
    with pytest.raises(ValueError, match="length must be at least 0, got -1"):
        ops.in_chunks(-1)
    for length in (2.0, True, "4"):
        with pytest.raises(TypeError, match=f"length must be an int, got {length!r}"):
            ops.in_chunks(length)


@pytest.mark.skipif(reason_of("triton") is not None, reason=str(reason_of("triton")))
@pytest.mark.parametrize(
    ("backend", "chunked"), [("triton", False), ("triton_0", False), ("triton_3", True)]
)
def test_a_backward_cuts_time_as_its_forward_did_wherever_it_runs(monkeypatch, backend, chunked):
    """The forward is over, and the backward runs in another thread."""
    from statemix.ops.triton.launch import _Problem

    launched, cut = [], _Problem.cut_maps
    monkeypatch.setattr(
        _Problem, "cut_maps", lambda self, kernel: launched.append(kernel) or cut(self, kernel)
    )
    assert backend in ("triton", ops.in_chunks(0), ops.in_chunks(3))
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    gates = torch.randn(1, 5, 2, 1, 2, device=device, requires_grad=True)
    states, _ = ops.bd_lru(gates, torch.randn(1, 5, 2, 1, device=device), backend=backend)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(states.sum().backward).result()
    assert launched == (["chunk_forward", "chunk_backward"] if chunked else [])


@pytest.mark.parametrize(
    ("rows", "lanes", "per_thread", "tile"),
    [
        (100, 192, 8, (4, 64)),
        (100, 256, 8, (1, 256)),
        (100, 384, 8, (2, 128)),
        (100, 48, 4, (8, 16)),
        (100, 3, 2, (16, 4)),
        # No rows that do not exist.
        (1, 192, 8, (1, 256)),
        (1, 1, 8, (1, 256)),
    ],
)
def test_tiles_waste_few_lanes(rows, lanes, per_thread, tile):
    found = tile_of(rows, lanes, per_thread)
    assert (found.rows, found.lanes) == tile
    assert found.rows * found.lanes == 32 * per_thread
    grid = found.grid(rows, lanes)
    assert all(
        count * size >= most > (count - 1) * size
        for count, size, most in zip(grid, tile, (rows, lanes), strict=True)
    )


def test_threads_hold_less_of_larger_problems():
    for operator in ("block", "lag", "reflect"):
        for kernel in ("local_forward", "local_backward", "chunk_forward", "chunk_backward"):
            shapes = [shape_of(operator, kernel, m, 4) for m in range(1, 20)]
            lanes = [shape.lanes for shape in shapes]
            assert lanes == sorted(lanes, reverse=True)
            for m, shape in enumerate(shapes, 1):
                assert shape.columns <= m + 1
                assert (shape.columns > 0) == kernel.startswith("chunk")
                # Rows of a step are unrolled in equal parts.
                assert operator == "lag" or m % shape.unroll == 0
                # Numbers of 64 bits take the registers of twice as many.
                twice = shape_of(operator, kernel, 2 * m, 4)
                assert shape_of(operator, kernel, m, 8).lanes == max(1, twice.lanes // 2)
                for align in (1, 2, 4, 8):
                    found = shape_of(operator, kernel, m, 4, align=align)
                    assert found == shape._replace(lanes=min(shape.lanes, align))


@pytest.mark.parametrize(
    ("strides", "align"),
    [((192, 960), 16), ((200, 1000), 8), ((196, 980, 0), 4), ((191,), 1), ((64, 0, 66), 2)],
)
def test_neighbouring_lanes_are_one_load_if_all_strides_are_multiples(strides, align):
    assert alignment(*strides) == align


@pytest.mark.parametrize(
    ("kernel", "gate", "element_bytes", "options", "wanted"),
    [
        ("local_forward", "householder", 4, {}, False),
        ("local_forward", "signed", 2, {}, True),
        ("local_forward", "softmax", 2, {"ragged": True}, True),
        ("local_backward", "softmax", 2, {"ragged": True}, False),
        ("local_backward", "softmax", 2, {"packed": True}, True),
        ("local_backward", "softmax", 4, {}, True),
        ("local_backward", "relu", 2, {}, True),
        ("chunk_forward", "relu", 4, {}, False),
        ("chunk_forward", "softmax", 2, {"packed": True}, True),
        ("chunk_backward", "softmax", 2, {"ragged": True}, True),
    ],
)
def test_kernels_that_keep_much_hold_fewer_lanes(kernel, gate, element_bytes, options, wanted):
    options = {"packed": False, "ragged": False} | options
    assert crowded(kernel, gate, element_bytes, **options) == wanted
    if wanted:
        for operator in ("block", "lag", "reflect"):
            for m in range(1, 17):
                few, many = (
                    shape_of(operator, kernel, m, 4, crowded=full) for full in (True, False)
                )
                assert few.lanes <= many.lanes
