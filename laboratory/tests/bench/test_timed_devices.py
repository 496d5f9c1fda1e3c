"""Calls as CUDA graphs, with stand-ins for what only a GPU has."""

import contextlib
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from statemix.ops import BackendUnavailableError
from statemix_lab.bench.timed_devices import Cpu, Cuda, saved_bytes


class _Graph:
    replays = 0

    def replay(self):
        type(self).replays += 1


class _Stream:
    def wait_stream(self, other):
        pass


@pytest.fixture
def device(monkeypatch):
    """A GPU; the result is the list of what is done while a graph is captured."""
    monkeypatch.setattr(_Graph, "replays", 0)
    captured = []

    @contextlib.contextmanager
    def capture(graph):
        captured.append("begins")
        yield
        captured.append("ends")

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=True))
    for name, stand_in in {
        "get_device_name": lambda: "a GPU",
        "Stream": _Stream,
        "current_stream": _Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "CUDAGraph": _Graph,
        "graph": capture,
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return Cuda(graphs=True), captured


def test_a_call_is_captured_once_and_replayed(device):
    cuda, captured = device
    made = []

    def call():
        made.append(len(captured))
        return len(made)

    replay = cuda.waiting(call)
    # Kernels are compiled before the capture.
    assert made == [0, 0, 0, 1]
    assert captured == ["begins", "ends"]
    assert [replay(), replay()] == [4, 4]
    assert (len(made), _Graph.replays) == (4, 2)


def test_a_replay_keeps_the_inputs_of_the_call(device):
    cuda, _ = device
    inputs = torch.zeros(1)
    alive = weakref.ref(inputs)
    replay = cuda.waiting(partial(torch.neg, inputs))
    del inputs
    assert alive() is not None
    del replay
    assert alive() is None


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ("operation not permitted when", BackendUnavailableError, "^cannot be replayed as a CUDA"),
        ("CUDA out of memory", RuntimeError, "^CUDA out of memory$"),
    ],
)
def test_a_call_that_cannot_be_captured_is_unavailable(device, error, kind, message):
    cuda, captured = device

    def call():
        if captured:
            raise RuntimeError(error)

    with pytest.raises(kind, match=message):
        cuda.waiting(call)


MIB = 2**20


def test_peak_counts_what_is_held_at_once():
    def call():
        first = torch.empty(4 * MIB, dtype=torch.uint8)
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        del first
        third = torch.empty(MIB, dtype=torch.uint8)
        return second, third

    assert Cpu().peak_bytes(call) == 6 * MIB


def test_inputs_and_freed_inputs_do_not_count():
    inputs = torch.zeros(MIB, dtype=torch.float32)
    assert Cpu().peak_bytes(inputs.zero_) == 0
    assert Cpu().peak_bytes(inputs.exp) == 4 * MIB


def test_saved_bytes_count_each_memory_once_and_no_parameter():
    x = torch.randn(10, 4, requires_grad=True)
    weight = torch.randn(4, 4, requires_grad=True)

    def call():
        # The product keeps x and the weight; the square keeps a view of x, and its own input.
        return (x @ weight).sum() + x[2:].square().sum() + (2 * x).square().sum()

    assert saved_bytes(call, [weight]) == 4 * (40 + 40)
    assert saved_bytes(call, []) == 4 * (40 + 40 + 16)
    with torch.no_grad():
        assert saved_bytes(call, []) == 0
