"""Memory order and dtypes shared by operators and backends.

Shapes are logical. In memory, blocks (or channels) are innermost: one vector lane, or one thread of
an accelerator, is one block. States are float32 or wider, whatever the dtype of the arguments.
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
    """Return ``tensor`` with stride 1 along ``axis``: itself if it has that stride, else a copy.

    The other axes may have any order and any strides.
    """
    if tensor.stride(axis) == 1 or tensor.shape[axis] == 1:
        return tensor
    return dense(tensor, axis)


def dense(tensor: Tensor, axis: int = BLOCK_AXIS) -> Tensor:
    """Return ``tensor`` contiguous with ``axis`` innermost and the other axes in order."""
    return tensor.movedim(axis, -1).contiguous().movedim(-1, axis)


def empty_innermost(
    shape: torch.Size | tuple[int, ...], like: Tensor, axis: int = BLOCK_AXIS
) -> Tensor:
    """Return an uninitialised tensor of a logical shape, stored as :func:`dense` stores it.

    Args:
        shape: logical shape.
        like: tensor that determines dtype and device.
        axis: innermost axis in memory.
    """
    order = [*shape[:axis], *shape[axis + 1 :], shape[axis]]
    empty = torch.empty(order, dtype=like.dtype, device=like.device)
    return empty if axis == len(shape) - 1 else empty.movedim(-1, axis)
