"""Tensors that grow token by token, without being copied at every token."""

import threading

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from statemix.ops.shortcuts import are_plain, unobserved

# Entries that a buffer has room for at least, and the share of its entries that is room.
_LEAST_ROOM, _ROOM = 16, 4


class _Buffers:
    """Memory that tensors of several lengths share, as views of its first entries.

    Attributes:
        parts: buffers of shape (B, capacity, ...).
        filled: number of entries in use by some tensor. Entries below it never change.
    """

    def __init__(self, parts: tuple[Tensor, ...], length: int) -> None:
        capacity = length + max(length // _ROOM, _LEAST_ROOM)
        self.parts = tuple(
            part.new_empty(part.shape[0], capacity, *part.shape[2:]) for part in parts
        )
        self.filled = part_length = parts[0].shape[1]
        for buffer, part in zip(self.parts, parts, strict=True):
            buffer[:, :part_length] = part

    def can_hold(self, parts: tuple[Tensor, ...], length: int) -> bool:
        """Return whether ``parts`` are all that is in use here, and may become that long."""
        return (
            self.filled == parts[0].shape[1]
            and length <= self.parts[0].shape[1]
            and self.parts[0].is_inference() <= torch.is_inference_mode_enabled()
            and all(
                part.data_ptr() == buffer.data_ptr()
                and part.stride() == buffer.stride()
                and part.dtype == buffer.dtype
                and len(part) == len(buffer)
                for part, buffer in zip(parts, self.parts, strict=True)
            )
        )


# First of the tensors that `append` returned together -> their buffers.
_BUFFERS = WeakTensorKeyDictionary()
_LOCK = threading.Lock()


def append(parts: tuple[Tensor, ...], fresh: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Concatenate each part and its fresh entries along axis 1.

    The results may be views of buffers with spare room, in which the next call with them writes its
    fresh entries. ``parts`` keep their values, and may be continued several times: the first
    continuation uses the room, the others copy. Where a gradient is needed, or a transform or a
    compiler watches, this is ``torch.cat``.

    Args:
        parts: tensors of shape (B, S, ...), with the same B and S.
        fresh: tensors of shape (B, T, ...), with dtype and device of the part.
    """
    length = parts[0].shape[1]
    if length == 0 or not _may_share(parts + fresh):
        return tuple(torch.cat(both, 1) for both in zip(parts, fresh, strict=True))
    longer = length + fresh[0].shape[1]
    with _LOCK:
        buffers = _BUFFERS.get(parts[0])  # type: ignore[no-untyped-call]
        if buffers is None or not buffers.can_hold(parts, longer):
            buffers = _Buffers(parts, longer)
        buffers.filled = longer
    for buffer, part in zip(buffers.parts, fresh, strict=True):
        buffer[:, length:longer] = part
    grown = tuple(buffer[:, :longer] for buffer in buffers.parts)
    _BUFFERS[grown[0]] = buffers
    return grown


def without_room(part: Tensor) -> Tensor:
    """Return a tensor with the same values and no spare room behind them."""
    if part.untyped_storage().nbytes() <= part.nbytes:
        return part
    return part.clone(memory_format=torch.contiguous_format)


def _may_share(tensors: tuple[Tensor, ...]) -> bool:
    return (
        unobserved()
        and are_plain(*tensors)
        and not (torch.is_grad_enabled() and any(one.requires_grad for one in tensors))
    )
