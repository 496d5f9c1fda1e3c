"""Packed sequences: several sequences end to end in one row, bounded by ``cu_seqlens``.

Bounds stay on their device: only indices and masks are derived from them. :func:`pack` makes
packed sequences of padded rows, for every layer.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

import torch
from torch import Tensor

from statemix.ops.checks import bind


class Packing(NamedTuple):
    """The place of each step of a packed row in its sequence; :meth:`of` derives it from bounds.

    ``starts`` are the first steps of the N sequences, clamped to the row; ``empty`` have no steps.
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


class Chunks(NamedTuple):
    """How the sequences of a packed row are cut into chunks of time.

    Chunks have the same number of steps, but for the last of a sequence. They are numbered through
    all sequences; an empty one has one chunk, so that each has a place for what enters and leaves.
    All but the last of a sequence have a map, numbered likewise: sequence n has chunks from
    ``firsts[n] + n`` on, and maps from ``firsts[n]`` on. ``of_chunks`` and ``of_maps`` have the
    sequence of each number, -1 for those that none has; ``bounds`` rise from 0 to T, whatever was
    given. Shapes follow from N, T and the chunk alone.
    """

    of_chunks: Tensor
    of_maps: Tensor
    bounds: Tensor
    firsts: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, length: int, chunk: int) -> Self:
        """Cut N >= 1 sequences of a row of T >= 1 steps, without reading their bounds back."""
        num_sequences, most = len(cu_seqlens) - 1, (length - 1) // chunk
        bounds = cu_seqlens.to(torch.int64).clamp(0, length).cummax(0).values
        # Assigned to one entry, a number would be copied to the device, which waits for it.
        bounds[:1].fill_(0)
        bounds[-1:].fill_(length)
        if most == 0:
            firsts = torch.zeros_like(bounds)
            sequences = torch.arange(num_sequences, device=bounds.device)
            return cls(sequences, firsts[:0], bounds, firsts)
        counts = (bounds.diff() - 1).clamp(min=0) // chunk
        firsts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))

        def owners(begins: Tensor, count: int) -> Tensor:
            numbers = torch.arange(count, device=begins.device)
            sequence = torch.searchsorted(begins, numbers, right=True) - 1
            return torch.where(sequence == num_sequences, -1, sequence)

        chunks = firsts + torch.arange(num_sequences + 1, device=firsts.device)
        return cls(owners(chunks, num_sequences + most), owners(firsts, most), bounds, firsts)


def positions(cu_seqlens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the sequence index of each packed step and its position in the sequence, each (T,)."""
    steps = torch.arange(length, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens.to(torch.int64).contiguous(), steps, right=True) - 1
    return sequence, steps - cu_seqlens[sequence]


def over(mask: Tensor, ndim: int, axis: int = 1) -> Tensor:
    """Reshape a mask over steps (``axis`` 1) or sequences (``axis`` 0) to ``ndim`` axes."""
    return mask.view(*(1,) * axis, -1, *(1,) * (ndim - axis - 1))


def previous(x: Tensor, initial: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Shift (B, T, ...) by one step: x_{t-1} at step t, and ``initial`` where a sequence starts."""
    if cu_seqlens is None:
        return torch.cat([initial.to(x.dtype).unsqueeze(1), x], dim=1)[:, : x.shape[1]]
    shifted = torch.cat([x[:, :1], x], dim=1)[:, : x.shape[1]]
    sequence, position = positions(cu_seqlens, x.shape[1])
    started = initial.to(x.dtype)[sequence].unsqueeze(0)
    return torch.where(over(position == 0, x.ndim), started, shifted)


def last_of_each(x: Tensor, initial: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Return a copy of the last entry of every sequence in x, or ``initial`` for an empty one."""
    if cu_seqlens is None:
        # A view would keep the entries of all steps alive.
        return x[:, -1].clone() if x.shape[1] else initial.clone()
    if x.shape[1] == 0:
        return initial.clone()
    last = x[0, (cu_seqlens[1:].to(torch.int64) - 1).clamp(min=0)]
    return torch.where(over(cu_seqlens.diff() > 0, initial.ndim, axis=0), last, initial)


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

    Raises:
        ValueError: if a shape or a device disagrees, or the numbers of tokens do.
        TypeError: if the mask is neither bool nor integer.
    """
    mask = _as_bool(attention_mask)
    if len(packed) != 1:
        raise ValueError(f"packed must have one row, got shape {tuple(packed.shape)}")

    def check() -> None:
        if packed.shape[1] != (number := int(mask.sum())):
            raise ValueError(
                f"packed must have the {number} tokens of attention_mask, got {packed.shape[1]}"
            )

    check_values(mask, check)
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
