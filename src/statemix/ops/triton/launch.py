"""Run the Triton kernels on tensors: memory order, phases, and results."""

import torch
from torch import Tensor

from statemix.ops.backends import Results, Scan, Step
from statemix.ops.layout import (
    BLOCK_AXIS,
    STATE_BLOCK_AXIS,
    dense,
    empty_innermost,
    innermost,
)
from statemix.ops.registered import empty_state
from statemix.ops.triton.problems import Problem


def forward(chunk: int | None, scan: Scan, results: Results) -> None:
    """Run a scan and write its results.

    ``chunk`` is the steps of a chunk, 0 for one chunk, or None for the steps that the rule says.
    """
    gates, values = _ordered(scan.coefficients), _ordered(scan.inputs)
    initial = dense(scan.initial_state, STATE_BLOCK_AXIS)
    states, final, saved = results
    if not values.numel():
        final.copy_(initial)
        return
    strides = (*_strides(gates, 2), *_strides(values, 1))
    problem = Problem.of(scan, strides, chunk)
    entering = initial
    if problem.num_chunks > 1:
        maps = problem.mapped(gates, values, initial, strides, *saved)
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


def backward(
    chunk: int | None,
    scan: Scan,
    d_states: Tensor,
    d_final_state: Tensor,
    states: Tensor,
    saved: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gates, values and initial state, in the dtypes of these.

    The closed form is that of ``docs/kernels.md``. ``saved`` holds the maps of chunks.
    """
    gates, values, d_states = (_ordered(one) for one in (scan.coefficients, scan.inputs, d_states))
    states = dense(states)
    initial, d_final = (dense(one, STATE_BLOCK_AXIS) for one in (scan.initial_state, d_final_state))
    d_gates, d_values = (empty_innermost(one.shape, one) for one in (gates, values))
    d_initial = empty_state(scan)
    if not values.numel():
        return d_gates, d_values, d_initial.copy_(d_final)
    of_gates, of_values, of_d_states = (
        _strides(gates, 2), _strides(values, 1), _strides(d_states, 1)
    )  # fmt: skip
    strides = (*of_gates, *of_values, *of_d_states)
    problem = Problem.of(scan, strides, chunk)
    leaving = d_final
    if problem.num_chunks > 1:
        (maps,) = saved
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


def prepare_step(scan: Scan) -> Step | None:
    """Return a function that runs one step by one launch, or None if it would copy an argument.

    The step is ``local_forward`` with T = 1. It equals a sequence of one chunk up to the last bits,
    because compilers join products and sums differently in the two kernels. It allocates its
    results and waits for nothing: a CUDA graph can capture it.
    """
    gates, values, initial = scan[:3]
    if (
        not values.numel()
        or _ordered(gates) is not gates
        or _ordered(values) is not values
        or dense(initial, STATE_BLOCK_AXIS) is not initial
    ):
        return None
    strides = (*_strides(gates, 2), *_strides(values, 1))
    problem = Problem.of(scan, strides, None)
    cut = problem.cut("local_forward")
    launch = problem.kernels.local_forward[cut.grid]
    numbers, options = (*problem.sizes, *strides), {**problem.options, **cut.options}
    shape, order = initial.shape, initial.stride()

    def step(
        gates: Tensor, values: Tensor, state: Tensor, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        h_t = torch.empty_like(values)
        next_state = torch.empty_strided(shape, order, dtype=state.dtype, device=state.device)
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


def _strides(tensor: Tensor, inner: int) -> tuple[int, ...]:
    """Return the strides of batch and time, and of the last axes.

    They are 0 for an axis that lags lack, and for one of a single entry, whatever is stored there.
    """
    strides = [
        stride if size > 1 else 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return (*strides[:2], *(0,) * (3 + inner - tensor.ndim), *strides[3:])
