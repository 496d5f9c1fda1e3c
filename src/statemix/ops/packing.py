"""Packed sequences: several laid end to end in one row, bounded by ``cu_seqlens``.

Nothing here reads the bounds back from their device: what they say enters by indices and masks.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor


class Packing(NamedTuple):
    """What each step of a packed row is to its sequence.

    Attributes:
        sequence: number of the sequence that the step belongs to, int64, shape (T,).
        first: whether the step is the first of its sequence, bool, shape (T,).
        last: whether the step is the last of its sequence, bool, shape (T,).
        starts: index of the first step of every sequence, int64, shape (N,), clamped to the row.
        empty: whether a sequence has no step, bool, shape (N,).
    """

    sequence: Tensor
    first: Tensor
    last: Tensor
    starts: Tensor
    empty: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, length: int) -> Self:
        """Read bounds 0 = c_0 <= ... <= c_N = T, shape (N+1,), of a row of T steps."""
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
    """The sequence that each packed step belongs to, and its position within it, each (T,)."""
    steps = torch.arange(length, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens.to(torch.int64).contiguous(), steps, right=True) - 1
    return sequence, steps - cu_seqlens[sequence]


def over(mask: Tensor, ndim: int, axis: int = 1) -> Tensor:
    """A mask over steps (``axis`` 1) or sequences (``axis`` 0), for tensors of ``ndim`` axes."""
    return mask.view(*(1,) * axis, -1, *(1,) * (ndim - axis - 1))


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
    if x.shape[1] == 0:
        return x
    shifted = torch.cat([x[:, :1], x], dim=1)[:, : x.shape[1]]
    sequence, position = positions(cu_seqlens, x.shape[1])
    started = initial.to(x.dtype)[sequence].unsqueeze(0)
    return torch.where(over(position == 0, x.ndim), started, shifted)


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
    last = x[0, (cu_seqlens[1:].to(torch.int64) - 1).clamp(min=0)]
    return torch.where(over(cu_seqlens.diff() > 0, initial.ndim, axis=0), last, initial)
