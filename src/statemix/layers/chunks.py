"""Recurrences in chunks, which matrix products solve: the delta rule and SSD, with decays."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from statemix.layers.exporting import is_open, register_loop

CHUNK_SIZE = 64
"""Updates of the memory that one triangular system solves; tokens that one attention mixes."""


def log_decays(A_log: Tensor, raw_steps: Tensor) -> Tensor:
    r"""Return each token's :math:`g = -e^A \mathrm{softplus}(r)`, A (H,) and r (..., H)."""
    # Logarithms are added: one factor may overflow where the other vanishes.
    # Below -40, softplus(r) equals e^r to the last digit of float64.
    log_steps = functional.softplus(raw_steps.clamp(min=-40)).log()
    log_steps = torch.where(raw_steps < -40, raw_steps, log_steps)
    # The decay is 0 long before e^80, and sums over a chunk stay finite.
    return -(A_log + log_steps).clamp(max=80).exp()


def decays_between(g: Tensor) -> Tensor:
    r"""Return :math:`D_{ij} = e^{g_{j+1} + \dots + g_i}` for j <= i, else 0, of g (..., T).

    Each sum is over its own terms: a difference of two sums from the first token would lose digits.
    """
    every = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device)
    sums = g.unsqueeze(-1).masked_fill(every.triu(), 0).cumsum(-2)
    # The others must vanish before exp, where they would overflow in the gradient.
    return sums.masked_fill(every.triu(1), -torch.inf).exp()


def chunked(x: Tensor, most: int) -> Tensor:
    """Return x (B, T, ...) as chunks (B, chunks, at most ``most``, ...), with zeros."""
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


def _in_order(outputs: list[Tensor], length: int) -> Tensor:
    """Join the outputs of chunks, (B, H, size, D) each, to those of all tokens, (B, T, H, D)."""
    parts = [o.transpose(1, 2) for o in outputs]
    # The result must be no view: Inductor cannot order the strides of a view of unknown length.
    parts[-1] = parts[-1][:, : length - (len(parts) - 1) * parts[0].shape[1]]
    return torch.cat(parts, 1)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, memory: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Apply n delta-rule updates per token and read after the last: readouts, and the last memory.

    With G the decay accumulated in a chunk, the corrections u solve a unit triangular system,

    .. math::
        u_i = \beta_i \Big(v_i - e^{G_i} S^\top k_i
            - \sum_{j < i} e^{G_i - G_j} (k_i^\top k_j)\, u_j\Big)

    Shapes: q (B, T, H, K), k (B, T, n, H, K), v (B, T, n, H, V), beta (B, T, n, H), memory
    (B, H, K, V), and g (B, T, H), the logarithms of decays, or None.
    """
    length, n = k.shape[1:3]
    if is_open(length):
        o, memory = _delta_rule_of_any_length(q, k, v, beta, g, memory)
        return o, memory
    if length == 1:
        if g is not None:
            memory = g[:, 0].exp()[..., None, None] * memory
        updates = (part[:, 0].unbind(1) for part in (k, v, beta))
        for key, value, strength in zip(*updates, strict=True):
            known = (key.unsqueeze(-2) @ memory).squeeze(-2)
            u = strength.unsqueeze(-1) * (value - known)
            memory = memory + key.unsqueeze(-1) * u.unsqueeze(-2)
        return (q[:, 0].unsqueeze(-2) @ memory).squeeze(-2).unsqueeze(1), memory

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
    return _in_order(outputs, length), memory


_delta_rule_of_any_length = register_loop(
    "delta_rule",
    delta_rule,
    lambda q, _k, v, *others: (
        v.new_empty(*q.shape[:3], v.shape[-1]),
        others[-1].new_empty(others[-1].shape),
    ),
)


def ssd(x: Tensor, g: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute S_t = exp(g_t) S_{t-1} + x_t B_t^T and its readouts S_t C_t, chunk by chunk.

    Shapes: x (B, T, H, P), g (B, T, H), at most 0, B and C (B, T, N), state (B, H, P, N).
    """
    length = x.shape[1]
    if is_open(length):
        o, state = _ssd_of_any_length(x, g, B, C, state)
        return o, state
    # Tokens of decay 1 and input 0 fill the last chunk.
    x, g, B, C = (chunked(part, CHUNK_SIZE) for part in (x, g, B, C))
    x = x.movedim(3, 1)  # (B, H, chunks, size, P)
    B, C = B.unsqueeze(1), C.unsqueeze(1)
    g = g.movedim(3, 1)  # (B, H, chunks, size)
    decay = decays_between(g)
    since_start = g.cumsum(-1).exp().unsqueeze(-1)
    inside = (C @ B.mT * decay) @ x
    added = (x * decay[..., -1, :, None]).mT @ B
    outputs = []
    for c in range(x.shape[2]):
        outputs.append(inside[:, :, c] + since_start[:, :, c] * (C[:, :, c] @ state.mT))
        state = since_start[:, :, c, -1:] * state + added[:, :, c]
    return _in_order(outputs, length), state


_ssd_of_any_length = register_loop(
    "ssd", ssd, lambda x, *others: (x.new_empty(x.shape), others[-1].new_empty(others[-1].shape))
)
