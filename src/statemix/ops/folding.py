"""Turn a problem with an axis mapped by ``vmap`` into one larger problem, and back.

The mapped axis becomes part of the batch, or part of time in a packed row.
"""

import torch
from torch import Tensor


def in_front(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """Move the mapped axis to the front, or expand a shared tensor by a new axis in front."""
    if dim is None:
        return tensor.expand(count, *tensor.shape)
    return tensor.movedim(dim, 0)


class Folding:
    """Fold tensors with a mapped axis in front into one problem, and unfold its results.

    Args:
        count: size of the mapped axis, V.
        cu_seqlens: bounds of packed sequences, or None.
        length: steps T of each of the V problems.
    """

    def __init__(self, count: int, cu_seqlens: Tensor | None, length: int) -> None:
        self.count = count
        self.packed = cu_seqlens is not None
        self.cu_seqlens = cu_seqlens
        if cu_seqlens is not None:
            offsets = length * torch.arange(count, device=cu_seqlens.device).unsqueeze(1)
            starts = (cu_seqlens[:-1] + offsets).flatten()
            # Each sequence ends where the next one starts; only the last needs its own end.
            self.cu_seqlens = torch.cat([starts, cu_seqlens[-1:] + length * (count - 1)])

    def fold(self, tensor: Tensor) -> Tensor:
        """(V, B, T, ...) -> (V*B, T, ...), or (1, V*T, ...) if packed."""
        return tensor.transpose(0, 1).flatten(1, 2) if self.packed else tensor.flatten(0, 1)

    def unfold(self, tensor: Tensor) -> Tensor:
        """Undo :meth:`fold`."""
        return self._split(tensor, 1).transpose(0, 1) if self.packed else self._split(tensor, 0)

    def unfold_state(self, state: Tensor) -> Tensor:
        """(V*N, H, m) -> (V, N, H, m)."""
        return self._split(state, 0)

    def _split(self, tensor: Tensor, dim: int) -> Tensor:
        shape = tensor.shape
        parts = (self.count, shape[dim] // self.count)
        return tensor.reshape(*shape[:dim], *parts, *shape[dim + 1 :])
