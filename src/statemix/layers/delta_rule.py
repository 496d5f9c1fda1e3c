"""The delta rule in chunks: the recurrence of DeltaNet and DeltaProduct."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

CHUNK_SIZE = 64
"""Updates of the memory that one triangular system solves."""


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, memory: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Apply n delta-rule updates per token and read after the last, chunk by chunk.

    With G the decay accumulated in a chunk, the corrections u solve a unit triangular system,

    .. math::
        u_i = \beta_i \Big(v_i - e^{G_i} S^\top k_i
            - \sum_{j < i} e^{G_i - G_j} (k_i^\top k_j)\, u_j\Big),

    after which outputs and the next memory are matrix products.

    Args:
        q: queries, shape (B, T, H, K).
        k: keys, shape (B, T, n, H, K).
        v: values, shape (B, T, n, H, V).
        beta: strengths, shape (B, T, n, H).
        g: logarithm of each token's decay, at most 0, shape (B, T, H). None means no decay.
        memory: memory before the first token, shape (B, H, K, V).

    Returns:
        o: readouts, shape (B, T, H, V).
        memory: memory after the last token.
    """
    batch, length, n = k.shape[:3]
    if length == 0:
        return v[:, :, 0], memory
    size = min(length, max(CHUNK_SIZE // n, 1))
    num_chunks = -(-length // size)

    def chunks(x: Tensor) -> Tensor:  # (B, T, ..., H, D) -> (B, H, chunks, size * ..., D)
        # Tokens of strength 0 and decay 1 fill the last chunk.
        x = functional.pad(x, (0, 0) * (x.ndim - 2) + (0, num_chunks * size - length))
        x = x.reshape(batch, num_chunks, size, *x.shape[2:]).movedim(-2, 1)
        return x.flatten(3, -2)

    q, k, v, beta = chunks(q), chunks(k), chunks(v), chunks(beta.unsqueeze(-1))
    system = (beta * k) @ k.mT  # Only what lies below its diagonal is read.
    attention = q @ k.mT
    kept: Sequence[Tensor | None]
    later = torch.ones(size * n, size * n, dtype=torch.bool, device=q.device).triu(1)
    if g is None:
        attention = attention.masked_fill(later[n - 1 :: n], 0)
        parts = (q, k, k, v, beta, system, attention)
        kept = [None] * num_chunks
    else:
        G = chunks(g.unsqueeze(-1)).cumsum(3).repeat_interleave(n, 3)
        # Decays from update j to update i; the others must vanish before exp, where they overflow.
        decay = (G - G.mT).masked_fill(later, -torch.inf).exp()
        since_start = G.exp()
        parts = (
            q * since_start[..., n - 1 :: n, :],
            k * since_start,
            k * (G[..., -1:, :] - G).exp(),
            v,
            beta,
            system * decay,
            attention * decay[..., n - 1 :: n, :],
        )
        kept = since_start[..., -1:, :].unbind(2)
    outputs = []
    for (q, erased, written, v, beta, system, attention), factor in zip(
        zip(*(part.unbind(2) for part in parts), strict=True), kept, strict=True
    ):
        u = torch.linalg.solve_triangular(
            system, beta * (v - erased @ memory), upper=False, unitriangular=True
        )
        outputs.append(q @ memory + attention @ u)
        memory = (memory if factor is None else factor * memory) + written.mT @ u
    o = torch.stack(outputs, 1).transpose(2, 3)  # (B, chunks, size, H, V)
    return o.flatten(1, 2)[:, :length], memory
