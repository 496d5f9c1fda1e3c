"""Triton kernels of the block recurrence with reflections for gates, over chunks of time.

They do what those of blocks do (block.py), in the same places of memory. They take the same
arguments, of which ``FAMILY`` is not used. A block has no rows of its own: its m reflections change
all its entries in turn, the last reflection first (reflections.py). The adjoint applies them in the
opposite order.
"""

import triton
import triton.language as tl

from statemix.ops.triton.kernels.reflections import (
    opening,
    plus,
    product,
    reflected,
    reflection,
    scaled,
    unshifted,
)
from statemix.ops.triton.kernels.rows import inverse_of
from statemix.ops.triton.kernels.tiles import (
    chosen,
    last_column,
    load_all,
    load_row,
    multiples,
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
    RAGGED: tl.constexpr, PACKED: tl.constexpr, TEMPERED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Run the recurrence in each chunk, from the states that enter it."""
    S: tl.constexpr = initial.dtype.element_ty
    H, gates_b, gates_t, gates_i, gates_j, values_b, values_t, values_i = multiples(
        (H, gates_b, gates_t, gates_i, gates_j, values_b, values_t, values_i), ALIGN, 8
    )
    rows, lanes, mask = tile(num_rows, H, R, L)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // num_chunks, rows % num_chunks
    t = c * chunk
    g_at = gates + b * gates_b + t * gates_t + (M - 1) * gates_i + lanes
    v_at = values + b * values_b + t * values_t + lanes
    h_at = states + (b * T + t) * M * H + lanes
    h = load_all(entering + rows * M * H + lanes, H, mask, S, M)
    for _ in tl.range(0, chunk):
        live = mask & (t < T) if RAGGED else mask
        if PACKED:
            sequence = tl.load(sequences + t, mask=t < T, other=0).to(tl.int64)
            fresh = live & (tl.load(positions + t, mask=t < T, other=1) == 0)
            h = chosen(fresh, load_all(initial + sequence * M * H + lanes, H, fresh, S, M), h, M)
        x = scaled(h, 2.0**-SHIFT, M)
        mean = tl.zeros((R, L), S)
        row_at = g_at
        for _ in tl.range(0, M):
            g, row_at = load_row(row_at, -gates_i, gates_j, live, S, M + 1)
            mean += g[M] * (1.0 / M)
            w, _, factor, _ = reflection(g, inverse, M, SHIFT)
            x = reflected(x, w, factor, M, 1)
        a, kept = opening(mean, inverse)
        kept *= 2.0**SHIFT
        v, _ = load_row(v_at, 0, values_i, live, S, M)
        after = ()
        for i in tl.static_range(M):
            after = after + (kept * x[i] + a * v[i],)
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
    S: tl.constexpr = maps.dtype.element_ty
    UNIT: tl.constexpr = 2.0**-SHIFT
    rows, lanes, mask = tile(num_maps, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // maps_of_row, rows % maps_of_row
    t = c * chunk
    g_at = gates + b * gates_b + t * gates_t + (M - 1) * gates_i + lanes
    v_at = values + b * values_b + t * values_t + lanes
    zero = tl.zeros((R, L), S)
    x = scaled(unit_columns(first, zero, M, COLUMNS), UNIT, COLUMNS * M)
    for _ in tl.range(0, chunk):
        if PACKED:
            sequence = tl.load(sequences + t).to(tl.int64)
            fresh = mask & (tl.load(positions + t) == 0)
            started = load_all(initial + sequence * M * H + lanes, H, fresh, S, M)
            reset = last_column(first, scaled(started, UNIT, M), zero, M, COLUMNS)
            x = chosen(fresh, reset, x, COLUMNS * M)
            t += 1
        mean = zero
        row_at = g_at
        for _ in tl.range(0, M // UNROLL):
            for _ in tl.static_range(UNROLL):
                g, row_at = load_row(row_at, -gates_i, gates_j, mask, S, M + 1)
                mean += g[M] * (1.0 / M)
                w, _, factor, _ = reflection(g, inverse, M, SHIFT)
                x = reflected(x, w, factor, M, COLUMNS)
        a, kept = opening(mean, inverse)
        v, _ = load_row(v_at, 0, values_i, mask, S, M)
        after = ()
        for i in tl.static_range(M):
            for k in tl.static_range(COLUMNS):
                y = kept * x[i * COLUMNS + k]
                after = after + (with_input(y, a * UNIT, v[i], first, k, M, COLUMNS),)
        x = after
        g_at += gates_t
        v_at += values_t
    h = scaled(x, 2.0**SHIFT, COLUMNS * M)
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
    """Run the adjoint recurrence in each chunk, from the gradients that enter at its end.

    The states between the reflections of a step are not kept, but only their products with the
    vectors: with these, each reflection is undone before its gradient is formed.
    """
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
    dg_at = d_gates + (b * T + t) * (M * (M + 1)) * H + lanes
    dv_at = d_values + (b * T + t) * M * H + lanes
    # One step earlier.
    h_at = states + (b * T + t - 1) * M * H + lanes
    zero = tl.zeros((R, L), S)
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
        x = scaled(h, 2.0**-SHIFT, M)
        mean = zero
        products = x
        row_at = g_at + (M - 1) * gates_i
        for _ in tl.range(0, M):
            g, row_at = load_row(row_at, -gates_i, gates_j, live, S, M + 1)
            mean += g[M] * (1.0 / M)
            w, _, factor, _ = reflection(g, inverse, M, SHIFT)
            by_state = product(w, x, M)
            x = plus(x, -factor * by_state, w, M)
            products = unshifted(by_state, products, M)
        a, kept = opening(mean, inverse)
        dy, _ = load_row(dy_at, 0, d_states_i, live, S, M)
        v, _ = load_row(v_at, 0, values_i, live, S, M)
        d_a = zero
        d_v = ()
        mu = ()
        for i in tl.static_range(M):
            lam = carry[i] + dy[i]
            # Scaled, because the difference may overflow although the gradient is finite.
            d_a += lam * (v[i] * 2.0**-SHIFT - x[i])
            d_v = d_v + (a * lam,)
            mu = mu + (kept * lam,)
        store_all(dv_at, H, d_v, live, M)
        d_mean = d_a * (a * kept) * 2.0**SHIFT * (inverse * (1.0 / M))
        row_at = g_at
        d_row_at = dg_at
        for _ in tl.range(0, M):
            g, row_at = load_row(row_at, gates_i, gates_j, live, S, M + 1)
            w, scale, factor, curve = reflection(g, inverse, M, SHIFT)
            by_state = products[0]
            products = pushed(products, products, M, 1)
            by_adjoint = product(w, mu, M)
            x = plus(x, factor * by_state, w, M)
            bent = curve * by_adjoint * by_state
            back = scale * -(2.0**SHIFT)
            d_g = ()
            for i in tl.static_range(M):
                d_u = factor * by_state * mu[i] + factor * by_adjoint * x[i] + bent * w[i]
                d_g = d_g + (back * d_u,)
            store_all(d_row_at, H, d_g + (d_mean,), live, M + 1)
            mu = plus(mu, -factor * by_adjoint, w, M)
            d_row_at += (M + 1) * H
        carry = mu
        if PACKED:
            store_all(d_initial + sequence * M * H + lanes, H, carry, first, M)
        t -= 1
        g_at -= gates_t
        v_at -= values_t
        dy_at -= d_states_t
        dg_at -= M * (M + 1) * H
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
        dy, _ = load_row(dy_at, 0, d_states_i, live, S, M)
        mu = ()
        for i in tl.static_range(M):
            for k in tl.static_range(COLUMNS):
                lam = with_input(carry[i * COLUMNS + k], 1.0, dy[i], first, k, M, COLUMNS)
                mu = mu + (lam,)
        mean = zero
        row_at = g_at
        for _ in tl.range(0, M // UNROLL):
            for _ in tl.static_range(UNROLL):
                g, row_at = load_row(row_at, gates_i, gates_j, live, S, M + 1)
                mean += g[M] * (1.0 / M)
                w, _, factor, _ = reflection(g, inverse, M, SHIFT)
                mu = reflected(mu, w, factor, M, COLUMNS)
        _, kept = opening(mean, inverse)
        after = scaled(mu, kept, COLUMNS * M)
        carry = chosen(live, after, carry, COLUMNS * M) if RAGGED else after
        t -= 1
        g_at -= gates_t
        dy_at -= d_states_t
    store_columns(maps, rows, lanes, first, carry, mask, H, M, COLUMNS)
