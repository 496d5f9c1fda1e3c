r"""The two realizations of the higher-order recurrence, and the meaning of their states.

The state of the controller form is the last m outputs. The observer form has the same eigenvalues
but delayed gates, and its state consists of partial sums:

.. math::
    s^k_t = a_{k,t} s^1_{t-1} + s^{k+1}_{t-1} + [k = 1] \, b_t \quad (s^{m+1} = 0), \qquad
    y_t = s^1_t

Eliminating the partial sums s^2 ... s^m gives y_t = sum_i a_{i,t-i+1} y_{t-i} + b_t, a lag
recurrence with delayed coefficients, so neither form builds companion matrices.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.ops.packing import last_of_each, positions, previous


def observer_scan(
    lag_scan: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    coefficients: Tensor,
    inputs: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Solve the observer form by a lag recurrence with delayed coefficients.

    Args:
        lag_scan: solves the controller form from (coefficients, inputs, initial lags).
        coefficients: a, shape (B, T, H, m).
        inputs: b, shape (B, T, H), same dtype.
        initial_state: the partial sums s^1 ... s^m, shape (B, H, m), or (N, H, m) if packed.
        cu_seqlens: bounds of packed sequences, or None.

    Returns:
        states: y_1 ... y_T, shape (B, T, H).
        final_state: the partial sums at the end of every sequence, like ``initial_state``.
    """
    length, size = inputs.shape[1], coefficients.shape[-1]
    # The initial partial sum s^{k+1} enters the output k steps after the start.
    owed = initial_state[..., 1:].transpose(1, 2)  # (N, m-1, H)
    if cu_seqlens is None:
        position = torch.arange(length, device=inputs.device)
        inflow = inputs + F.pad(owed, (0, 0, 0, length - owed.shape[1]))
    else:
        sequence, position = positions(cu_seqlens, length)
        arrives = F.pad(owed, (0, 0, 0, 1))[sequence, position.clamp(max=size - 1)]
        inflow = inputs + arrives
    delayed = [
        torch.where(
            (position >= delay).view(-1, 1),
            F.pad(coefficients[..., delay], (0, 0, delay, 0))[:, :length],
            torch.zeros((), dtype=inputs.dtype, device=inputs.device),
        )
        for delay in range(size)
    ]
    # Only the first lag may precede the start: there, the other coefficients are zero.
    lags = F.pad(initial_state[..., :1], (0, size - 1))
    states, _ = lag_scan(torch.stack(delayed, dim=-1), inflow, lags)
    sums = partial_sums(coefficients, states, initial_state, cu_seqlens)
    return states, last_of_each(sums, initial_state, cu_seqlens)


def partial_sums(
    coefficients: Tensor, states: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None
) -> Tensor:
    """Return the partial sums s^1 ... s^m of the observer form at every step.

    Args:
        coefficients: a, shape (B, T, H, m).
        states: y = s^1, shape (B, T, H).
        initial_state: the partial sums before the first step, shape (B, H, m) or (N, H, m).
        cu_seqlens: bounds of packed sequences, or None.

    Returns:
        Shape (B, T, H, m).
    """
    before = previous(states, initial_state[..., 0], cu_seqlens)
    sums: list[Tensor] = []
    for k in range(coefficients.shape[-1] - 1, 0, -1):
        s = coefficients[..., k] * before
        if sums:
            s = s + previous(sums[-1], initial_state[..., k + 1], cu_seqlens)
        sums.append(s)
    return torch.stack([states, *reversed(sums)], dim=2).transpose(-1, -2)


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
