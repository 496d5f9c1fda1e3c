"""Checks that guard memory hold under ``python -O``, which drops assertions."""

import os
import subprocess
import sys

import pytest

REFUSED_BY_THE_KERNELS = """
from statemix.ops.cpu import loader
loader._run(lambda problem: 1, loader._Problem())
"""

FEWER_MAPS_THAN_CHUNKS = """
import torch
from statemix.ops.triton import launch
gates, values, state = torch.zeros(1, 5, 2, 1, 2), torch.zeros(1, 5, 2, 1), torch.zeros(1, 2, 1)
problem = (gates, values, values, state, None, "softmax", None)
launch.backward("block", values, state, *problem, chunk=2, maps={maps})
"""


@pytest.mark.kernels
def test_a_refusal_of_the_cpu_kernels_is_raised():
    assert "RuntimeError: the CPU kernels refused" in error_of(REFUSED_BY_THE_KERNELS)


@pytest.mark.parametrize(
    "maps",
    [
        "torch.zeros(1, 2, 1, 2)",
        "torch.zeros(2, 2, 1, 1)",
        "torch.zeros(2, 2, 1, 2).transpose(1, 3)",
    ],
)
def test_maps_that_hooks_changed_are_refused(maps):
    pytest.importorskip("triton", reason="Triton is not installed")
    assert "RuntimeError: maps must be 2 or more" in error_of(FEWER_MAPS_THAN_CHUNKS, maps=maps)


def error_of(code, **values):
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-O", "-c", code.format(**values)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    return done.stderr
