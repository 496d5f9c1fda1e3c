"""Check the arguments of the public functions, choose a backend, and convert dtypes.

This module treats all operators alike and receives their names as arguments.
"""

import torch
from torch import Tensor

from statemix.ops.autograd import may_be_differentiated
from statemix.ops.backends import GIVEN, Scan, resolve
from statemix.ops.checks import bind, check_cu_seqlens, check_cu_seqlens_values, check_floating
from statemix.ops.gates import normalize
from statemix.ops.layout import at_least_float32


def prepare(
    operator: str,
    coefficients: Tensor,
    inputs: Tensor,
    sizes: dict[str, int],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    backend: str | None,
    gate: str = GIVEN,
    temperature: Tensor | float | None = None,
) -> Scan:
    """Return the scan of an operator; the caller has checked coefficients, inputs and gate."""
    a, b = coefficients, inputs
    # A graph of one step has PyTorch's own operators, to run anywhere.
    if (
        backend is None
        and torch.compiler.is_exporting()
        and isinstance(b.shape[1], int)
        and b.shape[1] == 1
    ):
        backend = "reference"
    record = resolve(backend, operator, b.device, b.dtype)
    h_0 = initial_state_of(initial_state, b, cu_seqlens, sizes)
    if gate != GIVEN and gate not in record.families:
        a, input_gate = normalize(a.to(h_0.dtype), gate, temperature=temperature)
        if "C" in sizes:
            input_gate = input_gate.unsqueeze(-1)
        b, gate, temperature = input_gate * b.to(h_0.dtype), GIVEN, None
    elif isinstance(temperature, float):
        temperature = a.new_full((), temperature, dtype=h_0.dtype)
    if b.dtype not in record.dtypes:
        # To the dtype of states if the backend has it, else back to that of the inputs.
        dtype = h_0.dtype if h_0.dtype in record.dtypes else inputs.dtype
        a, b = a.to(dtype), b.to(dtype)
    assert not isinstance(temperature, float)
    keep = may_be_differentiated(a, b, h_0)
    scan = Scan(a, b, h_0, cu_seqlens, temperature, operator, record.name, gate, keep)
    if record.kernels[operator].backward is None:
        # The registered operators check the bounds themselves.
        check_bounds(cu_seqlens, b.shape[1])
    return scan


def initial_state_of(
    initial_state: Tensor | None, values: Tensor, cu_seqlens: Tensor | None, sizes: dict[str, int]
) -> Tensor:
    """Return h_0 in the dtype of carried states: the checked argument, or zeros; add N to sizes."""
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, values)
    sizes["N"] = sizes["B"] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    dtype = at_least_float32(values.dtype)
    if initial_state is None:
        # The kernels would copy zeros of another memory order.
        inner = [sizes[axis] for axis in ("m", "C", "H") if axis in sizes]
        return values.new_zeros(sizes["N"], *inner, dtype=dtype).movedim(-1, 1)
    bind(sizes, "initial_state", initial_state, "N H m C" if "C" in sizes else "N H m")
    check_floating("initial_state", initial_state)
    if initial_state.device != values.device:
        raise ValueError(f"initial_state must be on {values.device}, got {initial_state.device}")
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
