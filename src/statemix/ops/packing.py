"""Packed sequences: several laid end to end in one row, bounded by ``cu_seqlens``."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from statemix.ops.checks import check_cu_seqlens_values

Scan = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def scan_each(
    scan: Scan, coefficients: Tensor, inputs: Tensor, initial_state: Tensor, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor]:
    """Run ``scan`` over every packed sequence on its own, from its own initial state.

    Args:
        scan: a function of (coefficients, inputs, initial_state) that returns states and the final
            state.
        coefficients: shape (1, T, ...).
        inputs: shape (1, T, ...).
        initial_state: one row per sequence, shape (N, H, m).
        cu_seqlens: bounds 0 = c_0 <= ... <= c_N = T, shape (N+1,).

    Returns:
        states: like ``inputs``.
        final_state: shape (N, H, m).

    Raises:
        ValueError: if the bounds do not rise from 0 to T.
    """
    check_cu_seqlens_values(cu_seqlens, inputs.shape[1])
    bounds = cu_seqlens.tolist()
    pieces = [
        scan(coefficients[:, start:stop], inputs[:, start:stop], h_0.unsqueeze(0))
        for (start, stop), h_0 in zip(pairwise(bounds), initial_state.unbind(0), strict=True)
    ]
    if not pieces:
        return inputs.clone(), initial_state.clone()
    states, finals = zip(*pieces, strict=True)
    return torch.cat(states, dim=1), torch.cat(finals, dim=0)


def previous(x: Tensor, initial: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Shift by one step: x_{t-1} at step t, and ``initial`` at the start of every sequence.

    Args:
        x: shape (B, T, ...).
        initial: what stands before the first step, shape (B, ...), or (N, ...) if packed.
        cu_seqlens: bounds of packed sequences, shape (N+1,), or None.

    Returns:
        Shape (B, T, ...).
    """
    if cu_seqlens is None:
        return torch.cat([initial.to(x.dtype).unsqueeze(1), x], dim=1)[:, : x.shape[1]]
    shifted = torch.cat([x[:, :1], x], dim=1)[:, : x.shape[1]]
    sequence, position = positions(cu_seqlens, x.shape[1])
    first = (position == 0).view(1, -1, *(1,) * (x.ndim - 2))
    return torch.where(first, initial.to(x.dtype)[sequence].unsqueeze(0), shifted)


def positions(cu_seqlens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The sequence that each packed step belongs to, and its position within it, each (T,)."""
    steps = torch.arange(length, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens.to(torch.int64), steps, right=True) - 1
    return sequence, steps - cu_seqlens[sequence]


def last_of_each(x: Tensor, initial: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The entry of x at the last step of every sequence, or ``initial`` where a sequence is empty.

    Args:
        x: shape (B, T, ...).
        initial: shape (B, ...), or (N, ...) if packed.
        cu_seqlens: bounds of packed sequences, shape (N+1,), or None.

    Returns:
        Shape like ``initial``.
    """
    if cu_seqlens is None:
        return x[:, -1] if x.shape[1] else initial.clone()
    if x.shape[1] == 0:
        return initial.clone()
    lengths = cu_seqlens.diff()
    last = x[0, (cu_seqlens[1:] - 1).clamp(min=0)]
    return torch.where((lengths > 0).view(-1, *(1,) * (x.ndim - 2)), last, initial)
