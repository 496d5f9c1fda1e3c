"""Fused CPU kernels: forward and closed-form backward of both recurrences, gates included."""

import torch
from torch import Tensor

from statemix.ops.cpu.loader import (
    ELEMENTS,
    available,
    call,
    empty_innermost,
    empty_state,
    innermost,
    instruction_set,
    require,
)

__all__ = [
    "ELEMENTS",
    "available",
    "empty_innermost",
    "empty_state",
    "instruction_set",
    "require",
    "scan_backward",
    "scan_forward",
]

BLOCK_AXIS = 2  # of gates, values and states: (B, T, H, ...)


def scan_forward(
    gates: Tensor, values: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None, gate: str
) -> tuple[Tensor, Tensor]:
    """States and final state; values of four axes are blocks, of three are lags."""
    gates, values = innermost(gates, BLOCK_AXIS), innermost(values, BLOCK_AXIS)
    initial_state = _rows_first(initial_state)
    states = empty_innermost(values.shape, BLOCK_AXIS, initial_state)
    final_state = torch.empty_like(initial_state)
    call(
        f"{_recurrence(values)}_forward",
        gate,
        gates,
        values,
        initial_state,
        _int64(cu_seqlens),
        states=states,
        final_state=final_state,
    )
    return states, final_state


def scan_backward(
    d_states: Tensor,
    d_final_state: Tensor,
    gates: Tensor,
    values: Tensor,
    states: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gates, values and initial state."""
    gates, values = innermost(gates, BLOCK_AXIS), innermost(values, BLOCK_AXIS)
    initial_state, d_final_state = _rows_first(initial_state), _rows_first(d_final_state)
    # The states come from scan_forward, but vmap may have moved them.
    states = states.movedim(BLOCK_AXIS, -1).contiguous().movedim(-1, BLOCK_AXIS)
    d_gates = empty_innermost(gates.shape, BLOCK_AXIS, gates)
    d_values = empty_innermost(values.shape, BLOCK_AXIS, values)
    d_initial_state = torch.empty_like(initial_state)
    call(
        f"{_recurrence(values)}_backward",
        gate,
        gates,
        values,
        initial_state,
        _int64(cu_seqlens),
        states=states,
        d_states=innermost(d_states, BLOCK_AXIS),
        d_final_state=d_final_state,
        d_gates=d_gates,
        d_values=d_values,
        d_initial_state=d_initial_state,
    )
    return d_gates, d_values, d_initial_state


def _recurrence(values: Tensor) -> str:
    return "block" if values.ndim == 4 else "lag"


def _rows_first(state: Tensor) -> Tensor:
    """(N, H, m) with memory [N, m, H], as the kernels read states."""
    return state.transpose(1, 2).contiguous().transpose(1, 2)


def _int64(cu_seqlens: Tensor | None) -> Tensor | None:
    return None if cu_seqlens is None else cu_seqlens.to(torch.int64).contiguous()
