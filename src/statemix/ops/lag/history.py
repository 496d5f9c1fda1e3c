"""The last m states at any step: the state of the controller form."""

import torch
from torch import Tensor

from statemix.ops.packing import previous


def preceding(states: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None) -> list[Tensor]:
    """Return the m states before every step: h_{t-1}, ..., h_{t-m}, each shaped like ``states``.

    Args:
        states: h, shape (B, T, H).
        initial_state: the m states before the first step, newest first, (B, H, m) or (N, H, m).
        cu_seqlens: bounds of packed sequences, or None.
    """
    size, length = initial_state.shape[-1], states.shape[1]
    if cu_seqlens is None:
        # Entry t + m is h_t: the lags are slices of one history, oldest state first.
        before = initial_state.flip(-1).movedim(-1, 1).to(states.dtype)
        history = torch.cat([before, states], dim=1)
        return [history[:, size - k : size - k + length] for k in range(1, size + 1)]
    lags, newer = [], states
    for k in range(size):
        newer = previous(newer, initial_state[..., k], cu_seqlens)
        lags.append(newer)
    return lags


def lagged(states: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Return the last m states at every step, newest first: the state of the controller form.

    Args:
        states: h, shape (B, T, H).
        initial_state: the m states before the first step, newest first, (B, H, m) or (N, H, m).
        cu_seqlens: bounds of packed sequences, or None.

    Returns:
        Shape (B, T, H, m).
    """
    lags = [states, *preceding(states, initial_state[..., :-1], cu_seqlens)]
    # Channels stay innermost in memory, as in the kernels and projections.
    return torch.stack(lags, dim=2).transpose(-1, -2)


def final_lags(states: Tensor, initial_state: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the last m states of every packed sequence, newest first.

    A sequence of fewer than m steps is completed by its initial states.

    Args:
        states: h, shape (1, T, H) with T >= 1.
        initial_state: shape (N, H, m).
        cu_seqlens: bounds, shape (N+1,).

    Returns:
        Shape (N, H, m).
    """
    lag = torch.arange(initial_state.shape[-1], device=states.device)
    lengths = cu_seqlens.diff().unsqueeze(1)
    steps = cu_seqlens[1:].to(torch.int64).unsqueeze(1) - 1 - lag  # (N, m)
    within = states[0, steps.clamp(min=0)].transpose(1, 2)  # (N, H, m)
    older = (lag - lengths).clamp(min=0).to(torch.int64).unsqueeze(1)
    before = initial_state.gather(-1, older.expand(initial_state.shape))
    return torch.where((lag < lengths).unsqueeze(1), within, before)
