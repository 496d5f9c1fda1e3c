"""Padded rows as packed sequences, for every layer: ``pack`` and ``unpack``."""

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from statemix.ops.checks import bind


def pack(x: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the real tokens of padded rows, packed into one row, and the bounds of the rows.

    A layer that runs on the packed row gives each row's tokens the outputs, and each row the state,
    that the row would have alone. Padding may be anywhere in a row, and costs nothing. The number
    of real tokens is read back from the device.

    Args:
        x: shape (B, T, ...).
        attention_mask: 1 or True for tokens, 0 or False for padding; bool or integer, shape (B, T).

    Returns:
        packed: shape (1, number of tokens, ...).
        cu_seqlens: bounds of the B sequences, int64, shape (B+1,).

    Raises:
        ValueError: if a shape or a device disagrees or (on the CPU) an entry is neither 0 nor 1.
        TypeError: if the mask is neither bool nor integer.

    Example:
        >>> from statemix.layers import BDLRU
        >>> layer = BDLRU(hidden_size=8, num_blocks=4, block_size=2)
        >>> x, mask = torch.randn(2, 3, 8), torch.tensor([[0, 1, 1], [1, 0, 0]])
        >>> packed, cu_seqlens = pack(x, mask)
        >>> y, state = layer(packed, None, cu_seqlens)
        >>> packed.shape, unpack(y, mask).shape, state.shape
        (torch.Size([1, 3, 8]), torch.Size([2, 3, 8]), torch.Size([2, 4, 2]))
    """
    mask = _as_bool(attention_mask)
    if mask.shape != x.shape[:2]:
        shape = ", ".join(f"{axis}={size}" for axis, size in zip("BT", x.shape, strict=False))
        raise ValueError(f"attention_mask must have shape ({shape}), got {tuple(mask.shape)}")
    if mask.device != x.device:
        raise ValueError(f"attention_mask must be on {x.device}, got {mask.device}")
    bounds = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
    return x[mask].unsqueeze(0), bounds


def unpack(packed: Tensor, attention_mask: Tensor) -> Tensor:
    """Undo :func:`pack`: return padded rows with zeros at the padding.

    Args:
        packed: shape (1, number of tokens, ...).
        attention_mask: the mask given to :func:`pack`, shape (B, T).

    Returns:
        Shape (B, T, ...).
    """
    mask = _as_bool(attention_mask)
    return packed.new_zeros(*mask.shape, *packed.shape[2:]).index_put((mask,), packed[0])


def _as_bool(mask: Tensor) -> Tensor:
    bind({}, "attention_mask", mask, "B T")
    if mask.dtype.is_floating_point or mask.dtype.is_complex:
        raise TypeError(f"attention_mask must be bool or integer, got {mask.dtype}")

    def check() -> None:
        wrong = mask[(mask != 0) & (mask != 1)]
        if len(wrong):
            raise ValueError(f"attention_mask must be 0 or 1, got {int(wrong[0])}")

    if mask.dtype != torch.bool:
        check_values(mask, check)
    return mask.bool()


def check_values(tensor: Tensor, check: Callable[[], None]) -> None:
    """Run a check that reads ``tensor``, unless reading waits for a device or breaks a graph."""
    if tensor.is_cpu and not torch.compiler.is_compiling():
        # Fake tensors, and those mapped by vmap, have no values to read.
        with suppress(RuntimeError):
            check()
