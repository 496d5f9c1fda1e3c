"""Triton kernels of the block recurrence, over chunks of time.

With one chunk per sequence, ``local_forward`` and ``local_backward`` do all. With several,
``chunk_forward`` first finds the map of each chunk, h_end = P h_start + q, and ``carries``
(carries.py) follows the maps, so that the local scans know where they start. Backward, a chunk's
map is P^T, which ``chunk_backward`` finds by the adjoint recurrence.

The m entries of a block are m tiles in registers. Maps have shape (rows, m+1, m, H), with one
column for each entry of the state before, and q last; carried states have shape (rows, m, H).
``sequences``, ``positions`` and ``ends`` hold, for each step of a packed row, the number of its
sequence, its place there, and whether it is the last one.
"""

import triton
import triton.language as tl

from statemix.ops.triton.kernels.rows import inverse_of, row_backward, row_forward, row_weights
from statemix.ops.triton.kernels.tiles import (
    added,
    chosen,
    last_column,
    load_all,
    pushed,
    store_all,
    store_columns,
    tile,
    unit_columns,
)


@triton.jit
def local_forward(
    gates, values, entering, states, final, initial, temperature, sequences, positions, ends,
    T, H, num_rows, num_chunks, chunk, gates_b, gates_t, gates_i, gates_j, values_b, values_t,
    values_i,
    M: tl.constexpr, FAMILY: tl.constexpr, PART: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
    RAGGED: tl.constexpr, PACKED: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Run the recurrence in each chunk, from the states that enter it."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = initial.dtype.element_ty
    rows, lanes, mask = tile(num_rows, H, R, L)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // num_chunks, rows % num_chunks
    t = c * chunk
    g_at = gates + b * gates_b + t * gates_t + lanes
    v_at = values + b * values_b + t * values_t + lanes
    h_at = states + (b * T + t) * M * H + lanes
    h = load_all(entering + rows * M * H + lanes, H, mask, S, M)
    for _ in tl.range(0, chunk):
        live = mask & (t < T) if RAGGED else mask
        if PACKED:
            sequence = tl.load(sequences + t, mask=t < T, other=0).to(tl.int64)
            fresh = live & (tl.load(positions + t, mask=t < T, other=1) == 0)
            h = chosen(fresh, load_all(initial + sequence * M * H + lanes, H, fresh, S, M), h, M)
        after = h
        for row in tl.range(0, M):
            g = load_all(g_at + row * gates_i, gates_j, live, S, GATES)
            v = tl.load(v_at + row * values_i, mask=live, other=0.0).to(S)
            h_i = row_forward(g, h + (v,), inverse, M + 1, FAMILY, PART)
            after = pushed(after, (h_i,), M, 1)
        h = chosen(live, after, h, M) if RAGGED else after
        store_all(h_at, H, h, live, M)
        if PACKED:
            last = live & (tl.load(ends + t, mask=t < T, other=0) != 0)
            store_all(final + sequence * M * H + lanes, H, h, last, M)
        t += 1
        g_at += gates_t
        v_at += values_t
        h_at += M * H
    if not PACKED:
        store_all(final + b * M * H + lanes, H, h, mask & (c == num_chunks - 1), M)


@triton.jit
def chunk_forward(
    gates, values, maps, initial, temperature, sequences, positions,
    T, H, num_rows, num_chunks, chunk, gates_b, gates_t, gates_i, gates_j, values_b, values_t,
    values_i,
    M: tl.constexpr, COLUMNS: tl.constexpr, FAMILY: tl.constexpr, PART: tl.constexpr,
    R: tl.constexpr, L: tl.constexpr, RAGGED: tl.constexpr,
    PACKED: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Find where each chunk takes the unit vectors, without inputs, and zero, with inputs."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = maps.dtype.element_ty
    rows, lanes, mask = tile(num_rows, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // num_chunks, rows % num_chunks
    t = c * chunk
    g_at = gates + b * gates_b + t * gates_t + lanes
    v_at = values + b * values_b + t * values_t + lanes
    zero = tl.zeros((R, L), S)
    h = unit_columns(first, zero, M, COLUMNS)
    for _ in tl.range(0, chunk):
        live = mask & (t < T) if RAGGED else mask
        if PACKED:
            sequence = tl.load(sequences + t, mask=t < T, other=0).to(tl.int64)
            fresh = live & (tl.load(positions + t, mask=t < T, other=1) == 0)
            started = load_all(initial + sequence * M * H + lanes, H, fresh, S, M)
            reset = last_column(first, started, zero, M, COLUMNS)
            h = chosen(fresh, reset, h, COLUMNS * M)
        after = h
        for row in tl.range(0, M):
            g = load_all(g_at + row * gates_i, gates_j, live, S, GATES)
            v = tl.load(v_at + row * values_i, mask=live, other=0.0).to(S)
            p = row_weights(g, inverse, M + 1, FAMILY, PART)
            of_row = ()
            for k in tl.static_range(COLUMNS):
                x = p[M] * v * (first + k == M).to(S)
                for j in tl.static_range(M):
                    x += p[j] * h[j * COLUMNS + k]
                of_row = of_row + (x,)
            after = pushed(after, of_row, COLUMNS * M, COLUMNS)
        h = chosen(live, after, h, COLUMNS * M) if RAGGED else after
        t += 1
        g_at += gates_t
        v_at += values_t
    store_columns(maps, rows, lanes, first, h, mask, H, M, COLUMNS)


@triton.jit
def local_backward(
    gates, values, states, initial, leaving, d_states, d_final, d_gates, d_values, d_initial,
    temperature, sequences, positions, ends,
    T, H, num_rows, num_chunks, chunk, gates_b, gates_t, gates_i, gates_j, values_b, values_t,
    values_i, d_states_b, d_states_t, d_states_i,
    M: tl.constexpr, FAMILY: tl.constexpr, PART: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
    PACKED: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Run the adjoint recurrence in each chunk, from the gradients that enter at its end."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = initial.dtype.element_ty
    rows, lanes, mask = tile(num_rows, H, R, L)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // num_chunks, rows % num_chunks
    begun = c * chunk
    t = tl.minimum(begun + chunk, T) - 1
    g_at = gates + b * gates_b + t * gates_t + lanes
    v_at = values + b * values_b + t * values_t + lanes
    dy_at = d_states + b * d_states_b + t * d_states_t + lanes
    dg_at = d_gates + (b * T + t) * (M * GATES) * H + lanes
    dv_at = d_values + (b * T + t) * M * H + lanes
    # One step earlier.
    h_at = states + (b * T + t - 1) * M * H + lanes
    carry = load_all(leaving + rows * M * H + lanes, H, mask, S, M)
    for _ in tl.range(0, chunk):
        live = mask & (t >= begun)
        if PACKED:
            sequence = tl.load(sequences + t, mask=t >= begun, other=0).to(tl.int64)
            first = live & (tl.load(positions + t, mask=t >= begun, other=1) == 0)
            last = live & (tl.load(ends + t, mask=t >= begun, other=0) != 0)
            carry = chosen(
                last, load_all(d_final + sequence * M * H + lanes, H, last, S, M), carry, M
            )
        else:
            sequence = b
            first = live & (t == 0)
        h = chosen(
            first,
            load_all(initial + sequence * M * H + lanes, H, first, S, M),
            load_all(h_at, H, live & (t > 0), S, M),
            M,
        )
        sums = ()
        for _ in tl.static_range(M):
            sums = sums + (tl.zeros((R, L), S),)
        for row in tl.range(0, M):
            g = load_all(g_at + row * gates_i, gates_j, live, S, GATES)
            v = tl.load(v_at + row * values_i, mask=live, other=0.0).to(S)
            lam = carry[0] + tl.load(dy_at + row * d_states_i, mask=live, other=0.0).to(S)
            carry = pushed(carry, carry, M, 1)
            d_g, d_u = row_backward(g, h + (v,), lam, inverse, M + 1, FAMILY, PART)
            store_all(dg_at + row * GATES * H, H, d_g, live, GATES)
            tl.store(dv_at + row * H, d_u[M].to(d_values.dtype.element_ty), mask=live)
            sums = added(sums, d_u, M)
        carry = sums
        if PACKED:
            store_all(d_initial + sequence * M * H + lanes, H, carry, first, M)
        t -= 1
        g_at -= gates_t
        v_at -= values_t
        dy_at -= d_states_t
        dg_at -= M * GATES * H
        dv_at -= M * H
        h_at -= M * H
    if not PACKED:
        store_all(d_initial + b * M * H + lanes, H, carry, mask & (c == 0), M)


@triton.jit
def chunk_backward(
    gates, d_states, d_final, maps, temperature, sequences, ends,
    T, H, num_rows, num_chunks, chunk, gates_b, gates_t, gates_i, gates_j, d_states_b, d_states_t,
    d_states_i,
    M: tl.constexpr, COLUMNS: tl.constexpr, FAMILY: tl.constexpr, PART: tl.constexpr,
    R: tl.constexpr, L: tl.constexpr, PACKED: tl.constexpr,
    TEMPERED: tl.constexpr,
):  # fmt: skip
    """Find where the adjoint recurrence of each chunk takes the unit vectors, and zero."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = maps.dtype.element_ty
    rows, lanes, mask = tile(num_rows, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // num_chunks, rows % num_chunks
    begun = c * chunk
    t = tl.minimum(begun + chunk, T) - 1
    g_at = gates + b * gates_b + t * gates_t + lanes
    dy_at = d_states + b * d_states_b + t * d_states_t + lanes
    zero = tl.zeros((R, L), S)
    carry = unit_columns(first, zero, M, COLUMNS)
    for _ in tl.range(0, chunk):
        live = mask & (t >= begun)
        if PACKED:
            sequence = tl.load(sequences + t, mask=t >= begun, other=0).to(tl.int64)
            last = live & (tl.load(ends + t, mask=t >= begun, other=0) != 0)
            d_h = load_all(d_final + sequence * M * H + lanes, H, last, S, M)
            reset = last_column(first, d_h, zero, M, COLUMNS)
            carry = chosen(last, reset, carry, COLUMNS * M)
        lams = carry
        sums = ()
        for _ in tl.static_range(COLUMNS * M):
            sums = sums + (zero,)
        for row in tl.range(0, M):
            g = load_all(g_at + row * gates_i, gates_j, live, S, GATES)
            dy = tl.load(dy_at + row * d_states_i, mask=live, other=0.0).to(S)
            p = row_weights(g, inverse, M + 1, FAMILY, PART)
            terms = ()
            for j in tl.static_range(M):
                for k in tl.static_range(COLUMNS):
                    lam = lams[k] + dy * (first + k == M).to(S)
                    terms = terms + (p[j] * lam,)
            sums = added(sums, terms, COLUMNS * M)
            lams = pushed(lams, lams, COLUMNS * M, COLUMNS)
        carry = chosen(live, sums, carry, COLUMNS * M)
        t -= 1
        g_at -= gates_t
        dy_at -= d_states_t
    store_columns(maps, rows, lanes, first, carry, mask, H, M, COLUMNS)
