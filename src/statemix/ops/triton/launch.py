"""Run the Triton kernels on tensors: memory order, phases, and results."""

import torch
from torch import Tensor

from statemix.ops.backends import Step
from statemix.ops.layout import (
    BLOCK_AXIS,
    STATE_BLOCK_AXIS,
    dense,
    dense_strides,
    empty_innermost,
    innermost,
)
from statemix.ops.triton.problems import Problem


def forward(
    operator: str,
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
    temperature: Tensor | None,
    *,
    chunk: int | None = None,
    maps: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return states, in the dtype of the values, and final state.

    Shapes, dtypes and the recurrences are those of :func:`statemix.ops.registered.scan_forward`.
    ``chunk`` is the steps of a chunk, 0 for one chunk, or None for what the rule says. The maps of
    chunks are written into ``maps``, which has room for all of them, (maps, m+1, m, H).
    """
    gates, values = _ordered(gates), _ordered(values)
    initial = dense(initial_state, STATE_BLOCK_AXIS)
    states, final = empty_innermost(values.shape, values), torch.empty_like(initial)
    if not values.numel():
        return states, final.copy_(initial)
    strides = (*_strides(gates, 2), *_strides(values, 1))
    problem = Problem.of(operator, values, initial, cu_seqlens, gate, temperature, strides, chunk)
    entering = initial
    if problem.num_chunks > 1:
        maps = problem.mapped(gates, values, initial, strides, maps)
        entering = problem.carried(maps, maps, initial, reverse=False)
    cut = problem.cut("local_forward")
    problem.kernels.local_forward[cut.grid](
        *(gates, values, entering, states, final, initial, problem.temperature),
        *problem.places,
        *problem.sizes,
        *strides,
        **problem.options,
        **cut.options,
    )
    return states, final


def backward(
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
    *,
    chunk: int | None = None,
    maps: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gates, values and initial state, in the dtypes of these.

    Arguments are those of :func:`statemix.ops.registered.scan_backward` and :func:`forward`, and
    the closed form is that of ``docs/kernels.md``. ``maps`` is what :func:`forward` wrote there;
    without, they are found again.
    """
    gates, values, d_states = _ordered(gates), _ordered(values), _ordered(d_states)
    # The forward wrote the states densely, but vmap may have permuted them.
    states = dense(states)
    initial, d_final = (dense(one, STATE_BLOCK_AXIS) for one in (initial_state, d_final_state))
    d_gates, d_values = (empty_innermost(one.shape, one) for one in (gates, values))
    d_initial = torch.empty_like(d_final)
    if not values.numel():
        return d_gates, d_values, d_initial.copy_(d_final)
    of_gates, of_values, of_d_states = (
        _strides(gates, 2), _strides(values, 1), _strides(d_states, 1)
    )  # fmt: skip
    strides = (*of_gates, *of_values, *of_d_states)
    problem = Problem.of(operator, values, initial, cu_seqlens, gate, temperature, strides, chunk)
    leaving = d_final
    if problem.num_chunks > 1:
        if maps is None:
            maps = problem.mapped(gates, values, initial, (*of_gates, *of_values))
        problem.check_room(maps)
        cut = problem.cut("chunk_backward", problem.num_maps)
        offsets = problem.empty(initial, problem.num_maps)
        problem.kernels.chunk_backward[cut.grid](
            *(gates, d_states, d_final, offsets, problem.temperature),
            *problem.places_of_maps,
            *problem.sizes_of_maps,
            *(*of_gates, *of_d_states),
            **problem.options,
            **cut.options,
        )
        leaving = problem.carried(maps, offsets, d_final, reverse=True)
    cut = problem.cut("local_backward")
    problem.kernels.local_backward[cut.grid](
        *(gates, values, states, initial, leaving, d_states, d_final),
        *(d_gates, d_values, d_initial, problem.temperature),
        *problem.places,
        *problem.sizes,
        *strides,
        **problem.options,
        **cut.options,
    )
    return d_gates, d_values, d_initial


def prepare_step(operator: str, gates: Tensor, values: Tensor, state: Tensor, gate: str) -> Step:
    """Return a function that runs one step on arguments like these, by one launch.

    The step is ``local_forward`` with T = 1, so that it rounds as a sequence of one chunk does. It
    allocates its results and waits for nothing: a CUDA graph can capture it.

    Shapes, dtypes and the step are those of :class:`statemix.ops.backends.Kernel`.
    """
    if not values.numel():
        return lambda gates, values, state, temperature: (values.clone(), state.clone())  # noqa: ARG005
    given = gates, values, state
    ordered = gates, values, state = _ordered_step(*given)
    copied = any(one is not other for one, other in zip(ordered, given, strict=True))
    sequence = gates.unsqueeze(1), values.unsqueeze(1)
    strides = (*_strides(sequence[0], 2), *_strides(sequence[1], 1))
    problem = Problem.of(operator, sequence[1], state, None, gate, None, strides, None)
    cut = problem.cut("local_forward")
    launch = problem.kernels.local_forward[cut.grid]
    numbers = (*problem.sizes, *strides)
    options = {**problem.options, **cut.options}
    h_t_like = values.shape, dense_strides(values.shape, STATE_BLOCK_AXIS)
    state_like = state.shape, dense_strides(state.shape, STATE_BLOCK_AXIS)
    device, dtype, state_dtype = values.device, values.dtype, state.dtype

    def step(
        gates: Tensor, values: Tensor, state: Tensor, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if copied:
            gates, values, state = _ordered_step(gates, values, state)
        h_t = torch.empty_strided(*h_t_like, dtype=dtype, device=device)
        next_state = torch.empty_strided(*state_like, dtype=state_dtype, device=device)
        tempered = temperature is not None
        # Kernels run on the current device.
        with torch.cuda.device_of(values):  # type: ignore[no-untyped-call]
            launch(
                *(gates, values, state, h_t, next_state, state, temperature if tempered else state),
                *(state,) * 3,
                *numbers,
                **(options | {"TEMPERED": tempered}),
            )
        return h_t, next_state

    return step


def _ordered(tensor: Tensor, axis: int = BLOCK_AXIS) -> Tensor:
    """Return a tensor with lanes innermost, and rows so near that 32 bits count what is between."""
    tensor = innermost(tensor, axis)
    rows = slice(axis + 1, None)
    far = any(
        size * stride >= 2**31
        for size, stride in zip(tensor.shape[rows], tensor.stride()[rows], strict=True)
    )
    return dense(tensor, axis) if far else tensor


def _ordered_step(gates: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the arguments of a step, which have no axis of time, as the kernels read them."""
    return (
        _ordered(gates, STATE_BLOCK_AXIS),
        _ordered(values, STATE_BLOCK_AXIS),
        dense(state, STATE_BLOCK_AXIS),
    )


def _strides(tensor: Tensor, inner: int) -> tuple[int, ...]:
    """Return the strides of batch and time, and of the last axes.

    They are 0 for an axis that lags lack, and for one of a single entry, whatever is stored there.
    """
    strides = [
        stride if size > 1 else 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return (*strides[:2], *(0,) * (3 + inner - tensor.ndim), *strides[3:])
