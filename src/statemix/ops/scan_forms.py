"""One function for transitions of any form: diagonal, dense, diagonal plus low rank, index maps."""

from typing import Any

import torch
from torch import Tensor

from statemix.ops.block_operators import block_scan
from statemix.ops.checks import bind, check_cu_seqlens_values, check_floating, same_dtype_and_device
from statemix.ops.dispatch import initial_state_of
from statemix.ops.low_rank_operators import low_rank_scan
from statemix.ops.packing import Packing, last_of_each

Transitions = Tensor | tuple[Tensor, Tensor, Tensor]


def scan(
    transitions: Transitions,
    inputs: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Solve a linear recurrence with transitions of your own.

    .. math:: h_t = A_t h_{t-1} + b_t, \qquad t = 1, \dots, T

    H heads have a state of m entries each. The form of ``transitions`` chooses the kernel.

    Args:
        transitions: A, in one of four forms; floating tensors have the dtype of ``inputs``.

            - diagonal: (B, T, H, m);
            - dense: (B, T, H, m, m), as in :func:`block_scan`;
            - diagonal plus low rank, diag(d) + sum_i u_i w_i^T: a tuple of d (B, T, H, m), and u
              and w (B, T, H, r, m) with r from 1 to 8, as in :func:`low_rank_scan`;
            - index maps: integers j (B, T, H, m). Entry i of the new state is entry j_i of the old
              one. They move entries without arithmetic, so without inputs states are exact.

        inputs: b, shape (B, T, H, m).
        initial_state: h_0, shape (B, H, m), with N for B if packed. None means zeros.
        cu_seqlens: bounds of N sequences packed into one row (B = 1), shape (N+1,), or None.
        backend: name in :data:`statemix.ops.BACKENDS`, or None for the preferred one. Index maps
            have none.

    Returns:
        states: h_1 ... h_T, shape and dtype of ``inputs``.
        final_state: the last state of every sequence, float32 or wider; h_0 for an empty one.

    Raises:
        ValueError: if shapes, devices, names, bounds or indices are wrong.
        TypeError: if dtypes or types are wrong.
        BackendUnavailableError: if ``backend`` cannot run here.

    Example:
        >>> import torch
        >>> swap = torch.tensor([1, 0]).expand(1, 3, 1, 2)
        >>> scan(swap, torch.zeros(1, 3, 1, 2), torch.tensor([[[1.0, 2.0]]]))[0][0, :, 0].tolist()
        [[2.0, 1.0], [1.0, 2.0], [2.0, 1.0]]
    """
    sizes: dict[str, int] = {}
    bind(sizes, "inputs", inputs, "B T H m")
    options: dict[str, Any] = {"backend": backend}
    if isinstance(transitions, tuple):
        if len(transitions) != 3:
            raise ValueError(f"transitions must be a tensor or (d, u, w), got {len(transitions)}")
        diagonal, left, right = transitions
        bind(sizes, "d of transitions", diagonal, "B T H m")
        bind(sizes, "u of transitions", left, "B T H r m")
        bind(sizes, "w of transitions", right, "B T H r m")
        same_dtype_and_device(d=diagonal, u=left, w=right, inputs=inputs)
        rows = torch.cat([diagonal.unsqueeze(3), left, right], 3)
        return low_rank_scan(rows, inputs, initial_state, cu_seqlens, **options)
    if not isinstance(transitions, Tensor):
        raise TypeError(_wrong_type(transitions))
    if not transitions.is_floating_point():
        if backend is not None:
            raise ValueError(f"backend must be None for index maps, got {backend!r}")
        return _move(transitions, inputs, initial_state, cu_seqlens, sizes)
    if transitions.ndim == inputs.ndim + 1:
        return block_scan(transitions, inputs, initial_state, cu_seqlens, **options)
    bind(sizes, "transitions", transitions, "B T H m")
    # Each entry is a block.
    each = transitions.flatten(2)[..., None, None], inputs.flatten(2).unsqueeze(-1)
    if initial_state is not None:
        bind(sizes, "initial_state", initial_state, "B H m" if cu_seqlens is None else "N H m")
        initial_state = initial_state.flatten(1).unsqueeze(-1)
    states, final_state = block_scan(*each, initial_state, cu_seqlens, **options)
    return states.view(inputs.shape), final_state.view(len(final_state), *inputs.shape[2:])


def scan_step(
    transitions: Transitions, inputs: Tensor, state: Tensor, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Advance :func:`scan` by one step: all arguments lack the axis of time.

    ``state`` is h_{t-1}, shape (B, H, m).

    Returns:
        h_t: shape and dtype of ``inputs``.
        state: h_t, same shape, float32 or wider.

    Raises:
        ValueError, TypeError, BackendUnavailableError: as in :func:`scan`.
    """
    sizes: dict[str, int] = {}
    bind(sizes, "inputs", inputs, "B H m")
    bind(sizes, "state", state, "B H m")
    if not isinstance(transitions, Tensor | tuple):
        raise TypeError(_wrong_type(transitions))
    given: Any = transitions
    given = (
        tuple(one.unsqueeze(1) for one in given) if isinstance(given, tuple) else given.unsqueeze(1)
    )
    states, state = scan(given, inputs.unsqueeze(1), state, backend=backend)
    return states.squeeze(1), state


def _wrong_type(transitions: object) -> str:
    kind = type(transitions).__name__
    return f"transitions must be a tensor or a tuple (d, u, w), got {kind}"


def _move(
    maps: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    sizes: dict[str, int],
) -> tuple[Tensor, Tensor]:
    """Compose index maps by doubling (Hillis and Steele, 1986): gathers, and sums of inputs."""
    bind(sizes, "transitions", maps, "B T H m")
    check_floating("inputs", inputs)
    if maps.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"transitions must be floating, int32 or int64, got {maps.dtype}")
    if maps.device != inputs.device:
        raise ValueError(f"transitions must be on {inputs.device}, got {maps.device}")
    if maps.is_cpu and maps.numel() and not torch.compiler.is_compiling():
        least, most = maps.min().item(), maps.max().item()
        if least < 0 or most >= sizes["m"]:
            wrong = least if least < 0 else most
            raise ValueError(f"transitions must be from 0 to {sizes['m'] - 1}, got {wrong}")
    h_0 = initial_state_of(initial_state, inputs, cu_seqlens, sizes)
    maps, states, length = maps.long(), inputs.to(h_0.dtype), sizes["T"]
    if cu_seqlens is None:
        sequence, before = None, h_0.unsqueeze(1)
    else:
        check_cu_seqlens_values(cu_seqlens, length)
        sequence = Packing.of(cu_seqlens, length).sequence
        before = h_0[sequence].unsqueeze(0)
    reach = 1
    while reach < length:
        # Maps and sums of up to ``reach`` steps continue those of as many steps before them.
        here, earlier = maps[:, reach:], maps[:, :-reach]
        moved, composed = states[:, :-reach].gather(3, here), earlier.gather(3, here)
        if sequence is not None:
            inside = (sequence[reach:] == sequence[:-reach])[:, None, None]
            moved, composed = moved.where(inside, 0), composed.where(inside, here)
        states = torch.cat([states[:, :reach], states[:, reach:] + moved], 1)
        maps = torch.cat([maps[:, :reach], composed], 1)
        reach *= 2
    states = states + before.expand(maps.shape).gather(3, maps)
    return states.to(inputs.dtype), last_of_each(states, h_0, cu_seqlens)
