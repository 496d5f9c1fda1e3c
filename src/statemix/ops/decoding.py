"""Direct calls from a public step to its kernel, for decoding without derivatives.

PyTorch's bookkeeping of an operator costs several times as much as a step's arithmetic. If nothing
can observe the difference, a step bypasses it and calls the kernel directly.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from statemix.ops.backends import BACKENDS, Step, resolve
from statemix.ops.checks import FLOATING
from statemix.ops.gates import GATES
from statemix.ops.layout import state_dtype
from statemix.ops.shortcuts import allowed, are_plain
from statemix.ops.temperature import check_temperature

# Prepared steps by everything that their preparation depends on; None: the operator must run
# instead. A decoder needs few; the limit serves processes that keep decoding new shapes.
_steps: dict[tuple[object, ...], Step | None] = {}
_STEPS_KEPT = 256


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
    if not (allowed() and are_plain(gates, values, state)):
        return None
    step = _prepared(_prepare, operator, rank, gates, values, state, gate, backend)
    if step is None:
        return None
    if temperature is not None:
        temperature = check_temperature(temperature, gates)
    if isinstance(temperature, float):
        # The operator rounds it to the dtype of the states, too.
        temperature = state.new_full((), temperature)
    return step(gates, values, state, temperature)


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
    """Run :func:`direct_step` on what projections return, without views of their units.

    Views of the arguments and the result take a tenth of the time of a small step. So do the
    questions of :mod:`statemix.ops.shortcuts`, to which the caller knows the answers.

    Args:
        operator: name of the operator.
        num_rows: rows of a unit's gates, m; None if units have no axis of rows.
        gates: raw gates of one step, (B, num_rows * (m+1) * H), with units innermost.
        values: v_t, (B, num_rows * H), with units innermost.
        state: state before the step, (B, H, m).
        gate: name of a family.
        temperature: 0-d divisor of the gates, which is trusted, or None.
        backend: name of a backend, or None.

    Returns:
        h_t: as ``values``.
        state: (B, H, m).
    """
    step = _prepared(_prepare_projected, operator, num_rows, gates, values, state, gate, backend)
    return None if step is None else step(gates, values, state, temperature)


def _prepared(
    prepare: Callable[..., Step | None],
    operator: str,
    axes: int | None,
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str,
    backend: str | None,
) -> Step | None:
    """Return the step that ``prepare`` returns for such arguments, or None: run the operator."""
    key = (
        *(prepare, operator, axes, gate, backend, BACKENDS.revision, torch.get_num_threads()),
        *(gates.shape, gates.stride(), gates.dtype, gates.device),
        *(values.shape, values.stride(), values.dtype, values.device),
        *(state.shape, state.stride(), state.dtype, state.device),
    )
    try:
        return _steps[key]
    except KeyError:
        if len(_steps) >= _STEPS_KEPT:
            _steps.clear()
        step = _steps[key] = prepare(operator, axes, gates, values, state, gate, backend)
        return step
    except TypeError:
        # A name that cannot be hashed is no name.
        return None


def _prepare_projected(
    operator: str,
    num_rows: int | None,
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str,
    backend: str | None,
) -> Step | None:
    B, H, m = state.shape
    rows = () if num_rows is None else (num_rows,)
    shape, count = values.shape, values.shape[1]
    if not (gates.is_contiguous() and values.is_contiguous()):
        return None
    of_units = (
        gates.view(B, *rows, m + 1, H).movedim(-1, 1),
        values.view(B, *rows, H).movedim(-1, 1),
    )
    step = _prepare(operator, 2 + len(rows), *of_units, state, gate, backend)
    if step is None or num_rows is None:
        # Without rows, units have the shape of their projections.
        return step

    def projected(
        gates: Tensor, values: Tensor, state: Tensor, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        # The step reads memory by the strides of the views above, which every call shares.
        h_t, state = step(gates, values, state, temperature)
        return h_t.as_strided(shape, (count, 1)), state

    return projected


def _prepare(
    operator: str,
    rank: int,
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str,
    backend: str | None,
) -> Step | None:
    shape, state_shape = values.shape, state.shape
    if (
        gate not in GATES
        or (GATES[gate].blocks_only and operator != "block")
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
        kernel.prepare_step is None
        or gate not in record.families
        or values.dtype not in record.dtypes
        or state.dtype != state_dtype(values.dtype)
    ):
        return None
    return kernel.prepare_step(gates, values, state, gate)
