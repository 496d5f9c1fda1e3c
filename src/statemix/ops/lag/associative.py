"""The lag recurrence as solved in the paper: a parallel scan of companion matrices."""

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.ops.block import associative as block


def scan(
    coefficients: Tensor, inputs: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Solve a recurrence of order m as a block scan of companion matrices.

    .. math:: h_t = \sum_{i=1}^m a_{i,t} h_{t-i} + b_t

    Source: Dubinin et al., Eq. 3, with the first row of each companion matrix holding the
    coefficients. (The printed snippet puts them into the first column, which is a different
    recurrence if they vary.) Memory grows as m^2 and work as m^3, although the recurrence itself
    needs only m.

    Args:
        coefficients: a, shape (B, T, H, m), float32 or wider; entry i - 1 multiplies h_{t-i}.
        inputs: b, shape (B, T, H), same dtype.
        initial_state: h_0, h_{-1}, ... h_{1-m}, shape (B, H, m), or (N, H, m) if packed.
        cu_seqlens: bounds of packed sequences, or None.

    Returns:
        states: h_1 ... h_T, shape (B, T, H).
        final_state: the last m states of every sequence, newest first, like ``initial_state``.
    """
    padded = F.pad(inputs.unsqueeze(-1), (0, coefficients.shape[-1] - 1))
    windows, final_state = block.scan(companions(coefficients), padded, initial_state, cu_seqlens)
    return windows[..., 0], final_state


def companions(coefficients: Tensor) -> Tensor:
    """Return companion matrices: coefficients in the first row, ones below the diagonal.

    Args:
        coefficients: a, shape (..., m).

    Returns:
        Shape (..., m, m).

    Example:
        >>> companions(torch.tensor([2.0, 3.0, 4.0])).tolist()
        [[2.0, 3.0, 4.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    order = coefficients.shape[-1]
    ones = torch.ones(order - 1, dtype=coefficients.dtype, device=coefficients.device)
    return ones.diag(-1) + F.pad(coefficients.unsqueeze(-2), (0, 0, 0, order - 1))
