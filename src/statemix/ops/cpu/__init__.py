"""Backend "cpu": fused kernels in C++, forward and closed-form backward, gates included."""

import ctypes
import operator

import torch
from torch import Tensor

from statemix.ops.backends import GIVEN, Backend, Kernel, Results, Scan, Step
from statemix.ops.cpu import loader
from statemix.ops.cpu.loader import instruction_set
from statemix.ops.layout import STATE_BLOCK_AXIS, dense, empty_innermost, innermost
from statemix.ops.registered import empty_state

__all__ = ["CPU", "instruction_set"]


def _empty(scan: Scan) -> Results:
    """Return room for states in the dtype of the values, and wider states for the backward."""
    values, initial_state = scan.inputs, scan.initial_state
    saved: tuple[Tensor, ...] = ()
    if scan.keep and values.dtype != initial_state.dtype:
        # From wider states, gradients lose no more than one rounding.
        saved = (empty_innermost(values.shape, initial_state),)
    return empty_innermost(values.shape, values), empty_state(scan), saved


# Both functions call the kernels themselves: every frame costs a small problem a percent.
def _forward(scan: Scan) -> Results:
    states, final_state, saved = _empty(scan)
    tensors = _arguments(scan) | {"states": states, "final_state": final_state}
    if saved:
        tensors["wide_states"] = saved[0]
    bounds = _int64(scan.cu_seqlens)
    problem = loader.problem_of(scan.gate, scan.temperature, bounds, tensors)
    run = loader.function(scan.operator, "forward")
    loader.check(run(ctypes.byref(problem)), problem)
    return states, final_state, saved


def _backward(
    scan: Scan, d_states: Tensor, d_final_state: Tensor, states: Tensor, saved: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    wide = saved[0] if saved else states
    if wide.dtype != scan.initial_state.dtype or wide.shape != scan.inputs.shape:
        raise RuntimeError(
            f"saved states must have shape {tuple(scan.inputs.shape)} and dtype "
            f"{scan.initial_state.dtype}, got {tuple(wide.shape)} and {wide.dtype}; hooks of saved "
            "tensors must return what they were given"
        )
    tensors = _arguments(scan)
    gradients = (
        empty_innermost(scan.coefficients.shape, scan.coefficients),
        empty_innermost(scan.inputs.shape, scan.inputs),
        empty_state(scan),
    )
    tensors |= zip(("d_gates", "d_values", "d_initial_state"), gradients, strict=True)
    tensors |= {
        "states": dense(wide),
        "d_states": innermost(d_states),
        "d_final_state": dense(d_final_state, STATE_BLOCK_AXIS),
    }
    bounds = _int64(scan.cu_seqlens)
    problem = loader.problem_of(scan.gate, scan.temperature, bounds, tensors)
    run = loader.function(scan.operator, "backward")
    loader.check(run(ctypes.byref(problem)), problem)
    return gradients


def _prepare_step(scan: Scan) -> Step | None:
    tensors = _arguments(scan)
    if any(map(operator.is_not, tensors.values(), scan[:3])):
        return None
    common = loader.problem_of(scan.gate, None, None, tensors)
    run, order = loader.function(scan.operator, "forward"), scan.initial_state.stride()
    shape = scan.initial_state.shape

    def step(
        gates: Tensor, values: Tensor, state: Tensor, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        h_t = torch.empty_like(values)
        next_state = torch.empty_strided(shape, order, dtype=state.dtype)
        # A copy, because several threads may run the same step.
        problem = loader.copy_of(common, temperature)
        problem.gates, problem.values = gates.data_ptr(), values.data_ptr()
        problem.initial_state = state.data_ptr()
        problem.states, problem.final_state = h_t.data_ptr(), next_state.data_ptr()
        loader.check(run(ctypes.byref(problem)), problem)
        return h_t, next_state

    return step


def _arguments(scan: Scan) -> dict[str, Tensor]:
    """Return the tensors of a scan in the memory order of the kernels, copied where needed."""
    return {
        "gates": innermost(scan.coefficients),
        "values": innermost(scan.inputs),
        "initial_state": dense(scan.initial_state, STATE_BLOCK_AXIS),
    }


def _int64(cu_seqlens: Tensor | None) -> Tensor | None:
    return None if cu_seqlens is None else cu_seqlens.to(torch.int64).contiguous()


# Blocks of the family "householder" get copies of their gates for every channel.
_SHARED = (*(name for name in loader.FAMILIES if name != "householder"), GIVEN)

CPU = Backend(
    "cpu",
    kernels={
        "block": Kernel(_forward, _backward, _empty, _prepare_step, channels=_SHARED),
        "lag": Kernel(_forward, _backward, _empty, _prepare_step),
        "low_rank": Kernel(_forward, _backward, _empty, _prepare_step),
    },
    devices=("cpu",),
    dtypes=loader.ELEMENTS,
    families=loader.FAMILIES,
    unavailable=loader.unavailable,
    detail=instruction_set,
    automatic=True,
)
"""The preferred backend on the CPU."""
