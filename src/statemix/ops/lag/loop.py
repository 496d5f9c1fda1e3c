"""The lag recurrence as a loop over time on whole batches, with a hand-written adjoint."""

import torch
from torch import Tensor

from statemix.ops.lag.history import final_lags, preceding
from statemix.ops.packing import Packing, over


def forward(
    coefficients: Tensor, inputs: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return states and final states.

    Args:
        coefficients: a, shape (B, T, H, m).
        inputs: b, shape (B, T, H), same dtype.
        initial_state: the m states before step 1, newest first, (B, H, m) or (N, H, m).
        cu_seqlens: bounds of packed sequences, or None.

    Returns:
        states: like ``inputs``, channels innermost in memory.
        final_state: like ``initial_state``.
    """
    rows = coefficients.permute(1, 0, 3, 2).contiguous()  # (T, B, m, H)
    lags = initial_state.transpose(1, 2)  # (B, m, H)
    states = torch.empty_like(inputs.transpose(0, 1).contiguous())  # (T, B, H)
    starts = None
    if cu_seqlens is not None:
        packing = Packing.of(cu_seqlens, len(states))
        starts, lags = lags[packing.sequence], lags.new_zeros(1, *lags.shape[1:])
    for t, (a_t, b_t, h_t) in enumerate(
        zip(rows.unbind(0), inputs.unbind(1), states.unbind(0), strict=True)
    ):
        if starts is not None:
            lags = torch.where(packing.first[t], starts[t], lags)
        torch.sum(a_t * lags, dim=1, out=h_t)
        h_t += b_t
        lags = torch.cat([h_t.unsqueeze(1), lags[:, :-1]], dim=1)
    logical = states.transpose(0, 1)
    if cu_seqlens is None:
        return logical, lags.transpose(1, 2).clone()
    if not len(states):
        return logical, initial_state.clone()
    return logical, final_lags(logical, initial_state, cu_seqlens)


def backward(
    d_states: Tensor,
    d_final_state: Tensor,
    coefficients: Tensor,
    inputs: Tensor,  # noqa: ARG001
    states: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the gradients of coefficients, inputs and initial states by the adjoint recurrence.

    .. math:: \lambda_t = dy_t + \sum_i a_{i,t+i} \lambda_{t+i}
    """
    rows = coefficients.permute(1, 0, 3, 2).contiguous()  # (T, B, m, H)
    adjoints = d_states.transpose(0, 1).contiguous().clone()  # (T, B, H)
    # Contributions of later steps to the gradients of h_t, h_{t-1}, ...
    pushed = d_final_state.transpose(1, 2)  # (B, m, H)
    ends, reached = None, []
    if cu_seqlens is not None:
        packing = Packing.of(cu_seqlens, len(adjoints))
        ends, pushed = pushed[packing.sequence], pushed.new_zeros(1, *pushed.shape[1:])
    steps = zip(rows.unbind(0), adjoints.unbind(0), strict=True)
    for t, (a_t, lam) in reversed(list(enumerate(steps))):
        if ends is not None:
            pushed = torch.where(packing.last[t], ends[t], pushed)
        lam += pushed[:, 0]
        later = torch.cat([pushed[:, 1:], torch.zeros_like(pushed[:, :1])], dim=1)
        pushed = later + a_t * lam.unsqueeze(1)
        if ends is not None:
            reached.append(pushed)
    d_initial = pushed.transpose(1, 2)
    if cu_seqlens is not None:
        d_initial = d_final_state
        if reached:
            at_starts = torch.cat(reached[::-1])[packing.starts].transpose(1, 2)
            d_initial = torch.where(over(packing.empty, 3, axis=0), d_final_state, at_starts)
    d_inputs = adjoints.transpose(0, 1)  # (B, T, H)
    lags = preceding(states, initial_state, cu_seqlens)
    d_coefficients = torch.stack([d_inputs * lag for lag in lags], dim=2).transpose(2, 3)
    return d_coefficients, d_inputs, d_initial.clone()
