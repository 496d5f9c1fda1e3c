"""Controller and observer form: two states, one characteristic polynomial."""

import torch
from tests.ops.conftest import in_pairs, usable

from statemix import ops


def transposed_companions(coefficients):
    """Coefficients in the first column, ones above the diagonal: the observer form as a block."""
    size = coefficients.shape[-1]
    shift = coefficients.new_ones(size - 1).diag(1)
    column = coefficients.new_zeros(size)
    column[0] = 1.0
    return shift + coefficients.unsqueeze(-1) * column


def simulated(p, gate):
    """All partial sums and the final ones, by whole matrices; differentiable by autograd."""
    a, a_0 = ops.normalize(p.gates, gate)
    inputs = torch.zeros_like(a) + 0.0
    inputs = torch.cat([(a_0 * p.values).unsqueeze(-1), inputs[..., 1:]], -1)
    return ops.block_scan(transposed_companions(a), inputs, p.initial_state, backend="reference")


@in_pairs(size=[1, 2, 3, 6], length=[0, 1, 2, 4, 9], **usable())
def test_observer_form_equals_a_simulation_with_matrices(problem, agree, length, size, backend):
    p = problem("lags", length=length, size=size)
    actual = p.outcome(realization="observer", backend=backend)
    leaves = [leaf.clone().requires_grad_() for leaf in p.leaves]
    sums, final_state = simulated(
        p.replace(gates=leaves[0], values=leaves[1], initial_state=leaves[2]), "softmax"
    )
    results = (sums[..., 0], final_state)
    gradients = torch.autograd.grad(
        results, leaves, (p.d_states, p.d_final_state), materialize_grads=True
    )
    agree(actual, dict(zip(actual, (*results, *gradients), strict=True)))
