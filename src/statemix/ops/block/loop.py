"""The block recurrence as a loop over time on whole batches, with a hand-written adjoint."""

import torch
from torch import Tensor

from statemix.ops.packing import Packing, last_of_each, over, previous


def forward(
    transitions: Tensor, inputs: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return states and final states.

    Args:
        transitions: A, shape (B, T, H, m, m).
        inputs: b, shape (B, T, H, m), same dtype.
        initial_state: h_0, shape (B, H, m), or (N, H, m) if packed.
        cu_seqlens: bounds of packed sequences, or None.

    Returns:
        states: like ``inputs``, blocks innermost in memory.
        final_state: like ``initial_state``.
    """
    rows = transitions.permute(1, 0, 3, 4, 2).contiguous()  # (T, B, m, m, H)
    terms = inputs.permute(1, 0, 3, 2).contiguous()  # (T, B, m, H)
    h = initial_state.transpose(1, 2)
    starts = None
    if cu_seqlens is not None:
        packing = Packing.of(cu_seqlens, len(terms))
        starts, h = h[packing.sequence], h.new_zeros(terms.shape[1:])
    states = torch.empty_like(terms)
    for t, (A_t, b_t, h_t) in enumerate(
        zip(rows.unbind(0), terms.unbind(0), states.unbind(0), strict=True)
    ):
        if starts is not None:
            h = torch.where(packing.first[t], starts[t], h)
        torch.sum(A_t * h.unsqueeze(1), dim=2, out=h_t)
        h_t += b_t
        h = h_t
    logical = states.permute(1, 0, 3, 2)
    return logical, last_of_each(logical, initial_state, cu_seqlens).clone()


def backward(
    d_states: Tensor,
    d_final_state: Tensor,
    transitions: Tensor,
    inputs: Tensor,  # noqa: ARG001
    states: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the gradients of transitions, inputs and initial states by the adjoint recurrence.

    .. math:: \lambda_t = dy_t + A_{t+1}^T \lambda_{t+1}
    """
    rows = transitions.permute(1, 0, 3, 4, 2).contiguous()  # (T, B, m, m, H)
    adjoints = d_states.permute(1, 0, 3, 2).contiguous().clone()  # (T, B, m, H)
    carry = d_final_state.transpose(1, 2)
    ends = None
    if cu_seqlens is not None:
        packing = Packing.of(cu_seqlens, len(adjoints))
        ends, carry = carry[packing.sequence], carry.new_zeros(adjoints.shape[1:])
    steps = zip(rows.unbind(0), adjoints.unbind(0), strict=True)
    for t, (A_t, lam) in reversed(list(enumerate(steps))):
        if ends is not None:
            carry = torch.where(packing.last[t], ends[t], carry)
        lam += carry
        carry = (A_t * lam.unsqueeze(2)).sum(1)
    d_initial = carry.transpose(1, 2)
    if cu_seqlens is not None:
        d_initial = d_final_state
        if len(adjoints):
            first = packing.starts
            reached = (rows[first, 0] * adjoints[first, 0].unsqueeze(2)).sum(1).transpose(1, 2)
            d_initial = torch.where(over(packing.empty, 3, axis=0), d_final_state, reached)
    before = previous(states, initial_state, cu_seqlens).permute(1, 0, 3, 2)
    d_transitions = adjoints.unsqueeze(3) * before.unsqueeze(2)  # (T, B, m, m, H)
    return (
        d_transitions.permute(1, 0, 4, 2, 3),
        adjoints.permute(1, 0, 3, 2),
        d_initial.clone(),
    )
