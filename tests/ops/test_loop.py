"""The loop over time: its hand-written adjoint and its memory order."""

import pytest
import torch

from statemix.ops import block, lag

SCANS = {"blocks": block.reference.scan, "lags": lag.reference.scan}
LOOPS = {"blocks": block.loop, "lags": lag.loop}


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("length", [0, 1, 3, 12])
def test_adjoint_by_hand_equals_autograd(problem, agree, kind, length, size):
    p = problem(kind, length=length, size=size)
    leaves = [leaf.clone().requires_grad_() for leaf in (p.gates[..., :-1], *p.leaves[1:])]
    results = SCANS[kind](*leaves)
    cotangents = (p.d_states, p.d_final_state)
    gradients = torch.autograd.grad(results, leaves, cotangents, materialize_grads=True)
    a, b, h_0 = (leaf.detach() for leaf in leaves)
    states, final_state = LOOPS[kind].forward(a, b, h_0, None)
    adjoints = LOOPS[kind].backward(*cotangents, a, b, states, h_0, None)
    agree(
        dict(enumerate((states, final_state, *adjoints))),
        dict(enumerate((*results, *gradients))),
    )


def test_states_have_blocks_innermost_in_memory(problem, kind):
    p = problem(kind, length=4, blocks=7, size=2)
    states, _ = LOOPS[kind].forward(p.gates[..., :-1], p.values, p.initial_state, None)
    assert states.stride(2) == 1
