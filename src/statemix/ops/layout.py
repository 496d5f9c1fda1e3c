"""Memory order and dtypes that operators and backends agree on.

Shapes are logical; in memory, blocks (or channels) are innermost: one vector lane, or one thread of
an accelerator, is one block. States are kept in float32 or wider, whatever the arguments have.
"""

import torch
from torch import Tensor

BLOCK_AXIS = 2
"""The axis of blocks (or channels) in gates, values and states: (B, T, H, ...)."""

STATE_BLOCK_AXIS = 1
"""The axis of blocks (or channels) in initial and final states: (N, H, m)."""


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which states are carried for arguments of ``dtype``."""
    return torch.promote_types(dtype, torch.float32)


def innermost(tensor: Tensor, axis: int = BLOCK_AXIS) -> Tensor:
    """Return ``tensor`` with ``axis`` of stride 1: itself where that holds, else a copy.

    The other axes may lie in any order and with any strides.
    """
    if tensor.stride(axis) == 1 or tensor.shape[axis] == 1:
        return tensor
    return dense(tensor, axis)


def dense(tensor: Tensor, axis: int = BLOCK_AXIS) -> Tensor:
    """Return ``tensor`` stored without gaps, ``axis`` innermost and the others in their order."""
    return tensor.movedim(axis, -1).contiguous().movedim(-1, axis)


def empty_innermost(
    shape: torch.Size | tuple[int, ...], like: Tensor, axis: int = BLOCK_AXIS
) -> Tensor:
    """Return an uninitialised tensor of a logical shape, stored as :func:`dense` stores it.

    Args:
        shape: logical shape.
        like: tensor whose dtype and device the result has.
        axis: axis that is innermost in memory.
    """
    order = [*shape[:axis], *shape[axis + 1 :], shape[axis]]
    empty = torch.empty(order, dtype=like.dtype, device=like.device)
    return empty if axis == len(shape) - 1 else empty.movedim(-1, axis)
