"""Triton kernel that follows the maps of chunks from one to the next, forward or backward."""

import triton
import triton.language as tl

from statemix.ops.triton.kernels.tiles import added, chosen, load_all, pushed, store_all, tile


@triton.jit
def carries(
    maps, outer, entering, restarts, H, num_rows, num_chunks,
    M: tl.constexpr, PACKED: tl.constexpr, REVERSE: tl.constexpr, R: tl.constexpr,
    L: tl.constexpr,
):  # fmt: skip
    """Store what enters each chunk: ``outer`` into the first, then P x + q of the one before.

    ``maps`` has shape (rows, chunks - 1, m+1, m, H), with the columns of P and then q, ``outer``
    (rows, m, H) and ``entering``, the result, (rows, chunks, m, H). Nothing is carried out of the
    last chunk. In reverse, that is the first one. ``restarts`` holds 1 for chunks of a packed row
    that nothing passes, as a sequence begins in them, or in reverse ends: 0 times a NaN would pass.
    """
    S: tl.constexpr = maps.dtype.element_ty
    rows, lanes, mask = tile(num_rows, H, R, L)
    x = load_all(outer + rows * M * H + lanes, H, mask, S, M)
    chunk = num_chunks - 1 if REVERSE else 0
    step = -1 if REVERSE else 1
    m_at = maps + (rows * (num_chunks - 1) + (num_chunks - 2 if REVERSE else 0)) * (M + 1) * M * H
    m_at += lanes
    x_at = entering + (rows * num_chunks + chunk) * M * H + lanes
    store_all(x_at, H, x, mask, M)
    for _ in tl.range(1, num_chunks):
        q = load_all(m_at + M * M * H, H, mask, S, M)
        after = q
        column_at = m_at
        # Not unrolled, so that the columns of a map are not in registers all at once.
        for _ in tl.range(0, M):
            column = load_all(column_at, H, mask, S, M)
            terms = ()
            for i in tl.static_range(M):
                terms = terms + (column[i] * x[0],)
            after = added(after, terms, M)
            x = pushed(x, x, M, 1)
            column_at += M * H
        if PACKED:
            after = chosen(tl.load(restarts + chunk) != 0, q, after, M)
            chunk += step
        x = after
        m_at += step * (M + 1) * M * H
        x_at += step * M * H
        store_all(x_at, H, x, mask, M)
