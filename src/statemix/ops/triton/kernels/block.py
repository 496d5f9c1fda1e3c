"""Triton kernels of the block recurrence, over chunks of time.

With one chunk per sequence, ``local_forward`` and ``local_backward`` do all. With several,
``chunk_forward`` first finds the map of each chunk, h_end = P h_start + q, and ``carries``
(carries.py) follows the maps, so that the local scans know where they start. Backward, a chunk's
map is P^T, which ``chunk_backward`` finds by the adjoint recurrence.

The m entries of a block are m tiles in registers. Maps have shape (rows, m+1, m, H), with one
column for each entry of the state before, and q last; carried states have shape (rows, m, H).
``sequences``, ``positions`` and ``ends`` hold, for each step of a packed row, the number of its
sequence, its place there, and whether it is the last one.

The kernels of maps are limited by instructions, so H and all strides but that of the batch are
constants there: addresses are parts of the loads. They are compiled once for each layout: for a
layer, once for each width.
"""

import triton
import triton.language as tl

from statemix.ops.triton.kernels.rows import inverse_of, row_backward, row_forward, row_weights
from statemix.ops.triton.kernels.tiles import (
    added,
    advanced,
    apart,
    chosen,
    last_column,
    load_all,
    load_part,
    multiples,
    pushed,
    readable,
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
    RAGGED: tl.constexpr, PACKED: tl.constexpr, TEMPERED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Run the recurrence in each chunk, from the states that enter it."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = initial.dtype.element_ty
    H, gates_b, gates_t, gates_i, gates_j, values_b, values_t, values_i = multiples(
        (H, gates_b, gates_t, gates_i, gates_j, values_b, values_t, values_i), ALIGN, 8
    )
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
    H: tl.constexpr, num_maps, maps_of_row, chunk, gates_b, gates_t: tl.constexpr,
    gates_i: tl.constexpr, gates_j: tl.constexpr, values_b, values_t: tl.constexpr,
    values_i: tl.constexpr,
    M: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr, FAMILY: tl.constexpr,
    SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr, PACKED: tl.constexpr,
    TEMPERED: tl.constexpr,
):  # fmt: skip
    """Find where all chunks but the last take the unit vectors, without inputs, and zero, with.

    All weights of the rows first, then column by column all rows at once, entry by entry: the last
    entry of a column is read where the first results are complete, so that these take the places of
    the entries before, and no copies are made.
    """
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = maps.dtype.element_ty
    rows, lanes, mask = readable(num_maps, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // maps_of_row, rows % maps_of_row
    t = c * chunk
    g_at = ()
    for i in tl.static_range(UNROLL):
        row_at = gates + b * gates_b + t * gates_t + lanes + i * gates_i
        g_at = g_at + apart(row_at, gates_j, GATES)
    v_at = apart(values + b * values_b + t * values_t + lanes, values_i, UNROLL)
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
        g_row = g_at
        v_row = v_at
        for _ in tl.range(0, M // UNROLL):
            p = ()
            for i in tl.static_range(UNROLL):
                g = load_part(g_row, mask, S, i * GATES, GATES)
                p = p + row_weights(g, inverse, M + 1, FAMILY)
            v = load_part(v_row, mask, S, 0, UNROLL)
            columns = ()
            for k in tl.static_range(COLUMNS):
                x = ()
                for i in tl.static_range(UNROLL):
                    x = x + (p[i * (M + 1)] * h[k],)
                for j in tl.static_range(1, M):
                    y = ()
                    for i in tl.static_range(UNROLL):
                        y = y + (p[i * (M + 1) + j] * h[j * COLUMNS + k] + x[i],)
                    x = y
                for i in tl.static_range(UNROLL):
                    y = (with_input(x[i], p[i * (M + 1) + M], v[i], first, k, M, COLUMNS),)
                    columns = columns + y
            of_rows = ()
            for i in tl.static_range(UNROLL):
                for k in tl.static_range(COLUMNS):
                    of_rows = of_rows + (columns[k * UNROLL + i],)
            after = pushed(after, of_rows, COLUMNS * M, COLUMNS * UNROLL)
            g_row = advanced(g_row, UNROLL * gates_i, UNROLL * GATES)
            v_row = advanced(v_row, UNROLL * values_i, UNROLL)
        h = after
        g_at = advanced(g_at, gates_t, UNROLL * GATES)
        v_at = advanced(v_at, values_t, UNROLL)
    store_columns(maps, rows, lanes, first, h, mask, H, M, COLUMNS)


@triton.jit
def local_backward(
    gates, values, states, initial, leaving, d_states, d_final, d_gates, d_values, d_initial,
    temperature, sequences, positions, ends,
    T, H, num_rows, num_chunks, chunk, gates_b, gates_t, gates_i, gates_j, values_b, values_t,
    values_i, d_states_b, d_states_t, d_states_i,
    M: tl.constexpr, FAMILY: tl.constexpr, SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
    PACKED: tl.constexpr, TEMPERED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Run the adjoint recurrence in each chunk, from the gradients that enter at its end."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = initial.dtype.element_ty
    H, gates_b, gates_t, gates_i, gates_j, values_b, values_t, values_i = multiples(
        (H, gates_b, gates_t, gates_i, gates_j, values_b, values_t, values_i), ALIGN, 8
    )
    d_states_b, d_states_t, d_states_i = multiples((d_states_b, d_states_t, d_states_i), ALIGN, 3)
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
    T, H: tl.constexpr, num_maps, maps_of_row, chunk, gates_b, gates_t: tl.constexpr,
    gates_i: tl.constexpr, gates_j: tl.constexpr, d_states_b, d_states_t: tl.constexpr,
    d_states_i: tl.constexpr,
    M: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr, FAMILY: tl.constexpr,
    SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr, RAGGED: tl.constexpr,
    PACKED: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Find where all chunks but the first take unit vectors of the adjoint, and zero.

    The order is that of :func:`chunk_forward`, for the same reason.
    """
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = maps.dtype.element_ty
    rows, lanes, mask = readable(num_maps, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // maps_of_row, rows % maps_of_row + 1
    begun = c * chunk
    t = tl.minimum(begun + chunk, T) - 1
    g_at = ()
    for i in tl.static_range(UNROLL):
        row_at = gates + b * gates_b + t * gates_t + lanes + i * gates_i
        g_at = g_at + apart(row_at, gates_j, GATES)
    dy_at = apart(d_states + b * d_states_b + t * d_states_t + lanes, d_states_i, UNROLL)
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
        g_row = g_at
        dy_row = dy_at
        for _ in tl.range(0, M // UNROLL):
            p = ()
            for i in tl.static_range(UNROLL):
                g = load_part(g_row, mask, S, i * GATES, GATES)
                p = p + row_weights(g, inverse, M + 1, FAMILY)
            dy = load_part(dy_row, mask, S, 0, UNROLL)
            columns = ()
            for k in tl.static_range(COLUMNS):
                x = ()
                for j in tl.static_range(M):
                    x = x + (sums[j * COLUMNS + k],)
                for i in tl.static_range(UNROLL):
                    lam = with_input(lams[i * COLUMNS + k], 1.0, dy[i], first, k, M, COLUMNS)
                    y = ()
                    for j in tl.static_range(M):
                        y = y + (x[j] + p[i * (M + 1) + j] * lam,)
                    x = y
                columns = columns + x
            sums = ()
            for j in tl.static_range(M):
                for k in tl.static_range(COLUMNS):
                    sums = sums + (columns[k * M + j],)
            lams = pushed(lams, lams, COLUMNS * M, COLUMNS * UNROLL)
            g_row = advanced(g_row, UNROLL * gates_i, UNROLL * GATES)
            dy_row = advanced(dy_row, UNROLL * d_states_i, UNROLL)
        carry = chosen(live, sums, carry, COLUMNS * M) if RAGGED else sums
        t -= 1
        g_at = advanced(g_at, -gates_t, UNROLL * GATES)
        dy_at = advanced(dy_at, -d_states_t, UNROLL)
    store_columns(maps, rows, lanes, first, carry, mask, H, M, COLUMNS)
