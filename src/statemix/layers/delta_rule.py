"""The delta rule in chunks: several updates of a matrix memory per token."""

import torch
from torch import Tensor
from torch.nn import functional

CHUNK_SIZE = 64
"""Updates of the memory that one triangular system solves."""


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, memory: Tensor
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
        g: logarithm of each token's decay, at most 0, shape (B, T, H).
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
    G = chunks(g.unsqueeze(-1)).cumsum(3).repeat_interleave(n, 3)
    # Decays from update j to update i; the others must vanish before exp, where they overflow.
    later = torch.ones(size * n, size * n, dtype=torch.bool, device=q.device).triu(1)
    decay = (G - G.mT).masked_fill(later, -torch.inf).exp()
    system = (beta * (k @ k.mT) * decay).tril(-1)
    solved = torch.linalg.solve_triangular(
        system, torch.cat([beta * v, beta * G.exp() * k], -1), upper=False, unitriangular=True
    )
    fresh, erased = solved.split([v.shape[-1], k.shape[-1]], -1)
    attention = (q @ k.mT) * decay[..., n - 1 :: n, :]
    q = q * G[..., n - 1 :: n, :].exp()
    k = k * (G[..., -1:, :] - G).exp()
    outputs = []
    for c in range(num_chunks):
        u = fresh[:, :, c] - erased[:, :, c] @ memory
        outputs.append(q[:, :, c] @ memory + attention[:, :, c] @ u)
        memory = G[:, :, c, -1:].exp() * memory + k[:, :, c].mT @ u
    o = torch.stack(outputs, 1).transpose(2, 3)  # (B, chunks, size, H, V)
    return o.flatten(1, 2)[:, :length], memory
