"""Sequential definition of the lag recurrence: slow, obvious, the standard for all backends."""

import torch
from torch import Tensor

from statemix.ops.lag.history import final_lags
from statemix.ops.packing import Packing


def scan(
    coefficients: Tensor, inputs: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = sum_i a_{i,t} h_{t-i} + b_t, one step at a time, newest lag first."""
    length = inputs.shape[1]
    lags = initial_state
    if cu_seqlens is not None and length:
        packing = Packing.of(cu_seqlens, length)
        starts = initial_state[packing.sequence].unsqueeze(1)  # h_0, h_{-1}, ... (T, 1, H, m)
        lags = torch.zeros_like(starts[0])
    states = []
    for t, (a_t, b_t) in enumerate(zip(coefficients.unbind(1), inputs.unbind(1), strict=True)):
        if cu_seqlens is not None:
            lags = torch.where(packing.first[t], starts[t], lags)
        h_t = (a_t * lags).sum(-1) + b_t
        lags = torch.cat([h_t.unsqueeze(-1), lags[..., :-1]], dim=-1)
        states.append(h_t)
    if not states:
        return inputs.clone(), initial_state.clone()
    stacked = torch.stack(states, dim=1)
    if cu_seqlens is None:
        return stacked, lags.clone()
    return stacked, final_lags(stacked, initial_state, cu_seqlens)
