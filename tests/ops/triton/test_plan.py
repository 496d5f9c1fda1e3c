"""How a problem is cut for the Triton kernels."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statemix import ops
from statemix.ops.backends import reason_of
from statemix.ops.triton.plan import (
    FULL_SIZE,
    ahead_of,
    alignment,
    chunk_of,
    fills,
    most_maps,
    shape_of,
    tile_of,
)


@pytest.mark.parametrize(
    ("length", "lanes", "size", "chunk"),
    [
        # Lanes enough: one chunk.
        (2048, 40_000, 4, 2048),
        (1 << 20, 40_000, 1, 1 << 20),
        # 26 chunks of 79 steps make up for the lanes; 64 is the divisor nearest to it.
        (2048, 1536, 4, 64),
        # 51 and 315 steps: the nearest divisors are a quarter longer and a fifth shorter.
        (2048, 1000, 5, 64),
        (2048, 6144, 4, 256),
        # Chunks of 20 steps would be too many.
        (2048, 384, 16, 32),
        # Nothing divides a prime, and nothing near divides 1000. Multiples of 16 are read at once.
        (2039, 1536, 4, 80),
        (1000, 1536, 4, 32),
        # Chunks take 1.7 times as long as one pass on a full device, large blocks 2 or 2.5.
        (2048, 23_530, 4, 2048),
        (2048, 23_530, 8, 2048),
        (2048, 23_529, 8, 1024),
        (2048, 20_000, 9, 2048),
        (2048, 19_999, 12, 1024),
        (2048, 16_000, 16, 2048),
        (2048, 15_999, 13, 1024),
        (2048, 1, 17, 2048),
        # No chunk is shorter than 32 steps, and few steps are one chunk.
        (1024, 10, 4, 32),
        (63, 10, 4, 63),
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
    from statemix.ops.triton.problems import Problem

    launched, shape = [], Problem.shape
    monkeypatch.setattr(
        Problem, "shape", lambda self, kernel: launched.append(kernel) or shape(self, kernel)
    )
    assert backend in ("triton", ops.in_chunks(0), ops.in_chunks(3))
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    gates = torch.randn(1, 5, 2, 1, 2, device=device, requires_grad=True)
    states, _ = ops.bd_lru(gates, torch.randn(1, 5, 2, 1, device=device), backend=backend)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(states.sum().backward).result()
    chunks = [kernel for kernel in launched if kernel.startswith("chunk")]
    assert chunks == (["chunk_forward", "chunk_backward"] if chunked else [])


@given(
    length=st.one_of(st.integers(1, 300), st.integers(1, 2**21)),
    lanes=st.integers(1, 100_000),
    size=st.integers(1, 20),
)
def test_room_for_maps_is_enough_and_little(length, lanes, size):
    maps = -(-length // chunk_of(length, lanes, size)) - 1
    most = most_maps(length, lanes, size)
    assert most >= maps
    # A map has no more numbers than the gates of one step, and not even one in 32 steps has one.
    assert most <= length / 32
    for forced in (1, 3, 64):
        assert most_maps(length, lanes, size, forced) == -(-length // forced) - 1
    assert most_maps(length, lanes, size, 0) == most_maps(0, lanes, size, 3) == 0
    assert most_maps(length, 0, size) >= 0


def test_room_for_maps_needs_no_sizes():
    """A compiled program for any length is not split by a question about it, which would raise."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv()
    length, lanes = (shapes.create_unbacked_symint() for _ in range(2))
    for forced in (None, 64, 0):
        most_maps(length, lanes, 4, forced)


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


@pytest.mark.parametrize("operator", ["block", "lag", "reflect"])
@pytest.mark.parametrize(
    "kernel", ["local_forward", "local_backward", "chunk_forward", "chunk_backward"]
)
def test_what_a_thread_holds(operator, kernel):
    for m in range(1, 20):
        shape = shape_of(operator, kernel, m, 2)
        assert (shape.columns > 0) == (kernel == "chunk_forward")
        assert shape.columns <= m + 1
        # Rows are read in equal parts, and steps only with all rows. Local scans of blocks may
        # have rows in the first part that do not exist, but no part without a row.
        assert m % shape.rows == 0 or (operator == "block" and kernel.startswith("local"))
        assert shape.rows <= m
        assert operator == "lag" or shape.steps == 1 or shape.rows == m
        # A thread reads 16 gates or more at once, but of blocks of which no rows are, or above 16.
        gates = shape.lanes * shape.steps * shape.rows * (m + 1)
        assert gates >= 16 or m > 16 or (operator == "reflect" and m in (11, 13))
        # Numbers of 32 bits are half as many lanes, and of 64 one row at once.
        assert shape_of(operator, kernel, m, 4) == shape._replace(lanes=max(1, shape.lanes // 2))
        assert shape_of(operator, kernel, m, 8)[:3] == (1, 1, 1)
        for align in (1, 2):
            found = shape_of(operator, kernel, m, 2, align=align)
            assert found == shape._replace(lanes=min(shape.lanes, align))
        full = shape_of(operator, kernel, m, 2, full=True)
        if m <= FULL_SIZE and kernel.startswith("local"):
            assert full.lanes >= 4
        else:
            assert full == shape


def test_many_lanes_are_eight_for_a_thread():
    assert fills(1500 * 32 * 8)
    assert not fills(1500 * 32 * 8 - 1)


def test_maps_in_flight_fit_shared_memory():
    for m in (*range(1, 18), 48, 64, 128):
        for state_bytes in (4, 8):
            ahead = ahead_of(m, state_bytes)
            assert ahead.places // 2 < m <= ahead.places
            of_map = state_bytes * (m + 1) * ahead.places * ahead.lanes
            assert of_map * (ahead.stages - 1) <= 49_152
            assert 1 <= ahead.stages <= 16
            # Of every size that the rule cuts, some are in flight.
            assert ahead.stages >= (12 if m <= 8 else 5) or m > 16
            # No thread of a warp is without an entry.
            assert ahead.places * ahead.lanes >= 32


@pytest.mark.parametrize(
    ("strides", "align"),
    [((192, 960), 16), ((200, 1000), 8), ((196, 980, 0), 4), ((191,), 1), ((64, 0, 66), 2)],
)
def test_neighbouring_lanes_are_one_load_if_all_strides_are_multiples(strides, align):
    assert alignment(*strides) == align
