"""The linear recurrence of a layer on one input, written out for those who want to look at it."""

from typing import NamedTuple

from torch import Tensor


class Recurrence(NamedTuple):
    r"""A linear recurrence in independent units, with all its matrices.

    .. math:: h_t = A_t h_{t-1} + B_t v_t, \qquad t = 1, \dots, T

    A unit is a block, a channel or a head. Its state is a vector of m entries, or a matrix of m
    rows whose P columns share the transitions. Layers compute the same states without forming
    these matrices.

    Source: Dubinin et al., Eq. 4 and 23, for one unit of their block-diagonal matrices.

    Attributes:
        transitions: A, shape (B, T, H, m, m), float32 or wider, like all others.
        input_maps: B, shape (B, T, H, m, R).
        values: v, shape (B, T, H, R, P).
        initial_state: h_0, shape (B, H, m, P). With T = 1, h_1 is what ``Layer.step`` returns as
            the first tensor of its state, in the same order of entries.
        gates: rows of gates that share one normalisation, state gates before the input gate, shape
            (B, T, H, rows, m+1); None if the layer has no such gates.
        unit: what a unit is called.
    """

    transitions: Tensor
    input_maps: Tensor
    values: Tensor
    initial_state: Tensor
    gates: Tensor | None = None
    unit: str = "unit"
