"""Run an operator for the public functions: checks, backend, dtypes and normalisation of gates.

This module treats all operators alike and receives their names as arguments.
"""

import torch
from torch import Tensor

from statemix.ops import autograd
from statemix.ops.backends import Backend, resolve
from statemix.ops.checks import (
    check_cu_seqlens,
    check_cu_seqlens_values,
    check_finite,
    check_initial_state,
)
from statemix.ops.gates import normalize
from statemix.ops.layout import state_dtype

GIVEN = "given"
"""Stands for a gate family where coefficients are given and need no normalising."""


def run_gated(
    operator: str,
    gates: Tensor,
    values: Tensor,
    gate: str,
    temperature: Tensor | float | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    sizes: dict[str, int],
    *,
    backend: str | None,
    finite: bool,
) -> tuple[Tensor, Tensor]:
    """Run an operator on raw gates, normalised by the kernel if it can, else by PyTorch.

    Args:
        operator: name of the operator.
        gates: raw gates (B, T, H, ...), checked against ``values``.
        values: v, shape (B, T, H, ...).
        gate: name of a family that the operator supports.
        temperature: checked divisor of the gates, or None.
        initial_state: the user's argument, unchecked.
        cu_seqlens: the user's argument, unchecked.
        sizes: sizes of the axes B, T, H and m.
        backend: the user's argument, unchecked.
        finite: reject NaN and infinity first.
    """
    if finite:
        check_finite(gates=gates, values=values, initial_state=initial_state)
    record = _resolved(backend, operator, values)
    h_0 = initial_state_of(initial_state, values, cu_seqlens, sizes)
    if gate in record.families:
        if isinstance(temperature, float):
            temperature = gates.new_full((), temperature, dtype=h_0.dtype)
        a, b, name = gates, values, gate
    else:
        a, input_gate = normalize(gates.to(h_0.dtype), gate, temperature=temperature)
        b, name, temperature = input_gate * values.to(h_0.dtype), GIVEN, None
    if b.dtype not in record.dtypes:
        dtype = h_0.dtype if h_0.dtype in record.dtypes else values.dtype
        a, b = a.to(dtype), b.to(dtype)
    states, final_state = _run(record, operator, a, b, h_0, cu_seqlens, name, temperature)
    return states.to(values.dtype), final_state


def run_given(
    operator: str,
    coefficients: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    sizes: dict[str, int],
    *,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    """Run an operator on given coefficients; other arguments as in :func:`run_gated`."""
    record = _resolved(backend, operator, inputs)
    h_0 = initial_state_of(initial_state, inputs, cu_seqlens, sizes)
    a, b = coefficients, inputs
    if b.dtype not in record.dtypes:
        a, b = a.to(h_0.dtype), b.to(h_0.dtype)
    states, final_state = _run(record, operator, a, b, h_0, cu_seqlens, GIVEN, None)
    return states.to(inputs.dtype), final_state


def initial_state_of(
    initial_state: Tensor | None,
    values: Tensor,
    cu_seqlens: Tensor | None,
    sizes: dict[str, int],
) -> Tensor:
    """Return h_0 in the dtype of carried states: the checked argument, or zeros.

    Args:
        initial_state: the user's argument, unchecked.
        values: tensor whose device the state must share.
        cu_seqlens: the user's argument; its shape, dtype and device are checked here.
        sizes: sizes of the axes B, H and m; N is added.
    """
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, values)
    sizes["N"] = sizes["B"] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    dtype = state_dtype(values.dtype)
    if initial_state is None:
        # The kernels would copy zeros of another memory order.
        return values.new_zeros(sizes["N"], sizes["m"], sizes["H"], dtype=dtype).transpose(1, 2)
    check_initial_state(initial_state, values, sizes, "N H m")
    return initial_state.to(dtype)


def check_bounds(cu_seqlens: Tensor | None, length: int) -> None:
    """Check bounds by value where reading them is free: on the CPU, outside a compiled graph."""
    if cu_seqlens is not None and cu_seqlens.is_cpu and not torch.compiler.is_compiling():
        try:
            check_cu_seqlens_values(cu_seqlens, length)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise ValueError("cu_seqlens must not be mapped by vmap, got a mapped axis") from error


def _resolved(backend: str | None, operator: str, values: Tensor) -> Backend:
    if backend is None and _is_exported_step(values):
        backend = "reference"
    return resolve(backend, operator, values.device, values.dtype)


def _is_exported_step(values: Tensor) -> bool:
    """Return whether the graph should have PyTorch's own operators, to run anywhere."""
    if not torch.compiler.is_exporting():
        return False
    length = values.shape[1]
    return isinstance(length, int) and length == 1


def _run(
    record: Backend,
    operator: str,
    a: Tensor,
    b: Tensor,
    h_0: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
    temperature: Tensor | float | None,
) -> tuple[Tensor, Tensor]:
    kernel = record.kernels[operator]
    assert not isinstance(temperature, float)
    if kernel.backward is not None:
        return autograd.scan(a, b, h_0, cu_seqlens, temperature, operator, record.name, gate)
    check_bounds(cu_seqlens, b.shape[1])
    fusion = (gate, temperature) if record.families else ()
    return kernel.forward(a, b, h_0, cu_seqlens, *fusion)
