"""The path that needs no compiler: a loop over time on whole batches, with its adjoint by hand.

Blocks are innermost in memory, so that each step is a few elementwise passes over long rows. The
recurrences are un-normalised here; gates are normalised by PyTorch around it.
"""

import torch
from torch import Tensor


def scan_forward(
    coefficients: Tensor, inputs: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor]:
    """States and final state; inputs of four axes are blocks, of three are lags.

    Args:
        coefficients: (B, T, H, m, m) for blocks, (B, T, H, m) for lags.
        inputs: (B, T, H, m) or (B, T, H).
        initial_state: (B, H, m).

    Returns:
        states: like ``inputs``, blocks innermost in memory.
        final_state: (B, H, m).
    """
    if inputs.ndim == 4:
        return _block_forward(coefficients, inputs, initial_state)
    return _lag_forward(coefficients, inputs, initial_state)


def scan_backward(
    d_states: Tensor,
    d_final_state: Tensor,
    coefficients: Tensor,
    states: Tensor,
    initial_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of coefficients, inputs and initial state, by the adjoint recurrence."""
    if states.ndim == 4:
        return _block_backward(d_states, d_final_state, coefficients, states, initial_state)
    return _lag_backward(d_states, d_final_state, coefficients, states, initial_state)


def _block_forward(A: Tensor, b: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    rows = A.permute(1, 0, 3, 4, 2).contiguous()  # (T, B, m, m, H)
    terms = b.permute(1, 0, 3, 2).contiguous()  # (T, B, m, H)
    h = initial_state.transpose(1, 2)
    states = torch.empty_like(terms)
    for A_t, b_t, h_t in zip(rows.unbind(0), terms.unbind(0), states.unbind(0), strict=True):
        torch.sum(A_t * h.unsqueeze(1), dim=2, out=h_t)
        h_t += b_t
        h = h_t
    return states.permute(1, 0, 3, 2), h.transpose(1, 2).clone()


def _block_backward(
    d_states: Tensor, d_final_state: Tensor, A: Tensor, states: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows = A.permute(1, 0, 3, 4, 2).contiguous()  # (T, B, m, m, H)
    adjoints = d_states.permute(1, 0, 3, 2).contiguous().clone()  # (T, B, m, H)
    carry = d_final_state.transpose(1, 2)
    for A_t, lam in zip(reversed(rows.unbind(0)), reversed(adjoints.unbind(0)), strict=True):
        lam += carry
        carry = (A_t * lam.unsqueeze(2)).sum(1)
    before = torch.cat([initial_state.transpose(1, 2).unsqueeze(0), states.permute(1, 0, 3, 2)])
    d_A = adjoints.unsqueeze(3) * before[: len(adjoints)].unsqueeze(2)  # (T, B, m, m, H)
    d_b = adjoints.permute(1, 0, 3, 2)
    return d_A.permute(1, 0, 4, 2, 3), d_b, carry.transpose(1, 2).clone()


def _lag_forward(a: Tensor, b: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    rows = a.permute(1, 0, 3, 2).contiguous()  # (T, B, m, H)
    lags = initial_state.transpose(1, 2)  # (B, m, H)
    states = torch.empty_like(b.transpose(0, 1).contiguous())
    for a_t, b_t, h_t in zip(rows.unbind(0), b.unbind(1), states.unbind(0), strict=True):
        torch.sum(a_t * lags, dim=1, out=h_t)
        h_t += b_t
        lags = torch.cat([h_t.unsqueeze(1), lags[:, :-1]], dim=1)
    return states.transpose(0, 1), lags.transpose(1, 2).clone()


def _lag_backward(
    d_states: Tensor, d_final_state: Tensor, a: Tensor, states: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows = a.permute(1, 0, 3, 2).contiguous()  # (T, B, m, H)
    adjoints = d_states.transpose(0, 1).contiguous().clone()  # (T, B, H)
    pushed = d_final_state.transpose(1, 2)  # (B, m, H): what later steps add to h_t, h_{t-1}, ...
    for a_t, lam in zip(reversed(rows.unbind(0)), reversed(adjoints.unbind(0)), strict=True):
        lam += pushed[:, 0]
        later = torch.cat([pushed[:, 1:], torch.zeros_like(pushed[:, :1])], dim=1)
        pushed = later + a_t * lam.unsqueeze(1)
    size, length = initial_state.shape[-1], states.shape[1]
    # History h_{1-m} ... h_{T-1}, oldest first; lag i of step t is its entry t - i + m.
    history = torch.cat([initial_state.flip(-1).movedim(-1, 1), states], dim=1)
    lams = adjoints.transpose(0, 1)  # (B, T, H)
    d_coefficients = torch.stack(
        [lams * history[:, size - i : size - i + length] for i in range(1, size + 1)], dim=2
    )
    return d_coefficients.transpose(2, 3), lams, pushed.transpose(1, 2).clone()
