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


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which states are carried for arguments of ``dtype``."""
    return torch.promote_types(dtype, torch.float32)


def innermost(tensor: Tensor, axis: int = BLOCK_AXIS) -> Tensor:
    """Return ``tensor``, or a copy, with stride 1 along ``axis``; other axes have any order."""
    if tensor.stride(axis) == 1 or tensor.shape[axis] == 1:
        return tensor
    return dense(tensor, axis)


def dense(tensor: Tensor, axis: int = BLOCK_AXIS) -> Tensor:
    """Return ``tensor``, or a copy, contiguous with ``axis`` innermost and other axes in order."""
    if tensor.stride() == dense_strides(tensor.shape, axis):
        return tensor
    return empty_innermost(tensor.shape, tensor, axis).copy_(tensor)


def dense_strides(shape: torch.Size | tuple[int, ...], axis: int = BLOCK_AXIS) -> tuple[int, ...]:
    """Return the strides of a tensor of this shape that :func:`dense` has stored."""
    strides, inner = [1] * len(shape), _at_least_one(shape[axis])
    for other in range(len(shape) - 1, -1, -1):
        if other != axis:
            strides[other] = inner
            inner *= _at_least_one(shape[other])
    return tuple(strides)


def _at_least_one(size: int) -> int:
    # A compiler cannot compare a size that depends on data, such as the tokens of a mask.
    return torch.sym_max(size, 1) if isinstance(size, torch.SymInt) else max(size, 1)


def empty_innermost(
    shape: torch.Size | tuple[int, ...], like: Tensor, axis: int = BLOCK_AXIS
) -> Tensor:
    """Return an uninitialised tensor of a logical shape, stored as :func:`dense` stores it."""
    strides = dense_strides(shape, axis)
    return torch.empty_strided(shape, strides, dtype=like.dtype, device=like.device)


def split_units(flat: Tensor, shape: tuple[int, ...], num_units: int) -> Tensor:
    """Return a projection (..., prod(shape) * H) as (..., H, *shape), H innermost in memory."""
    batch = flat.shape[:-1]
    return flat.reshape(*batch, *shape, num_units).movedim(-1, len(batch))


def join_units(units: Tensor, num_axes: int = 1) -> Tensor:
    """Return units (..., H, *shape), of ``num_axes`` axes each, as (..., prod(shape) * H)."""
    return units.movedim(-1 - num_axes, -1).flatten(-1 - num_axes)
