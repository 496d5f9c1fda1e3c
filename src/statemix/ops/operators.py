"""The kernels as registered operators, so that compile, vmap and opcheck know them.

One pair of operators serves both recurrences: values of four axes are blocks, of three are lags.
Their gradients are attached in autograd.py.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from statemix.ops import cpu, loop
from statemix.ops.checks import check_cu_seqlens_values
from statemix.ops.packing import scan_each

BLOCK_AXIS = 2
"""The axis of blocks (or channels) in gates, values and states: (B, T, H, ...)."""

STATE_BLOCK_AXIS = 1
"""The axis of blocks (or channels) in initial and final states: (N, H, m)."""


@torch.library.custom_op("statemix::scan_forward", mutates_args=())
def scan_forward(
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """States and final state, both of the initial state's dtype.

    Args:
        gates: raw gates (B, T, H, m, m+1) or (B, T, H, m+1); for ``gate="given"`` the transitions
            (B, T, H, m, m) or the coefficients (B, T, H, m).
        values: (B, T, H, m) or (B, T, H).
        initial_state: (N, H, m), float32 or float64.
        cu_seqlens: (N+1,) if B = 1 packs N sequences, or None.
        gate: a fused family, or "given".
        backend: "cpu" or "loop"; the loop takes "given" alone.

    Returns:
        states: like ``values``, blocks innermost in memory.
        final_state: (N, H, m).
    """
    if cu_seqlens is not None:
        check_cu_seqlens_values(cu_seqlens, values.shape[1])
    if backend == "cpu":
        return cpu.scan_forward(gates, values, initial_state, cu_seqlens, gate)
    if cu_seqlens is not None:
        results = scan_each(loop.scan_forward, gates, values, initial_state, cu_seqlens)
    else:
        results = loop.scan_forward(gates, values, initial_state)
    return _innermost(results[0], BLOCK_AXIS), _innermost(results[1], STATE_BLOCK_AXIS)


@torch.library.custom_op("statemix::scan_backward", mutates_args=())
def scan_backward(
    d_states: Tensor,
    d_final_state: Tensor,
    gates: Tensor,
    values: Tensor,
    states: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gates, values and initial state, of their dtypes, blocks innermost in memory."""
    if backend == "cpu":
        return cpu.scan_backward(
            d_states, d_final_state, gates, values, states, initial_state, cu_seqlens, gate
        )
    d_gates, d_values, d_initial_state = _loop_backward(
        d_states, d_final_state, gates, states, initial_state, cu_seqlens
    )
    return (
        _innermost(d_gates, BLOCK_AXIS),
        _innermost(d_values, BLOCK_AXIS),
        _innermost(d_initial_state, STATE_BLOCK_AXIS),
    )


def _loop_backward(
    d_states: Tensor,
    d_final_state: Tensor,
    gates: Tensor,
    states: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    if cu_seqlens is None:
        return loop.scan_backward(d_states, d_final_state, gates, states, initial_state)
    bounds = cu_seqlens.tolist()
    pieces = [
        loop.scan_backward(
            d_states[:, start:stop],
            d_final_state[n : n + 1],
            gates[:, start:stop],
            states[:, start:stop],
            initial_state[n : n + 1],
        )
        for n, (start, stop) in enumerate(pairwise(bounds))
    ]
    if not pieces:
        return torch.zeros_like(gates), torch.zeros_like(states), torch.zeros_like(initial_state)
    d_gates, d_values, d_initial = zip(*pieces, strict=True)
    return torch.cat(d_gates, dim=1), torch.cat(d_values, dim=1), torch.cat(d_initial)


def _innermost(tensor: Tensor, axis: int) -> Tensor:
    """``tensor`` in the memory order that is promised below, for compiled code relies on it."""
    return tensor.movedim(axis, -1).contiguous().movedim(-1, axis)


def _empty_like(shape: torch.Size, like: Tensor) -> Tensor:
    return cpu.empty_innermost(shape, BLOCK_AXIS, like)


@scan_forward.register_fake
def _(
    gates: Tensor,  # noqa: ARG001
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,  # noqa: ARG001
    gate: str,  # noqa: ARG001
    backend: str,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    return _empty_like(values.shape, initial_state), cpu.empty_state(initial_state)


@scan_backward.register_fake
def _(
    d_states: Tensor,  # noqa: ARG001
    d_final_state: Tensor,  # noqa: ARG001
    gates: Tensor,
    values: Tensor,
    states: Tensor,  # noqa: ARG001
    initial_state: Tensor,
    cu_seqlens: Tensor | None,  # noqa: ARG001
    gate: str,  # noqa: ARG001
    backend: str,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _empty_like(gates.shape, gates),
        _empty_like(values.shape, values),
        cpu.empty_state(initial_state),
    )


# Under vmap, the mapped axis joins the batch, or lengthens the packed row.


def _moved(tensor: Tensor, dim: int | None, batch_size: int) -> Tensor:
    if dim is None:
        return tensor.expand(batch_size, *tensor.shape)
    return tensor.movedim(dim, 0)


class _Folding:
    """How tensors with a mapped axis in front are folded into one problem, and unfolded again."""

    def __init__(self, batch_size: int, cu_seqlens: Tensor | None, length: int) -> None:
        self.batch_size = batch_size
        self.packed = cu_seqlens is not None
        self.cu_seqlens = cu_seqlens
        if cu_seqlens is not None:
            offsets = length * torch.arange(batch_size, device=cu_seqlens.device).unsqueeze(1)
            starts = (cu_seqlens[:-1] + offsets).flatten()
            # Where each ends is the start of the next; the very last shows it for all of them.
            self.cu_seqlens = torch.cat([starts, cu_seqlens[-1:] + length * (batch_size - 1)])

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
        parts = (self.batch_size, shape[dim] // self.batch_size)
        return tensor.reshape(*shape[:dim], *parts, *shape[dim + 1 :])


@scan_forward.register_vmap
def _(info: Any, in_dims: Any, *arguments: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    gates, values, initial_state = (
        _moved(tensor, dim, info.batch_size)
        for tensor, dim in zip(arguments[:3], in_dims[:3], strict=True)
    )
    cu_seqlens, gate, backend = arguments[3:]
    _refuse_mapped(in_dims[3])
    folding = _Folding(info.batch_size, cu_seqlens, values.shape[2])
    states, final_state = scan_forward(
        folding.fold(gates),
        folding.fold(values),
        initial_state.flatten(0, 1),
        folding.cu_seqlens,
        gate,
        backend,
    )
    return (folding.unfold(states), folding.unfold_state(final_state)), (0, 0)


@scan_backward.register_vmap
def _(
    info: Any, in_dims: Any, *arguments: Any
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
    d_states, d_final_state, gates, values, states, initial_state = (
        _moved(tensor, dim, info.batch_size)
        for tensor, dim in zip(arguments[:6], in_dims[:6], strict=True)
    )
    cu_seqlens, gate, backend = arguments[6:]
    _refuse_mapped(in_dims[6])
    folding = _Folding(info.batch_size, cu_seqlens, values.shape[2])
    d_gates, d_values, d_initial_state = scan_backward(
        folding.fold(d_states),
        d_final_state.flatten(0, 1),
        folding.fold(gates),
        folding.fold(values),
        folding.fold(states),
        initial_state.flatten(0, 1),
        folding.cu_seqlens,
        gate,
        backend,
    )
    return (
        folding.unfold(d_gates),
        folding.unfold(d_values),
        folding.unfold_state(d_initial_state),
    ), (0, 0, 0)


def _refuse_mapped(dim: int | None) -> None:
    if dim is not None:
        raise ValueError("cu_seqlens must not be mapped by vmap, got a mapped axis")
