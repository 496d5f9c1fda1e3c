"""The delta rule in chunks: the recurrence of DeltaNet and DeltaProduct."""

from collections.abc import Sequence

import torch
from torch import Tensor

from statemix.layers import any_length
from statemix.layers.decays import chunked, decays_between

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
    length, n = k.shape[1:3]
    if any_length.is_open(length):
        o, memory = _of_any_length(q, k, v, beta, g, memory)
        return o, memory
    if length == 0:
        return v[:, :, 0], memory
    if length == 1:
        return _of_one_token(q, k, v, beta, g, memory)

    def chunks(x: Tensor) -> Tensor:  # (B, T, ..., H, D) -> (B, H, chunks, size * ..., D)
        # Tokens of strength 0 and decay 1 fill the last chunk.
        return chunked(x, max(CHUNK_SIZE // n, 1)).movedim(-2, 1).flatten(3, -2)

    q, k, v, beta = chunks(q), chunks(k), chunks(v), chunks(beta.unsqueeze(-1))
    num_chunks, size = q.shape[2:4]
    system = (beta * k) @ k.mT  # Only what lies below its diagonal is read.
    attention = q @ k.mT
    kept: Sequence[Tensor | None]
    if g is None:
        later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
        attention = attention.masked_fill(later.repeat_interleave(n, 1), 0)
        parts = (q, k, k, v, beta, system, attention)
        kept = [None] * num_chunks
    else:
        g = chunks(g.unsqueeze(-1)).squeeze(-1)  # (B, H, chunks, size)
        decay = decays_between(g).repeat_interleave(n, -1)
        since_start = g.cumsum(-1).exp().unsqueeze(-1)
        parts = (
            q * since_start,
            k * since_start.repeat_interleave(n, -2),
            k * decay[..., -1, :, None],
            v,
            beta,
            system * decay.repeat_interleave(n, -2),
            attention * decay,
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


def _of_one_token(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the updates of a single token one after the other."""
    if g is not None:
        memory = g[:, 0].exp()[..., None, None] * memory
    for key, value, strength in zip(
        k[:, 0].unbind(1), v[:, 0].unbind(1), beta[:, 0].unbind(1), strict=True
    ):
        known = (key.unsqueeze(-2) @ memory).squeeze(-2)
        u = strength.unsqueeze(-1) * (value - known)
        memory = memory + key.unsqueeze(-1) * u.unsqueeze(-2)
    o = (q[:, 0].unsqueeze(-2) @ memory).squeeze(-2)
    return o.unsqueeze(1), memory


_of_any_length = any_length.register(
    "delta_rule",
    delta_rule,
    lambda q, _k, v, *others: (
        v.new_empty(*q.shape[:3], v.shape[-1]),
        others[-1].new_empty(others[-1].shape),
    ),
)
