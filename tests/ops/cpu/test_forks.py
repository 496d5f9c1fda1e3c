"""Forked children compute as their parents do, even if the parents have used several threads."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

FORKING = """
import os, sys, torch
from statemix import BDLRU, ops

torch.set_num_threads(2)
torch.manual_seed(0)
gates = torch.randn(4, 300, 64, 3, 4, requires_grad=True)
values = torch.randn(4, 300, 64, 3)
layer = BDLRU(hidden_size=64, num_blocks=64, block_size=3)
x = torch.randn(4, 300, 64)

def call_operator():
    states, _ = ops.bd_lru(gates, values)
    return states, *torch.autograd.grad(states.square().sum(), gates)

def call_layer():
    y, _ = layer(x)
    return y, *torch.autograd.grad(y.square().sum(), layer.parameters())

def check(call, expected, before):
    torch.testing.assert_close(call(), expected, rtol=0, atol=0)
    assert threads() > before, "only one thread was used"

def threads():
    return len(os.listdir("/proc/self/task"))

call = globals()[sys.argv[1]]
alone = threads()
expected = call()
check(call, expected, alone)
for _ in range(2):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check(call, expected, 1)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    check(call, expected, alone)
"""


@pytest.mark.kernels
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
@pytest.mark.parametrize("call", ["call_operator", "call_layer"])
def test_a_forked_child_uses_several_threads_as_its_parent_does(call):
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING, call],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, complaint = process.communicate(timeout=60)
    finally:
        # A child that hangs would outlive its parent.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == 0, complaint
