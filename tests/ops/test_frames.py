"""How far a layer is from its kernel: Python frames of this library on the way."""

import sys

import pytest
import torch
from torch import nn

from statemix.layers import BDLRU, HLRU
from statemix.ops.cpu import loader

MOST = 6


@pytest.mark.kernels
@pytest.mark.parametrize(
    "layer",
    [BDLRU(8, num_blocks=2, block_size=4), HLRU(8, num_channels=4, order=2)],
    ids=["blocks", "lags"],
)
def test_a_kernel_is_at_most_six_frames_from_its_layer_in_training(layer, monkeypatch):
    function, seen = loader.function, {}

    def watched(operator, direction):
        run = function(operator, direction)

        def call(problem):
            seen[direction] = frames_of(sys._getframe(1))
            return run(problem)

        return call

    monkeypatch.setattr(loader, "function", watched)
    y, _ = layer(torch.randn(2, 3, 8))
    y.sum().backward()
    assert len(seen["forward"]) <= MOST, seen["forward"]
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
