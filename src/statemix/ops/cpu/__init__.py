"""Backend "cpu": fused kernels in C++, forward and closed-form backward, gates included."""

from functools import partial

import torch
from torch import Tensor

from statemix.ops.backends import Backend, Kernel
from statemix.ops.cpu import loader
from statemix.ops.cpu.loader import instruction_set
from statemix.ops.layout import STATE_BLOCK_AXIS, dense, empty_innermost, innermost

__all__ = ["CPU", "instruction_set"]


def _forward(
    operator: str,
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
    temperature: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return states and final state."""
    gates, values = innermost(gates), innermost(values)
    initial_state = dense(initial_state, STATE_BLOCK_AXIS)
    states = empty_innermost(values.shape, initial_state)
    final_state = torch.empty_like(initial_state)
    loader.call(
        operator,
        "forward",
        gate,
        temperature,
        _int64(cu_seqlens),
        gates=gates,
        values=values,
        initial_state=initial_state,
        states=states,
        final_state=final_state,
    )
    return states, final_state


def _backward(
    operator: str,
    d_states: Tensor,
    d_final_state: Tensor,
    gates: Tensor,
    values: Tensor,
    states: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
    temperature: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gates, values and initial state."""
    gates, values = innermost(gates), innermost(values)
    initial_state = dense(initial_state, STATE_BLOCK_AXIS)
    d_gates = empty_innermost(gates.shape, gates)
    d_values = empty_innermost(values.shape, values)
    d_initial_state = torch.empty_like(initial_state)
    loader.call(
        operator,
        "backward",
        gate,
        temperature,
        _int64(cu_seqlens),
        gates=gates,
        values=values,
        initial_state=initial_state,
        # The forward wrote the states densely, but vmap may have permuted them.
        states=dense(states),
        d_states=innermost(d_states),
        d_final_state=dense(d_final_state, STATE_BLOCK_AXIS),
        d_gates=d_gates,
        d_values=d_values,
        d_initial_state=d_initial_state,
    )
    return d_gates, d_values, d_initial_state


def _step(
    operator: str,
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str,
    temperature: Tensor | float | None,
) -> tuple[Tensor, Tensor]:
    """Return h_t and the next state."""
    if gates.is_neg() or values.is_neg() or state.is_neg():
        # The registered operators receive their arguments with pending signs applied.
        gates, values, state = gates.resolve_neg(), values.resolve_neg(), state.resolve_neg()
    gates, values = innermost(gates, STATE_BLOCK_AXIS), innermost(values, STATE_BLOCK_AXIS)
    _, blocks, size = state.shape
    # Skip what PyTorch can be spared: one call costs as much as the arithmetic of a step.
    if state.stride() != (blocks * size, 1, blocks):
        state = dense(state, STATE_BLOCK_AXIS)
    next_state = torch.empty_like(state)
    h_t = empty_innermost(values.shape, state, STATE_BLOCK_AXIS)
    loader.call_step(operator, gate, temperature, gates, values, state, h_t, next_state)
    return (h_t if h_t.dtype == values.dtype else h_t.to(values.dtype)), next_state


def _int64(cu_seqlens: Tensor | None) -> Tensor | None:
    return None if cu_seqlens is None else cu_seqlens.to(torch.int64).contiguous()


CPU = Backend(
    "cpu",
    kernels={
        operator: Kernel(
            partial(_forward, operator), partial(_backward, operator), partial(_step, operator)
        )
        for operator in loader.OPERATORS
    },
    devices=("cpu",),
    dtypes=loader.ELEMENTS,
    families=loader.FAMILIES,
    unavailable=loader.unavailable,
    detail=instruction_set,
    automatic=True,
)
"""The preferred backend on the CPU."""
