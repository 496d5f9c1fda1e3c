"""Sequential definitions of the recurrences: slow, obvious, and the judge of every other path."""

import torch
from torch import Tensor


def block_scan(transitions: Tensor, inputs: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h_t = A_t h_{t-1} + b_t, one step at a time."""
    h = initial_state
    states = []
    for A_t, b_t in zip(transitions.unbind(1), inputs.unbind(1), strict=True):
        h = (A_t * h.unsqueeze(-2)).sum(-1) + b_t
        states.append(h)
    return torch.stack(states, dim=1) if states else inputs.clone(), h.clone()


def lag_scan(coefficients: Tensor, inputs: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h_t = sum_i a_{i,t} h_{t-i} + b_t, one step at a time, newest lag first."""
    lags = initial_state
    states = []
    for a_t, b_t in zip(coefficients.unbind(1), inputs.unbind(1), strict=True):
        h_t = (a_t * lags).sum(-1) + b_t
        lags = torch.cat([h_t.unsqueeze(-1), lags[..., :-1]], dim=-1)
        states.append(h_t)
    return torch.stack(states, dim=1) if states else inputs.clone(), lags.clone()
