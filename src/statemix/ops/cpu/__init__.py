"""Backend "cpu": fused kernels in C++, forward and closed-form backward, gates included."""

from functools import partial

import torch
from torch import Tensor

from statemix.ops.backends import Backend, Kernel, Step
from statemix.ops.cpu import loader
from statemix.ops.cpu.loader import instruction_set
from statemix.ops.layout import (
    STATE_BLOCK_AXIS,
    dense,
    dense_strides,
    empty_innermost,
    innermost,
)

__all__ = ["CPU", "instruction_set"]


def _forward(
    operator: str,
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
    temperature: Tensor | None,
    *,
    keeps: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return states, in the dtype of the values, final state, and states for the backward."""
    gates, values = innermost(gates), innermost(values)
    initial_state = dense(initial_state, STATE_BLOCK_AXIS)
    states = empty_innermost(values.shape, values)
    final_state = torch.empty_like(initial_state)
    wide = {}
    if keeps and values.dtype != initial_state.dtype:
        wide["wide_states"] = empty_innermost(values.shape, initial_state)
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
        **wide,
    )
    return states, final_state, wide.get("wide_states")


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
    assert states.dtype == initial_state.dtype or not states.numel(), "states must be the wide ones"
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


def _prepare_step(operator: str, gates: Tensor, values: Tensor, state: Tensor, gate: str) -> Step:
    """Return a function that runs one step on arguments like these.

    It does once whatever it can: a call of PyTorch costs as much as the arithmetic of a step.
    """
    given = gates, values, state
    ordered = gates, values, state = _ordered(gates, values, state)
    copied = any(one is not other for one, other in zip(ordered, given, strict=True))
    run = loader.prepare_step(operator, gate, gates, values, state)
    dtype, shape = values.dtype, values.shape
    order = dense_strides(shape, STATE_BLOCK_AXIS)

    def step(
        gates: Tensor, values: Tensor, state: Tensor, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if copied:
            gates, values, state = _ordered(gates, values, state)
        h_t = torch.empty_strided(shape, order, dtype=dtype)
        next_state = torch.empty_like(state)
        run(temperature, gates, values, state, h_t, next_state)
        return h_t, next_state

    return step


def _ordered(gates: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the arguments of a step in the memory order of the kernels, copied where needed."""
    order = dense_strides(state.shape, STATE_BLOCK_AXIS)
    return (
        innermost(gates, STATE_BLOCK_AXIS),
        innermost(values, STATE_BLOCK_AXIS),
        state if state.stride() == order else dense(state, STATE_BLOCK_AXIS),
    )


def _int64(cu_seqlens: Tensor | None) -> Tensor | None:
    return None if cu_seqlens is None else cu_seqlens.to(torch.int64).contiguous()


CPU = Backend(
    "cpu",
    kernels={
        operator: Kernel(
            partial(_forward, operator),
            partial(_backward, operator),
            partial(_prepare_step, operator),
        )
        for operator in loader.OPERATORS
    },
    devices=("cpu",),
    dtypes=loader.ELEMENTS,
    families=loader.FAMILIES,
    unavailable=loader.unavailable,
    detail=instruction_set,
    automatic=True,
    narrow=True,
    keeps_wide=True,
)
"""The preferred backend on the CPU."""
