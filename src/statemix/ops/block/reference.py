"""Sequential definition of the block recurrence: slow, obvious, the standard for all backends."""

import torch
from torch import Tensor

from statemix.ops.packing import Packing, last_of_each


def scan(
    transitions: Tensor, inputs: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = A_t h_{t-1} + b_t, one step at a time; h_{t-1} is h_0 where a sequence starts."""
    length = inputs.shape[1]
    h = initial_state
    if cu_seqlens is not None and length:
        packing = Packing.of(cu_seqlens, length)
        starts = initial_state[packing.sequence].unsqueeze(1)  # h_0 (T, 1, H, m)
        h = torch.zeros_like(starts[0])
    states = []
    for t, (A_t, b_t) in enumerate(zip(transitions.unbind(1), inputs.unbind(1), strict=True)):
        if cu_seqlens is not None:
            h = torch.where(packing.first[t], starts[t], h)
        h = (A_t * h.unsqueeze(-2)).sum(-1) + b_t
        states.append(h)
    if not states:
        return inputs.clone(), initial_state.clone()
    stacked = torch.stack(states, dim=1)
    return stacked, last_of_each(stacked, initial_state, cu_seqlens).clone()
