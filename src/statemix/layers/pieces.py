"""Run a layer in pieces of time, one after the other, or each in a process of its own."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from statemix.ops.dispatch import check_bounds

LayerRun = Callable[[Tensor, Tensor, Tensor | None, "Noise", Any], tuple[Tensor, Tensor]]


class Noise(NamedTuple):
    """Noise of a layer in training."""

    gates: float = 0.0  # standard deviation in the raw gates
    hidden: float = 0.0  # probability with which the output projection does not see a block


def check_slice(
    group: object, cu_seqlens: Tensor | None, checkpoint_every: int | None = None
) -> None:
    """Check that a layer can run over a slice of sequences whose time processes share."""
    if cu_seqlens is not None:
        raise ValueError("cu_seqlens must be None with a group: each row is one sequence's slice")
    if checkpoint_every is not None:
        raise ValueError(f"checkpoint_every must be None with a group, got {checkpoint_every}")
    if not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        kind = type(group).__name__
        raise TypeError(f"group must be a torch.distributed.ProcessGroup, got {kind}")


def run_in_pieces(
    run: LayerRun, x: Tensor, state: Tensor, cu_seqlens: Tensor | None, noise: Noise, length: int
) -> tuple[Tensor, Tensor]:
    """Return what ``run`` returns of a whole sequence, and keep only the states between pieces.

    ``run`` has the other arguments of this function, but for the length of a piece, and returns
    outputs and states; it draws the same noise when it runs again.
    """
    outputs = []
    for piece, bounds in _pieces(x, cu_seqlens, length):
        y, state = checkpoint(
            *(run, piece, state, bounds, noise, None),
            use_reentrant=False,
            preserve_rng_state=any(noise),
        )
        outputs.append(y)
        # It may be a view, which would keep the states of a whole piece.
        state = state.clone()
    return torch.cat(outputs, dim=1), state


def _pieces(
    x: Tensor, cu_seqlens: Tensor | None, length: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Cut x (B, T, hidden_size) into pieces of time, with their own bounds of packed sequences.

    In a piece, sequences that lie elsewhere are empty: their states pass through. A piece keeps the
    states of all sequences, so rows of more sequences than a piece has tokens stay whole.
    """
    if cu_seqlens is None:
        yield from ((piece, None) for piece in torch.split(x, length, dim=1))
        return
    # Those of the pieces would hide wrong ones.
    check_bounds(cu_seqlens, x.shape[1])
    if len(cu_seqlens) > length + 1:
        length = x.shape[1]
    begun = 0
    for piece in torch.split(x, length, dim=1):
        yield piece, (cu_seqlens - begun).clamp(0, piece.shape[1])
        begun += length


def can_run_in_pieces() -> bool:
    """Return whether PyTorch can run a piece again: not in exported graphs or transforms."""
    return not (torch.compiler.is_exporting() or torch._C._are_functorch_transforms_active())
