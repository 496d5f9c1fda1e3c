"""Decays of single tokens, and between the tokens of a chunk; sizes of chunks."""

import torch
from torch import Tensor
from torch.nn import functional


def log_decays(A_log: Tensor, raw_steps: Tensor) -> Tensor:
    r"""Return the logarithm of each token's decay, :math:`g = -e^A\, \mathrm{softplus}(r)`.

    The logarithms of both factors are added: one factor may overflow where the other vanishes.

    Args:
        A_log: A, shape (H,).
        raw_steps: r, shape (..., H).

    Returns:
        g: shape (..., H).
    """
    # Below -40, softplus(r) equals e^r to the last digit of float64.
    log_steps = functional.softplus(raw_steps.clamp(min=-40)).log()
    log_steps = torch.where(raw_steps < -40, raw_steps, log_steps)
    # The decay is 0 long before e^80, and sums over a chunk stay finite.
    return -(A_log + log_steps).clamp(max=80).exp()


def decays_between(g: Tensor) -> Tensor:
    r"""Return by how much what token j wrote has decayed at token i.

    .. math:: D_{ij} = e^{g_{j+1} + \dots + g_i} \text{ for } j \le i, \quad 0 \text{ for } j > i

    Each sum is over its own terms: as the difference of two sums from the first token, it would
    lose its digits after one strong decay.

    Args:
        g: logarithm of each token's decay, at most 0, shape (..., T).

    Returns:
        D: shape (..., T, T).
    """
    every = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device)
    sums = g.unsqueeze(-1).masked_fill(every.triu(), 0).cumsum(-2)
    # The others must vanish before exp, where they would overflow in the gradient.
    return sums.masked_fill(every.triu(1), -torch.inf).exp()


def chunked(x: Tensor, most: int) -> Tensor:
    """Divide tokens into chunks of at most ``most``; zeros fill the last one.

    Args:
        x: shape (B, T, ...), T >= 1.
        most: tokens of a chunk, unless there are fewer.

    Returns:
        Shape (B, chunks, size, ...).
    """
    length = x.shape[1]
    if length <= most:
        return x.unsqueeze(1)
    # Counting keeps the number an int where a compiler leaves the length open.
    num_chunks = 2
    while num_chunks * most < length:
        num_chunks += 1
    # Where lengths are open, a compiler errs about the strides of padding's gradient.
    zeros = x.new_zeros(x.shape[0], num_chunks * most - length, *x.shape[2:])
    return torch.cat([x, zeros], 1).reshape(x.shape[0], num_chunks, most, *x.shape[2:])
