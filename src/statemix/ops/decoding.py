"""Direct calls from a public step to its kernel, for decoding without derivatives.

PyTorch's bookkeeping of an operator costs several times as much as a step's arithmetic. If nothing
can observe the difference, a step bypasses it and calls the kernel directly.
"""

import torch
from torch import Tensor

from statemix.ops.backends import resolve
from statemix.ops.checks import FLOATING
from statemix.ops.gates import GATES
from statemix.ops.layout import state_dtype
from statemix.ops.temperature import check_temperature


def direct_step(
    operator: str,
    rank: int,
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str,
    temperature: Tensor | float | None,
    backend: str | None,
) -> tuple[Tensor, Tensor] | None:
    """Run one step by the backend's step kernel, or return None if the operator must run instead.

    Malformed arguments also go to the operator, so that errors are worded in one place.

    Args:
        operator: name of the operator.
        rank: number of axes of ``values``.
        gates: raw gates of one step, (B, H, ..., m+1).
        values: v_t, (B, H, ...).
        state: state before the step, (B, H, m).
        gate: name of a family.
        temperature: divisor of the gates, or None.
        backend: name of a backend, or None.
    """
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return None
    if not (_is_plain(gates) and _is_plain(values) and _is_plain(state)) or _is_observed():
        return None
    shape, state_shape = values.shape, state.shape
    if (
        gate not in GATES
        or len(shape) != rank
        or len(state_shape) != 3
        or state_shape[-1] < 1
        or gates.shape != (*shape, state_shape[-1] + 1)
        or state_shape[: len(shape)] != shape[:3]
        or values.dtype not in FLOATING
        or gates.dtype != values.dtype
        or not gates.device == values.device == state.device
    ):
        return None
    record = resolve(backend, operator, values.device, values.dtype)
    kernel = record.kernels[operator]
    if (
        kernel.step is None
        or gate not in record.families
        or values.dtype not in record.dtypes
        or state.dtype != state_dtype(values.dtype)
    ):
        return None
    if temperature is not None:
        temperature = check_temperature(temperature, gates)
    return kernel.step(gates, values, state, gate, temperature)


def _is_plain(tensor: object) -> bool:
    """Return whether this is a dense ``torch.Tensor``, not a subclass."""
    return type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_nested


def _is_observed() -> bool:
    """Return whether a transform (vmap, grad), a tracer or a dispatch mode intercepts operators."""
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )
