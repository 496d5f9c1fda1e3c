"""Decoding without derivatives: a direct call from a layer's projections to its step kernel.

PyTorch's bookkeeping of an operator costs several times as much as a step's arithmetic.
"""

import torch
from torch import Tensor

from statemix.ops.backends import BACKENDS, Scan, Step, resolve
from statemix.ops.layout import at_least_float32

# Prepared steps by everything that their preparation depends on; None: the operator must run
# instead. A decoder needs few; the limit serves processes that keep decoding new shapes.
_steps: dict[tuple[object, ...], Step | None] = {}
_STEPS_KEPT = 256


def projected_step(
    operator: str,
    num_rows: int | None,
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str,
    temperature: Tensor | None,
    backend: str | None,
) -> tuple[Tensor, Tensor] | None:
    """Run one step on checked projections, or return None if the operator must run instead.

    The caller makes sure that nothing observes operators (:mod:`statemix.ops.shortcuts`).

    Args:
        operator: name of the operator.
        num_rows: rows of a unit's gates, m; None if units have no axis of rows.
        gates: raw gates of one step, (B, num_rows * (m+1) * H), with units innermost.
        values: v_t, (B, num_rows * H), with units innermost.
        state: state before the step, (B, H, m).
        gate: name of a family that the operator supports.
        temperature: 0-d divisor of the gates, or None.
        backend: name of a backend, or None.

    Returns:
        h_t: as ``values``.
        state: (B, H, m).
    """
    key = (
        *(operator, num_rows, gate, backend, BACKENDS.revision, torch.get_num_threads()),
        *(gates.shape, gates.stride(), gates.dtype, gates.device),
        *(values.shape, values.stride(), values.dtype, values.device),
        *(state.shape, state.stride(), state.dtype, state.device),
    )
    try:
        step = _steps[key]
    except KeyError:
        if len(_steps) >= _STEPS_KEPT:
            _steps.clear()
        step = _prepare(operator, num_rows, gates, values, state, gate, temperature, backend)
        _steps[key] = step
    return None if step is None else step(gates, values, state, temperature)


def _prepare(
    operator: str,
    num_rows: int | None,
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str,
    temperature: Tensor | None,
    backend: str | None,
) -> Step | None:
    record = resolve(backend, operator, values.device, values.dtype)
    prepare_step = record.kernels[operator].prepare_step
    if (
        prepare_step is None
        or gate not in record.families
        or values.dtype not in record.dtypes
        or gates.dtype != values.dtype
        or state.dtype != at_least_float32(values.dtype)
        or not (gates.is_contiguous() and values.is_contiguous())
    ):
        return None
    B, H, m = state.shape
    rows = () if num_rows is None else (num_rows,)
    scan = Scan(
        gates.view(B, 1, *rows, m + 1, H).movedim(-1, 2),
        values.view(B, 1, *rows, H).movedim(-1, 2),
        *(state, None, temperature, operator, record.name, gate, False),
    )
    return prepare_step(scan)
