"""How a problem is cut for the Triton kernels."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statemix import ops
from statemix.ops.backends import reason_of
from statemix.ops.triton.plan import ahead_of, chunk_of, most_maps


def test_chunks_make_up_for_missing_lanes():
    for length, lanes, size, chunk in (
        # Lanes enough: one chunk. Chunks take twice as long as one pass on a full device.
        (2048, 20_000, 4, 2048),
        (2048, 19_999, 4, 1024),
        # 26 chunks of 79 steps would make up for the lanes.
        (2039, 1536, 4, 64),
        # No chunk is shorter than 32 steps, and few steps are one chunk.
        (1024, 10, 4, 32),
        (63, 10, 4, 63),
        (1, 1, 1, 1),
        # Nor are there many thousands, nor any of large blocks.
        (1 << 20, 1, 4, 256),
        (2048, 1, 17, 2048),
    ):
        assert chunk_of(length, lanes, size) == chunk


def test_a_backend_in_chunks_is_registered_once():
    name = ops.in_chunks(7)
    assert (name, ops.in_chunks(7)) == ("triton_7", "triton_7")
    assert not ops.BACKENDS[name].automatic
    ops.BACKENDS.remove(name)
    with pytest.raises(ValueError, match="length must be at least 0, got -1"):
        ops.in_chunks(-1)
    for length in (2.0, True, "4"):
        with pytest.raises(TypeError, match=f"length must be an int, got {length!r}"):
            ops.in_chunks(length)


@pytest.mark.skipif(reason_of("triton") is not None, reason=str(reason_of("triton")))
@pytest.mark.parametrize(("chunk", "chunked"), [(None, False), (0, False), (3, True)])
def test_a_backward_cuts_time_as_its_forward_did_wherever_it_runs(monkeypatch, chunk, chunked):
    """The forward is over, and the backward runs in another thread."""
    from statemix.ops.triton.launch import Launcher

    launched, prepare = [], Launcher.prepare
    monkeypatch.setattr(
        Launcher, "prepare", lambda self, kernel: launched.append(kernel) or prepare(self, kernel)
    )
    backend = "triton" if chunk is None else ops.in_chunks(chunk)
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


def test_maps_in_flight_fit_shared_memory():
    for m in (*range(1, 18), 48, 64, 128):
        for state_bytes in (4, 8):
            places, lanes, stages = ahead_of(m, state_bytes)
            assert places // 2 < m <= places
            assert state_bytes * (m + 1) * places * lanes * (stages - 1) <= 49_152
            # Of every size that the rule cuts, some are in flight.
            assert stages >= 5 or m > 16
            # No thread of a warp is without an entry.
            assert places * lanes >= 32
