"""How far a layer and an operator are from their kernel: Python frames of this library between."""

import sys

import pytest
import torch
from torch import nn

from statemix import ops
from statemix.layers import BDLRU, HLRU
from statemix.ops.cpu import loader


def run_operator(x):
    return ops.bd_lru(torch.randn(2, 3, 2, 4, 5, requires_grad=True), x.view(2, 3, 2, 4))


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("call", "most"),
    [
        (BDLRU(8, num_blocks=2, block_size=4), 6),
        (HLRU(8, num_channels=4, order=2), 6),
        (run_operator, 4),
    ],
    ids=["blocks", "lags", "operator"],
)
def test_few_frames_lie_between_a_call_in_training_and_its_kernel(call, most, monkeypatch):
    function, seen = loader.function, {}

    def watched(operator, direction):
        run = function(operator, direction)

        def kernel(problem):
            seen[direction] = frames_of(sys._getframe(1))
            return run(problem)

        return kernel

    monkeypatch.setattr(loader, "function", watched)
    y, _ = call(torch.randn(2, 3, 8))
    y.sum().backward()
    assert len(seen["forward"]) <= most, seen["forward"]
    # The backward pass begins in PyTorch.
    assert len(seen["backward"]) <= 3, seen["backward"]


def frames_of(frame):
    """Names of the functions of this library that are running, without those of nn.Module."""
    names = []
    while frame is not None:
        module = frame.f_globals["__name__"]
        if module.startswith("statemix.") and module != nn.Module.__module__:
            names.append(f"{module}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return names
