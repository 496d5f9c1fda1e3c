"""Forked children compute as their parents do, even if the parents have used several threads."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

FORKING = """
import os, torch
from statemix import BDLRU, ops

torch.set_num_threads(2)
torch.manual_seed(0)
gates = torch.randn(4, 300, 64, 3, 4, requires_grad=True)
values = torch.randn(4, 300, 64, 3)
layer = BDLRU(hidden_size=64, num_blocks=64, block_size=3)
x = torch.randn(4, 300, 64)

def call():
    states, _ = ops.bd_lru(gates, values)
    y, _ = layer(x)
    inputs = [gates, *layer.parameters()]
    return torch.autograd.grad(states.square().sum() + y.square().sum(), inputs)

def check(expected, before):
    torch.testing.assert_close(call(), expected, rtol=0, atol=0)
    assert threads() > before, "only one thread was used"

def threads():
    return len(os.listdir("/proc/self/task"))

alone = threads()
expected = call()
check(expected, alone)
for _ in range(2):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check(expected, 1)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    check(expected, alone)
"""


@pytest.mark.kernels
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_a_forked_child_uses_several_threads_as_its_parent_does():
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, complaint = process.communicate(timeout=60)
    finally:
        # A child that hangs would outlive its parent.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == 0, complaint
