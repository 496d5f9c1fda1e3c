"""The generalised block attention matrix of a recurrence: what each input adds to each state."""

import torch
from torch import Tensor

from statemix.layers import Recurrence


def mixing(recurrence: Recurrence) -> Tensor:
    r"""Return the matrices by which inputs contribute to states.

    .. math::
        h_t = \bar A_{t,0} h_0 + \sum_{s=1}^t \bar A_{t,s} v_s, \qquad
        \bar A_{t,s} = A_t A_{t-1} \cdots A_{s+1} B_s

    Source: Dubinin et al., Appendix H, Eq. 24, with states in place of outputs (C = 1). The factors
    printed above it have indices that are one too small: A_2, not A_1, acts on the input at s = 1.

    Args:
        recurrence: a recurrence over T steps.

    Returns:
        Shape (B, T, T, H, m, R), the time t of the state before the time s of the input; zero where
        s > t. Its memory grows as T^2: take a few units and sequences with :func:`part` first.
    """
    A, B = recurrence.transitions, recurrence.input_maps
    batch, length, units, size, values = B.shape
    found = B.new_zeros(batch, length, length, units, size, values)
    for t in range(length):
        if t > 0:
            # Everything that the state before holds passes through the transition of this step.
            found[:, t, :t] = A[:, t].unsqueeze(1) @ found[:, t - 1, :t]
        found[:, t, t] = B[:, t]
    return found


def carried(recurrence: Recurrence) -> Tensor:
    """Return the contribution of the initial state to each state.

    Args:
        recurrence: a recurrence over T steps.

    Returns:
        A_t ... A_1 h_0 at every t, shape (B, T, H, m, P).
    """
    A, h = recurrence.transitions, recurrence.initial_state
    found = h.new_zeros(*A.shape[:4], h.shape[-1])
    for t in range(A.shape[1]):
        found[:, t] = h = A[:, t] @ h
    return found


def applied(matrices: Tensor, values: Tensor) -> Tensor:
    """Multiply a block attention matrix with inputs.

    Args:
        matrices: result of :func:`mixing`, shape (B, T, T, H, m, R).
        values: v, shape (B, T, H, R, P).

    Returns:
        The states that follow from the inputs, shape (B, T, H, m, P), without :func:`carried`.
    """
    return torch.einsum("btshmr,bshrp->bthmp", matrices, values)


def sizes(matrices: Tensor) -> Tensor:
    """Return the largest change of an entry of the state by inputs of at most 1.

    That is the largest sum of absolute values over a row of each matrix.

    Args:
        matrices: shape (..., m, R).

    Returns:
        Shape (...).
    """
    return matrices.abs().sum(-1).amax(-1)


def part(recurrence: Recurrence, sequences: slice, units: list[int] | slice) -> Recurrence:
    """Return the recurrence of some sequences and units."""
    A, B, v, initial_state, gates, unit = recurrence
    return Recurrence(
        A[sequences][:, :, units],
        B[sequences][:, :, units],
        v[sequences][:, :, units],
        initial_state[sequences][:, units],
        None if gates is None else gates[sequences][:, :, units],
        unit,
    )
