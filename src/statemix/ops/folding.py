"""Turn a scan with an axis mapped by ``vmap`` into one larger scan, and its results back.

The mapped axis becomes part of the batch, or part of time in a packed row.
"""

import torch
from torch import Tensor

from statemix.ops.backends import Scan


class Folding:
    """Fold V scans into one, and unfold its results.

    Args:
        count: size of the mapped axis, V.
        scan: arguments of all scans.
        dims: number of the mapped axis of each argument, None where it is shared.

    Attributes:
        scan: the one larger scan. A mapped temperature has divided its coefficients.

    Raises:
        ValueError: if ``cu_seqlens`` is mapped.
    """

    def __init__(self, count: int, scan: Scan, dims: Scan) -> None:
        if dims.cu_seqlens is not None:
            raise ValueError("cu_seqlens must not be mapped by vmap, got a mapped axis")
        self._count, bounds = count, scan.cu_seqlens
        self._packed = bounds is not None
        self._dtypes = scan.coefficients.dtype, scan.inputs.dtype
        self._divisor: Tensor | None = None
        coefficients = self._in_front(scan.coefficients, dims.coefficients)
        inputs = self._in_front(scan.inputs, dims.inputs)
        if scan.temperature is not None and dims.temperature is not None:
            wide, ones = scan.initial_state.dtype, (1,) * (coefficients.ndim - 1)
            self._divisor = scan.temperature.view(-1, *ones)
            coefficients, inputs = coefficients.to(wide) / self._divisor, inputs.to(wide)
            scan = scan._replace(temperature=None)
        if bounds is not None:
            length = inputs.shape[2]
            offsets = length * torch.arange(count, device=bounds.device).unsqueeze(1)
            starts = (bounds[:-1] + offsets).flatten()
            # Each sequence ends where the next one starts; only the last needs its own end.
            bounds = torch.cat([starts, bounds[-1:] + length * (count - 1)])
        self.scan = scan._replace(
            coefficients=self._flat(coefficients),
            inputs=self._flat(inputs),
            initial_state=self.fold_state(scan.initial_state, dims.initial_state),
            cu_seqlens=bounds,
        )

    def fold(self, tensor: Tensor, dim: object) -> Tensor:
        """Fold a tensor of sequences into (V*B, T, ...), or (1, V*T, ...) if packed."""
        return self._flat(self._in_front(tensor, dim))

    def fold_state(self, state: Tensor, dim: object) -> Tensor:
        """Fold a state into (V*N, H, m)."""
        return self._in_front(state, dim).flatten(0, 1)

    def unfold(self, tensor: Tensor) -> Tensor:
        """Return a tensor of sequences as (V, B, T, ...)."""
        return self._split(tensor, 1).transpose(0, 1) if self._packed else self._split(tensor, 0)

    def unfold_gradient(self, gradient: Tensor, *, divided: bool = True) -> Tensor:
        """Return the gradient of coefficients (``divided``) or inputs, as :meth:`unfold`."""
        gradient = self.unfold(gradient)
        if divided and self._divisor is not None:
            gradient = gradient / self._divisor
        return gradient.to(self._dtypes[0 if divided else 1])

    def unfold_state(self, state: Tensor) -> Tensor:
        """Return a state as (V, N, H, m)."""
        return self._split(state, 0)

    def _in_front(self, tensor: Tensor, dim: object) -> Tensor:
        if isinstance(dim, int):
            return tensor.movedim(dim, 0)
        return tensor.expand(self._count, *tensor.shape)

    def _flat(self, tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1).flatten(1, 2) if self._packed else tensor.flatten(0, 1)

    def _split(self, tensor: Tensor, dim: int) -> Tensor:
        shape = tensor.shape
        parts = (self._count, shape[dim] // self._count)
        return tensor.reshape(*shape[:dim], *parts, *shape[dim + 1 :])
