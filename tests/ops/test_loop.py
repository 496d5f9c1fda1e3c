"""The loop over time: its hand-written adjoint and its memory order."""

import pytest
import torch

from statemix import ops

SCANS = {"blocks": ops.block_scan, "lags": ops.lag_scan}


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("length", [0, 1, 3, 12])
def test_adjoint_by_hand_equals_autograd(problem, agree, kind, length, size):
    p = problem(kind, length=length, size=size)
    leaves = [leaf.clone().requires_grad_() for leaf in (p.gates[..., :-1], *p.leaves[1:])]

    def outcome(backend):
        results = SCANS[kind](*leaves, backend=backend)
        cotangents = (p.d_states, p.d_final_state)
        gradients = torch.autograd.grad(results, leaves, cotangents, materialize_grads=True)
        return dict(enumerate((*results, *gradients)))

    agree(outcome("loop"), outcome("reference"))


def test_states_have_blocks_innermost_in_memory(problem, kind):
    p = problem(kind, length=4, blocks=7, size=2)
    states, _ = SCANS[kind](p.gates[..., :-1], p.values, p.initial_state, backend="loop")
    assert states.stride(2) == 1
