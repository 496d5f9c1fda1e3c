"""Calls as CUDA graphs, with stand-ins for what only a GPU has."""

import contextlib
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from statemix.ops import BackendUnavailableError
from statemix_lab.bench.timed_devices import Cuda


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


def test_float32_is_float32_in_all_layers(device):
    """In cuDNN's LSTM, too, whose error would otherwise exceed the tolerance of the others."""
    assert torch.backends.cudnn.allow_tf32 is False
    assert torch.backends.cuda.matmul.allow_tf32 is False


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
