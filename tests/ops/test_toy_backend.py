"""A registered backend of a few lines runs through the whole operator suite.

This file is also a pytest plugin: ``pytest -p test_toy_backend`` registers the backend "toy" before
any test is collected.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from statemix import ops
from statemix.ops import backends

TESTS = Path(__file__).parent


@torch.autocast("cpu", enabled=False)
def block_forward(A, b, h_0, cu_seqlens):
    h, states, finals = None, torch.empty_like(b), h_0.clone()
    for n, t, _ in walked(b, h_0, cu_seqlens):
        h = finals[n]
        h = torch.einsum("nhij,nhj->nhi", A[rows(n, cu_seqlens), t], h)
        h = h + b[rows(n, cu_seqlens), t]
        states[rows(n, cu_seqlens), t] = finals[n] = h
    return states, finals


@torch.autocast("cpu", enabled=False)
def block_backward(d_states, d_final, A, b, states, h_0, cu_seqlens):
    lam = d_final.clone()
    d_A, d_b = torch.empty_like(A), torch.empty_like(b)
    for n, t, start in reversed(list(walked(b, h_0, cu_seqlens))):
        row = rows(n, cu_seqlens)
        d_b[row, t] = lam[n] + d_states[row, t]
        before = h_0[n] if t == start else states[row, t - 1]
        d_A[row, t] = torch.einsum("nhi,nhj->nhij", d_b[row, t], before)
        lam[n] = torch.einsum("nhij,nhi->nhj", A[row, t], d_b[row, t])
    return d_A, d_b, lam


def companions(a):
    """The lag recurrence is a block recurrence of companion matrices."""
    size = a.shape[-1]
    below = torch.diag(a.new_ones(size - 1), -1)
    return torch.cat([a.unsqueeze(-2), below[1:].expand(*a.shape[:-1], size - 1, size)], -2)


def widened(b, size):
    return torch.cat([b.unsqueeze(-1), b.new_zeros(*b.shape, size - 1)], -1)


def lag_forward(a, b, h_0, cu_seqlens):
    states, finals = block_forward(companions(a), widened(b, a.shape[-1]), h_0, cu_seqlens)
    return states[..., 0].clone(), finals


def lag_backward(d_states, d_final, a, b, states, h_0, cu_seqlens):
    A, terms = companions(a), widened(b, a.shape[-1])
    windows, _ = block_forward(A, terms, h_0, cu_seqlens)
    d_windows = widened(d_states, a.shape[-1])
    d_A, d_terms, d_initial = block_backward(d_windows, d_final, A, terms, windows, h_0, cu_seqlens)
    return d_A[..., 0, :].clone(), d_terms[..., 0].clone(), d_initial


def walked(b, h_0, cu_seqlens):
    """(sequences, step, first step): all sequences at once, or one after the other if packed."""
    bounds = [(slice(None), 0, b.shape[1])]
    if cu_seqlens is not None:
        c = cu_seqlens.tolist()
        bounds = [(slice(n, n + 1), c[n], c[n + 1]) for n in range(len(c) - 1)]
    return [(n, t, start) for n, start, stop in bounds for t in range(start, stop)]


def rows(n, cu_seqlens):
    return n if cu_seqlens is None else slice(0, 1)


TOY = ops.Backend(
    "toy",
    kernels={
        "block": ops.Kernel(block_forward, block_backward),
        "lag": ops.Kernel(lag_forward, lag_backward),
    },
    devices=("cpu",),
    stepwise=False,
)


def pytest_configure(config):
    ops.BACKENDS.register(TOY)


# The compiler takes half of the time, and its input does not depend on the kernel.
SELECTED = "toy and not compile and not finite_differences and not torch.float16"


@pytest.mark.slow
def test_the_suite_runs_over_a_registered_backend_by_itself():
    command = [sys.executable, "-m", "pytest", "-q", "-p", TESTS.joinpath(__file__).stem]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", SELECTED, "--tb=short"]
    command += [f"--ignore={__file__}", str(TESTS)]
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 500
    assert "skipped" not in done.stdout


def test_a_registered_backend_is_reported_and_chosen_by_name():
    ops.BACKENDS.register(TOY)
    try:
        rows = backends.report(["cpu"], [torch.float32])
        assert {row["operator"] for row in rows} == {"block", "lag"}
        for row in rows:
            assert "used only if named explicitly" in row["others"]["toy"]
        values = torch.ones(1, 2, 1, 1)
        states, _ = ops.bd_lru(torch.zeros(1, 2, 1, 1, 2), values, backend="toy")
        assert states.flatten().tolist() == [0.5, 0.75]
        with pytest.raises(ValueError, match="backend 'toy' needs tensors on cpu"):
            ops.block_scan(
                *[torch.zeros(s, device="meta") for s in ((1, 2, 1, 1, 1), (1, 2, 1, 1))],
                backend="toy",
            )
    finally:
        ops.BACKENDS.remove("toy")
    with pytest.raises(ValueError, match="backend must be one of"):
        ops.check_backend("toy")
