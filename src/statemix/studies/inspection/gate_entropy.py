"""How decided the gates of a recurrence are."""

import torch
from torch import Tensor


def entropy(gates: Tensor) -> Tensor:
    r"""Return the entropy of each row of gates, in units of the largest possible one.

    .. math:: -\frac{1}{\ln(m + 1)} \sum_j p_j \ln p_j, \qquad p_j = |a_j| / \sum_k |a_k|

    A row of 0 copies one entry of the state, or its input; a row of 1 averages all of them. A row
    of zeros has 0.

    Args:
        gates: normalised gates, shape (..., m+1).

    Returns:
        Shape (...), float64, in [0, 1].

    Example:
        >>> entropy(torch.tensor([[1.0, 0.0], [-0.5, 0.5]])).tolist()
        [0.0, 1.0]
    """
    weights = gates.detach().double().abs()
    shares = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    largest = torch.tensor(float(gates.shape[-1]), dtype=weights.dtype, device=weights.device).log()
    found: Tensor = torch.special.entr(shares).sum(-1) / largest
    return found
