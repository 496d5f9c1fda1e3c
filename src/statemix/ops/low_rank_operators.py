"""Public functions of the recurrence whose transitions are diagonal plus low rank."""

from torch import Tensor

from statemix.ops.autograd import solver_of
from statemix.ops.checks import bind, same_dtype_and_device
from statemix.ops.dispatch import prepare

MOST_RANK = 8
"""Largest rank r of the transitions."""


def low_rank_scan(
    transitions: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Solve a linear recurrence whose transitions are diagonal plus low rank.

    .. math::
        h_t = \Bigl(\mathrm{diag}(d_t) + \sum_{i=1}^r u_{t,i} w_{t,i}^\top\Bigr) h_{t-1} + x_t,
        \qquad t = 1, \dots, T

    The delta rule and its relatives have such transitions: DeltaNet with d = 1, u = -beta k, w = k
    (Yang et al., 2024, "Parallelizing linear transformers with the delta rule over sequence
    length"), and RWKV-7 with a diagonal of decays (Peng et al., 2025).

    Args:
        transitions: shape (B, T, H, 1 + 2 r, m) for H heads with a state of m entries each and a
            rank r from 1 to 8: row 0 is d_t, rows 1 to r are u_t, and the others are w_t.
        inputs: x, shape (B, T, H, m), same floating dtype and device.
        initial_state: h_0, shape (B, H, m), with N for B if packed. None means zeros.
        cu_seqlens: bounds of N sequences packed into one row (B = 1), shape (N+1,), or None.
        backend: name in :data:`statemix.ops.BACKENDS`, or None for the preferred one.

    Returns:
        states: h_1 ... h_T, shape and dtype of ``inputs``.
        final_state: the last state of every sequence, float32 or wider; h_0 for an empty one.

    Raises:
        ValueError: if shapes, devices, names or bounds are wrong.
        TypeError: if dtypes or types are wrong.
        BackendUnavailableError: if ``backend`` cannot run here.

    Example:
        >>> import torch
        >>> d, u, w = torch.ones(1, 2), -torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
        >>> erases_the_first_entry = torch.cat([d, u, w]).expand(1, 3, 1, 3, 2)
        >>> low_rank_scan(erases_the_first_entry, torch.ones(1, 3, 1, 2))[0].flatten(1).tolist()
        [[1.0, 1.0, 1.0, 2.0, 1.0, 3.0]]
    """
    sizes: dict[str, int] = {}
    bind(sizes, "inputs", inputs, "B T H m")
    bind(sizes, "transitions", transitions, "B T H 1+2r m")
    if sizes["1+2r"] not in range(3, 2 * MOST_RANK + 2, 2):
        raise ValueError(
            f"transitions must have 1 + 2 r rows for a rank r from 1 to {MOST_RANK}, "
            f"got {sizes['1+2r']} rows"
        )
    same_dtype_and_device(transitions=transitions, inputs=inputs)
    scan = prepare("low_rank", transitions, inputs, sizes, initial_state, cu_seqlens, backend)
    # Kernels expect the axis that is innermost in memory third.
    scan = scan._replace(
        coefficients=scan.coefficients.movedim(-1, 2),
        inputs=scan.inputs.transpose(2, 3),
        initial_state=scan.initial_state.transpose(1, 2),
    )
    states, final_state, *_ = solver_of(scan)(*scan)
    return states.transpose(2, 3).to(inputs.dtype), final_state.transpose(1, 2)


def low_rank_step(
    transitions: Tensor, inputs: Tensor, state: Tensor, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Advance :func:`low_rank_scan` by one step: (B, H, 1 + 2 r, m), x and h (B, H, m).

    Raises:
        ValueError, TypeError, BackendUnavailableError: as in :func:`low_rank_scan`.
    """
    sizes: dict[str, int] = {}
    bind(sizes, "inputs", inputs, "B H m")
    bind(sizes, "transitions", transitions, "B H 1+2r m")
    bind(sizes, "state", state, "B H m")
    states, state = low_rank_scan(
        transitions.unsqueeze(1), inputs.unsqueeze(1), state, backend=backend
    )
    return states.squeeze(1), state
