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
    load_row,
    pushed,
    store_all,
    store_columns,
    tile,
    unit_columns,
    with_input,
)


@triton.jit
def local_forward(
    gates, values, entering, states, final, initial, temperature, sequences, positions, ends,
    T, H, num_rows, num_chunks, chunk, gates_b, gates_t, gates_i, gates_j, values_b, values_t,
    values_i,
    M: tl.constexpr, FAMILY: tl.constexpr, SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
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
            h_i = row_forward(g, h + (v,), inverse, M + 1, FAMILY, SHIFT)
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
    H, num_maps, maps_of_row, chunk, gates_b, gates_t, gates_i, gates_j, values_b, values_t,
    values_i,
    M: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr, FAMILY: tl.constexpr,
    SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr, PACKED: tl.constexpr,
    TEMPERED: tl.constexpr,
):  # fmt: skip
    """Find where all chunks but the last take the unit vectors, without inputs, and zero, with."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = maps.dtype.element_ty
    rows, lanes, mask = tile(num_maps, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // maps_of_row, rows % maps_of_row
    t = c * chunk
    g_at = gates + b * gates_b + t * gates_t + lanes
    v_at = values + b * values_b + t * values_t + lanes
    zero = tl.zeros((R, L), S)
    h = unit_columns(first, zero, M, COLUMNS)
    for _ in tl.range(0, chunk):
        if PACKED:
            sequence = tl.load(sequences + t).to(tl.int64)
            fresh = mask & (tl.load(positions + t) == 0)
            started = load_all(initial + sequence * M * H + lanes, H, fresh, S, M)
            reset = last_column(first, started, zero, M, COLUMNS)
            h = chosen(fresh, reset, h, COLUMNS * M)
            t += 1
        after = h
        row_at = g_at
        v_row = v_at
        for _ in tl.range(0, M // UNROLL):
            of_rows = ()
            for _ in tl.static_range(UNROLL):
                g, row_at = load_row(row_at, gates_i, gates_j, mask, S, GATES)
                v = tl.load(v_row, mask=mask).to(S)
                v_row += values_i
                p = row_weights(g, inverse, M + 1, FAMILY, SHIFT)
                for k in tl.static_range(COLUMNS):
                    x = p[0] * h[k]
                    for j in tl.static_range(1, M):
                        x += p[j] * h[j * COLUMNS + k]
                    of_rows = of_rows + (with_input(x, p[M], v, first, k, M, COLUMNS),)
            after = pushed(after, of_rows, COLUMNS * M, COLUMNS * UNROLL)
        h = after
        g_at += gates_t
        v_at += values_t
    store_columns(maps, rows, lanes, first, h, mask, H, M, COLUMNS)


@triton.jit
def local_backward(
    gates, values, states, initial, leaving, d_states, d_final, d_gates, d_values, d_initial,
    temperature, sequences, positions, ends,
    T, H, num_rows, num_chunks, chunk, gates_b, gates_t, gates_i, gates_j, values_b, values_t,
    values_i, d_states_b, d_states_t, d_states_i,
    M: tl.constexpr, FAMILY: tl.constexpr, SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
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
            d_g, d_u = row_backward(g, h + (v,), lam, inverse, M + 1, FAMILY, SHIFT)
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
    T, H, num_maps, maps_of_row, chunk, gates_b, gates_t, gates_i, gates_j, d_states_b, d_states_t,
    d_states_i,
    M: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr, FAMILY: tl.constexpr,
    SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr, RAGGED: tl.constexpr,
    PACKED: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Find where all chunks but the first take unit vectors of the adjoint, and zero."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = maps.dtype.element_ty
    rows, lanes, mask = tile(num_maps, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // maps_of_row, rows % maps_of_row + 1
    begun = c * chunk
    t = tl.minimum(begun + chunk, T) - 1
    g_at = gates + b * gates_b + t * gates_t + lanes
    dy_at = d_states + b * d_states_b + t * d_states_t + lanes
    zero = tl.zeros((R, L), S)
    carry = unit_columns(first, zero, M, COLUMNS)
    for _ in tl.range(0, chunk):
        live = mask & (t >= begun) if RAGGED else mask
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
        row_at = g_at
        dy_row = dy_at
        for _ in tl.range(0, M // UNROLL):
            for row in tl.static_range(UNROLL):
                g, row_at = load_row(row_at, gates_i, gates_j, live, S, GATES)
                dy = tl.load(dy_row, mask=live).to(S)
                dy_row += d_states_i
                p = row_weights(g, inverse, M + 1, FAMILY, SHIFT)
                lam = ()
                for k in tl.static_range(COLUMNS):
                    x = lams[row * COLUMNS + k]
                    lam = lam + (with_input(x, 1.0, dy, first, k, M, COLUMNS),)
                terms = ()
                for j in tl.static_range(M):
                    for k in tl.static_range(COLUMNS):
                        terms = terms + (p[j] * lam[k],)
                sums = added(sums, terms, COLUMNS * M)
            lams = pushed(lams, lams, COLUMNS * M, COLUMNS * UNROLL)
        carry = chosen(live, sums, carry, COLUMNS * M) if RAGGED else sums
        t -= 1
        g_at -= gates_t
        dy_at -= d_states_t
    store_columns(maps, rows, lanes, first, carry, mask, H, M, COLUMNS)
