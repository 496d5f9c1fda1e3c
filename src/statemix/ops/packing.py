"""Packed sequences: several sequences end to end in one row, bounded by ``cu_seqlens``.

Bounds stay on their device: this module only derives indices and masks from them.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor


class Packing(NamedTuple):
    """The place of each step of a packed row in its sequence.

    Attributes:
        sequence: index of the step's sequence, int64, shape (T,).
        first: mask of the first step of each sequence, bool, shape (T,).
        last: mask of the last step of each sequence, bool, shape (T,).
        starts: index of the first step of each sequence, int64, shape (N,), clamped to the row.
        empty: mask of the sequences without steps, bool, shape (N,).
    """

    sequence: Tensor
    first: Tensor
    last: Tensor
    starts: Tensor
    empty: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, length: int) -> Self:
        """Derive the packing of a row of T steps from bounds 0 = c_0 <= ... <= c_N = T, (N+1,)."""
        sequence, position = positions(cu_seqlens, length)
        steps = torch.arange(length, device=cu_seqlens.device)
        return cls(
            sequence,
            position == 0,
            steps + 1 == cu_seqlens[sequence + 1],
            cu_seqlens[:-1].to(torch.int64).clamp(max=max(length - 1, 0)),
            cu_seqlens.diff() == 0,
        )


def positions(cu_seqlens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the sequence index of each packed step and its position in the sequence, each (T,)."""
    steps = torch.arange(length, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens.to(torch.int64).contiguous(), steps, right=True) - 1
    return sequence, steps - cu_seqlens[sequence]


def over(mask: Tensor, ndim: int, axis: int = 1) -> Tensor:
    """Reshape a mask over steps (``axis`` 1) or sequences (``axis`` 0) to ``ndim`` axes."""
    return mask.view(*(1,) * axis, -1, *(1,) * (ndim - axis - 1))


def previous(x: Tensor, initial: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Shift by one step: x_{t-1} at step t, and ``initial`` at the start of every sequence.

    Args:
        x: shape (B, T, ...).
        initial: entry before the first step, shape (B, ...), or (N, ...) if packed.
        cu_seqlens: bounds of packed sequences, shape (N+1,), or None.

    Returns:
        Shape (B, T, ...).
    """
    if cu_seqlens is None:
        return torch.cat([initial.to(x.dtype).unsqueeze(1), x], dim=1)[:, : x.shape[1]]
    if x.shape[1] == 0:
        return x
    shifted = torch.cat([x[:, :1], x], dim=1)[:, : x.shape[1]]
    sequence, position = positions(cu_seqlens, x.shape[1])
    started = initial.to(x.dtype)[sequence].unsqueeze(0)
    return torch.where(over(position == 0, x.ndim), started, shifted)


def last_of_each(x: Tensor, initial: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Return the last entry of every sequence in x, or ``initial`` for an empty sequence.

    Args:
        x: shape (B, T, ...).
        initial: entry before the first step, shape (B, ...), or (N, ...) if packed.
        cu_seqlens: bounds of packed sequences, shape (N+1,), or None.

    Returns:
        Shape like ``initial``.
    """
    if cu_seqlens is None:
        return x[:, -1] if x.shape[1] else initial.clone()
    if x.shape[1] == 0:
        return initial.clone()
    last = x[0, (cu_seqlens[1:].to(torch.int64) - 1).clamp(min=0)]
    return torch.where(over(cu_seqlens.diff() > 0, initial.ndim, axis=0), last, initial)
