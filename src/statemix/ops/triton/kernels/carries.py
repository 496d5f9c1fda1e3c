"""Triton kernel that follows the maps of chunks from one to the next, forward or backward."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_chunks"])
def carries(
    maps, offsets, outer, entering, firsts, H: tl.constexpr, num_chunks,
    M: tl.constexpr, PLACES: tl.constexpr, L: tl.constexpr, STAGES: tl.constexpr,
    PACKED: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Store what enters each chunk: ``outer`` into the first, then P x + q of the one before.

    ``maps`` has shape (maps, m+1, m, H): the columns of P, then q, of all chunks but the last of
    each sequence; ``entering``, the result, (chunks, m, H). In reverse, ``outer`` enters the last
    chunk, and P^T x + q of a chunk the one before it, with q in ``offsets`` (maps, m, H).

    A map depends on no state, so the compiler reads STAGES - 1 maps ahead. A state is one tile,
    with PLACES >= m places, because each load takes the compiler some time for every stage.
    """
    STEP: tl.constexpr = -1 if REVERSE else 1
    # The columns of P^T are rows of P.
    COLUMN: tl.constexpr = H if REVERSE else M * H
    ENTRY: tl.constexpr = M * H if REVERSE else H
    sequence = tl.program_id(0).to(tl.int64)
    count = num_chunks - 1
    first = sequence * count
    if PACKED:
        first = tl.load(firsts + sequence)
        count = tl.load(firsts + sequence + 1) - first
    entry = tl.arange(0, PLACES)[:, None].to(tl.int64)
    lanes = tl.program_id(1).to(tl.int64) * L + tl.arange(0, L)[None, :]
    mask = (entry < M) & (lanes < H)
    at = entry * H + lanes
    x = tl.load(outer + sequence * M * H + at, mask=mask, other=0.0)
    # Every sequence before has one chunk more than maps.
    x_at = entering + (first + sequence + (count if REVERSE else 0)) * M * H + at
    tl.store(x_at, x, mask=mask)
    of_map = first + (count - 1 if REVERSE else 0)
    m_at = maps + of_map * (M + 1) * M * H
    if REVERSE:
        q_at = offsets + of_map * M * H + at
        # A sequence of one chunk has no map.
        mapped = mask & (entry < count * M)
        x = tl.load(q_at, mask=mapped, other=0.0)
        q_at += STEP * M * H
        x_at += STEP * M * H
        tl.store(x_at, x, mask=mapped)
    else:
        q_at = m_at + M * M * H + at
    m_at += entry * ENTRY + lanes
    for _ in tl.range(1 if REVERSE else 0, count, num_stages=STAGES):
        after = tl.load(q_at, mask=mask, other=0.0)
        for j in tl.static_range(M):
            x_j = tl.sum(tl.where(entry == j, x, 0.0), axis=0)[None, :]
            after += tl.load(m_at + j * COLUMN, mask=mask, other=0.0) * x_j
        x = after
        m_at += STEP * (M + 1) * M * H
        q_at += STEP * M * H if REVERSE else (M + 1) * M * H
        x_at += STEP * M * H
        tl.store(x_at, x, mask=mask)
