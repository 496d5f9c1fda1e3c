"""Kernels as registered PyTorch operators, for torch.compile, vmap and opcheck.

One pair of PyTorch operators runs every operator of the library on every backend with its own
backward: both names are arguments. autograd.py attaches the gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statemix.ops.backends import BACKENDS
from statemix.ops.checks import check_cu_seqlens_values
from statemix.ops.folding import Folding, in_front
from statemix.ops.layout import BLOCK_AXIS, STATE_BLOCK_AXIS, dense, empty_innermost


def run_forward(
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    temperature: Tensor | None,
    operator: str,
    backend: str,
    gate: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run an operator on a backend, and return what the backward needs, too.

    States and final state have the dtype of the initial state, but states have that of the values
    if the backend is narrow.

    Args:
        gates: raw gates, or for ``gate="given"`` the un-normalised coefficients, (B, T, H, ...).
        values: v, (B, T, H, ...).
        initial_state: h_0, (N, H, m), float32 or float64.
        cu_seqlens: bounds of N packed sequences, (N+1,), or None.
        temperature: 0-d divisor of raw gates, or None.
        operator: name of the operator.
        backend: name of a backend whose kernel for the operator has a backward.
        gate: family that the backend fuses, or "given".

    Returns:
        states: like ``values``, blocks innermost in memory.
        final_state: (N, H, m), blocks innermost in memory.
        wide_states: states in the initial state's dtype, which the backward needs; without entries
            if ``states`` serve.
        maps: what the backend keeps of chunks of time, in the initial state's dtype; without
            entries if there is nothing.
    """
    states, final_state, kept = _run_forward(
        gates, values, initial_state, cu_seqlens, temperature, operator, backend, gate, keeps=True
    )
    wide_states, maps = initial_state.new_empty(0), initial_state.new_empty(0)
    if kept is not None and BACKENDS[backend].keeps_wide:
        wide_states = kept
    elif kept is not None:
        maps = kept
    return states, final_state, wide_states, maps


def run_inference(
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    temperature: Tensor | None,
    operator: str,
    backend: str,
    gate: str,
) -> tuple[Tensor, Tensor]:
    """Run :func:`run_forward` without what the backward needs."""
    states, final_state, _ = _run_forward(
        gates, values, initial_state, cu_seqlens, temperature, operator, backend, gate, keeps=False
    )
    return states, final_state


def _run_forward(
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    temperature: Tensor | None,
    operator: str,
    backend: str,
    gate: str,
    *,
    keeps: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    if cu_seqlens is not None and cu_seqlens.is_cpu:
        check_cu_seqlens_values(cu_seqlens, values.shape[1])
    record = BACKENDS[backend]
    options = {"keeps": keeps} if record.keeps_wide or record.maps else {}
    states, final_state, *kept = record.kernels[operator].forward(
        gates, values, initial_state, cu_seqlens, *_fusion(backend, gate, temperature), **options
    )
    return (
        dense(states, BLOCK_AXIS),
        dense(final_state, STATE_BLOCK_AXIS),
        kept[0] if kept else None,
    )


def run_backward(
    d_states: Tensor,
    d_final_state: Tensor,
    gates: Tensor,
    values: Tensor,
    states: Tensor,
    maps: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    temperature: Tensor | None,
    operator: str,
    backend: str,
    gate: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gates, values and initial state, blocks innermost in memory.

    ``maps`` are those of :func:`run_forward`, or without entries if they were lost.
    """
    record = BACKENDS[backend]
    backward = record.kernels[operator].backward
    assert backward is not None
    options = {"maps": maps if maps.numel() else None} if record.maps else {}
    d_gates, d_values, d_initial_state = backward(
        d_states,
        d_final_state,
        gates,
        values,
        states,
        initial_state,
        cu_seqlens,
        *_fusion(backend, gate, temperature),
        **options,
    )
    return (
        dense(d_gates, BLOCK_AXIS),
        dense(d_values, BLOCK_AXIS),
        dense(d_initial_state, STATE_BLOCK_AXIS),
    )


scan_forward = torch.library.custom_op("statemix::scan_forward", run_forward, mutates_args=())
"""``run_forward`` as an operator that compilers, transforms and tracers see."""

scan_backward = torch.library.custom_op("statemix::scan_backward", run_backward, mutates_args=())
"""``run_backward`` as such an operator."""


def _fusion(backend: str, gate: str, temperature: Tensor | None) -> tuple[Any, ...]:
    """Return the additional arguments of a kernel that normalises gates itself."""
    return (gate, temperature) if BACKENDS[backend].families else ()


@scan_forward.register_fake
def _(
    gates: Tensor,  # noqa: ARG001
    values: Tensor,
    initial_state: Tensor,
    *others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *_, backend, _ = others
    record = BACKENDS[backend]
    states = empty_innermost(values.shape, values if record.narrow else initial_state)
    wide_states = initial_state.new_empty(0)
    if record.keeps_wide and values.dtype != initial_state.dtype:
        wide_states = empty_innermost(values.shape, initial_state)
    maps = record.maps(values, initial_state) if record.maps else initial_state.new_empty(0)
    return states, _empty_state(initial_state), wide_states, maps


@scan_backward.register_fake
def _(
    d_states: Tensor,  # noqa: ARG001
    d_final_state: Tensor,  # noqa: ARG001
    gates: Tensor,
    values: Tensor,
    states: Tensor,  # noqa: ARG001
    maps: Tensor,  # noqa: ARG001
    initial_state: Tensor,
    *others: Any,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        empty_innermost(gates.shape, gates),
        empty_innermost(values.shape, values),
        _empty_state(initial_state),
    )


def _empty_state(like: Tensor) -> Tensor:
    return empty_innermost(like.shape, like, STATE_BLOCK_AXIS)


@scan_forward.register_vmap
def _(
    info: Any, in_dims: Any, *arguments: Any
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], tuple[int, int, int | None, None]]:
    tensors, (cu_seqlens, temperature, *names) = arguments[:3], arguments[3:]
    gates, values, initial_state = _all_in_front(tensors, in_dims, info.batch_size)
    _refuse_mapped(in_dims[3])
    divisor = _divisor(temperature, in_dims[4], gates)
    if divisor is not None:
        wide = initial_state.dtype
        gates, values, temperature = gates.to(wide) / divisor, values.to(wide), None
    folding = Folding(info.batch_size, cu_seqlens, values.shape[2])
    states, final_state, wide_states, maps = scan_forward(
        folding.fold(gates),
        folding.fold(values),
        initial_state.flatten(0, 1),
        folding.cu_seqlens,
        temperature,
        *names,
    )
    kept = wide_states.numel() > 0
    return (
        folding.unfold(states),
        folding.unfold_state(final_state),
        folding.unfold(wide_states) if kept else wide_states,
        # Those of a folded problem are not those of its parts.
        maps.new_empty(0),
    ), (0, 0, 0 if kept else None, None)


@scan_backward.register_vmap
def _(
    info: Any, in_dims: Any, *arguments: Any
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
    maps, dims = arguments[5], (*in_dims[:5], in_dims[6])
    tensors, (cu_seqlens, temperature, *names) = arguments[:5] + arguments[6:7], arguments[7:]
    d_states, d_final_state, gates, values, states, initial_state = _all_in_front(
        tensors, dims, info.batch_size
    )
    _refuse_mapped(in_dims[7])
    dtype = gates.dtype
    divisor = _divisor(temperature, in_dims[8], gates)
    if divisor is not None:
        wide = initial_state.dtype
        gates, values, temperature = gates.to(wide) / divisor, values.to(wide), None
    folding = Folding(info.batch_size, cu_seqlens, values.shape[2])
    d_gates, d_values, d_initial_state = scan_backward(
        folding.fold(d_states),
        d_final_state.flatten(0, 1),
        folding.fold(gates),
        folding.fold(values),
        folding.fold(states),
        maps.new_empty(0),
        initial_state.flatten(0, 1),
        folding.cu_seqlens,
        temperature,
        *names,
    )
    d_gates, d_values = folding.unfold(d_gates), folding.unfold(d_values)
    if divisor is not None:
        d_gates, d_values = (d_gates / divisor).to(dtype), d_values.to(dtype)
    return (d_gates, d_values, folding.unfold_state(d_initial_state)), (0, 0, 0)


def _all_in_front(
    tensors: Sequence[Tensor], dims: Sequence[int | None], count: int
) -> list[Tensor]:
    return [in_front(tensor, dim, count) for tensor, dim in zip(tensors, dims, strict=False)]


def _divisor(temperature: Tensor | None, dim: int | None, gates: Tensor) -> Tensor | None:
    """Return one temperature per mapped problem, broadcastable to gates; None if shared."""
    if temperature is None or dim is None:
        return None
    return temperature.view(-1, *(1,) * (gates.ndim - 1))


def _refuse_mapped(dim: int | None) -> None:
    if dim is not None:
        raise ValueError("cu_seqlens must not be mapped by vmap, got a mapped axis")
