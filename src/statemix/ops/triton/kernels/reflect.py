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
    unshifted,
)
from statemix.ops.triton.kernels.rows import inverse_of
from statemix.ops.triton.kernels.tiles import (
    SIZES,
    added,
    advanced,
    apart,
    chosen,
    load_all,
    load_part,
    load_steps,
    multiples,
    part,
    pushed,
    scaled,
    span_of,
    steps_ahead,
    steps_back,
    store_all,
    store_columns,
    tile,
    unit_columns,
    with_input,
)


@triton.jit(do_not_specialize=SIZES)
def local_forward(
    gates, values, entering, states, final, initial, temperature, sequences, bounds, firsts,
    T, H: tl.constexpr, num_rows, num_chunks, chunk, gates_b, gates_t: tl.constexpr,
    gates_i: tl.constexpr, gates_j: tl.constexpr, values_b, values_t: tl.constexpr,
    values_i: tl.constexpr,
    M: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, FAMILY: tl.constexpr,
    SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr, RAGGED: tl.constexpr,
    PACKED: tl.constexpr, TEMPERED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Run the recurrence in each chunk, from the states that enter it."""
    GATES: tl.constexpr = M + 1
    S: tl.constexpr = initial.dtype.element_ty
    gates_b, values_b = multiples((gates_b, values_b), ALIGN, 2)
    rows, lanes, mask = tile(num_rows, H, R, L)
    inverse = inverse_of(temperature, S, TEMPERED)
    mask, b, sequence, c, origin, stop = span_of(
        rows, mask, sequences, bounds, firsts, num_rows, num_chunks, T, PACKED, MAPS=False
    )
    t = origin + c * chunk
    end = tl.minimum(t + chunk, stop)
    steps = tl.max(end - t) if PACKED else chunk
    g_at = ()
    v_at = ()
    for step in tl.static_range(STEPS):
        for i in tl.static_range(ROWS):
            row_at = gates + b * gates_b + (t + step) * gates_t + lanes + (M - 1 - i) * gates_i
            g_at = g_at + apart(row_at, gates_j, GATES)
        v_at = v_at + apart(values + b * values_b + (t + step) * values_t + lanes, values_i, M)
    h_at = states + (b * T + t) * M * H + lanes
    h = load_all(entering + rows * M * H + lanes, H, mask, S, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        all_live = steps_ahead(t, end, mask, STEPS, RAGGED)
        if ROWS == M:
            g_all = load_steps(g_at, all_live, S, STEPS, M * GATES)
        v_all = load_steps(v_at, all_live, S, STEPS, M)
        for step in tl.static_range(STEPS):
            live = mask & (t < end) if RAGGED else mask
            x = scaled(h, 2.0**-SHIFT, M)
            mean = tl.zeros((R, L), S)
            g_row = g_at
            for _ in tl.range(0, M // ROWS):
                if ROWS == M:
                    g = part(g_all, step * M * GATES, M * GATES)
                else:
                    g = load_part(g_row, live, S, 0, ROWS * GATES)
                    g_row = advanced(g_row, -ROWS * gates_i, ROWS * GATES)
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    mean += row[M] * (1.0 / M)
                    w, _, factor, _ = reflection(row, inverse, M, SHIFT)
                    x = reflected(x, w, factor, M, 1)
            a, kept = opening(mean, inverse)
            kept *= 2.0**SHIFT
            after = ()
            for i in tl.static_range(M):
                after = after + (kept * x[i] + a * v_all[step * M + i],)
            h = chosen(live, after, h, M) if RAGGED else after
            store_all(h_at, H, h, live, M)
            t += 1
            h_at += M * H
        g_at = advanced(g_at, STEPS * gates_t, STEPS * ROWS * GATES)
        v_at = advanced(v_at, STEPS * values_t, STEPS * M)
    store_all(final + sequence * M * H + lanes, H, h, mask & (end == stop), M)


@triton.jit(do_not_specialize=SIZES)
def chunk_forward(
    gates, values, maps, temperature, sequences, bounds, firsts,
    T, H: tl.constexpr, num_maps, maps_of_row, chunk, gates_b, gates_t: tl.constexpr,
    gates_i: tl.constexpr, gates_j: tl.constexpr, values_b, values_t: tl.constexpr,
    values_i: tl.constexpr,
    M: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    FAMILY: tl.constexpr, SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
    PACKED: tl.constexpr, TEMPERED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Find where all chunks but the last take the unit vectors, without inputs, and zero, with."""
    GATES: tl.constexpr = M + 1
    S: tl.constexpr = maps.dtype.element_ty
    UNIT: tl.constexpr = 2.0**-SHIFT
    gates_b, values_b = multiples((gates_b, values_b), ALIGN, 2)
    rows, lanes, mask = tile(num_maps, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    inverse = inverse_of(temperature, S, TEMPERED)
    mapped, b, _, c, origin, stop = span_of(
        rows, mask, sequences, bounds, firsts, num_maps, maps_of_row, T, PACKED, MAPS=True
    )
    t = origin + c * chunk
    # A row without a map, beside others that have one, reads the first steps.
    steps = tl.max(tl.where(stop > 0, chunk, 0)) if PACKED else chunk
    g_at = ()
    v_at = ()
    for step in tl.static_range(STEPS):
        for i in tl.static_range(ROWS):
            row_at = gates + b * gates_b + (t + step) * gates_t + lanes + (M - 1 - i) * gates_i
            g_at = g_at + apart(row_at, gates_j, GATES)
        v_at = v_at + apart(values + b * values_b + (t + step) * values_t + lanes, values_i, M)
    zero = tl.zeros((R, L), S)
    x = scaled(unit_columns(first, zero, M, COLUMNS), UNIT, COLUMNS * M)
    for _ in tl.range(0, steps // STEPS):
        if ROWS == M:
            g_all = load_part(g_at, mask, S, 0, STEPS * M * GATES)
        v_all = load_part(v_at, mask, S, 0, STEPS * M)
        for step in tl.static_range(STEPS):
            mean = zero
            g_row = g_at
            for _ in tl.range(0, M // ROWS):
                if ROWS == M:
                    g = part(g_all, step * M * GATES, M * GATES)
                else:
                    g = load_part(g_row, mask, S, 0, ROWS * GATES)
                    g_row = advanced(g_row, -ROWS * gates_i, ROWS * GATES)
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    mean += row[M] * (1.0 / M)
                    w, _, factor, _ = reflection(row, inverse, M, SHIFT)
                    x = reflected(x, w, factor, M, COLUMNS)
            a, kept = opening(mean, inverse)
            after = ()
            for i in tl.static_range(M):
                v = v_all[step * M + i]
                for k in tl.static_range(COLUMNS):
                    y = kept * x[i * COLUMNS + k]
                    after = after + (with_input(y, a * UNIT, v, first, k, M, COLUMNS),)
            x = after
        g_at = advanced(g_at, STEPS * gates_t, STEPS * ROWS * GATES)
        v_at = advanced(v_at, STEPS * values_t, STEPS * M)
    h = scaled(x, 2.0**SHIFT, COLUMNS * M)
    store_columns(maps, rows, lanes, first, h, mapped, H, M, COLUMNS)


@triton.jit(do_not_specialize=SIZES)
def local_backward(
    gates, values, states, initial, leaving, d_states, d_final, d_gates, d_values, d_initial,
    temperature, sequences, bounds, firsts,
    T, H: tl.constexpr, num_rows, num_chunks, chunk, gates_b, gates_t: tl.constexpr,
    gates_i: tl.constexpr, gates_j: tl.constexpr, values_b, values_t: tl.constexpr,
    values_i: tl.constexpr, d_states_b, d_states_t: tl.constexpr, d_states_i: tl.constexpr,
    M: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, FAMILY: tl.constexpr,
    SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr, RAGGED: tl.constexpr,
    PACKED: tl.constexpr, TEMPERED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Run the adjoint recurrence in each chunk, from the gradients that enter at its end.

    The states between the reflections of a step are not kept, but only their products with the
    vectors: with these, each reflection is undone before its gradient is formed.
    """
    GATES: tl.constexpr = M + 1
    S: tl.constexpr = initial.dtype.element_ty
    gates_b, values_b, d_states_b = multiples((gates_b, values_b, d_states_b), ALIGN, 3)
    rows, lanes, mask = tile(num_rows, H, R, L)
    inverse = inverse_of(temperature, S, TEMPERED)
    mask, b, sequence, c, origin, stop = span_of(
        rows, mask, sequences, bounds, firsts, num_rows, num_chunks, T, PACKED, MAPS=False
    )
    begun = origin + c * chunk
    t = tl.minimum(begun + chunk, stop) - 1
    steps = tl.max(t + 1 - begun) if PACKED else chunk
    # Rows in the order of the adjoint; the states take the opposite one.
    g_at = ()
    v_at = ()
    dy_at = ()
    h_at = ()
    for step in tl.static_range(STEPS):
        for i in tl.static_range(ROWS):
            row_at = gates + b * gates_b + (t - step) * gates_t + lanes + i * gates_i
            g_at = g_at + apart(row_at, gates_j, GATES)
        v_at = v_at + apart(values + b * values_b + (t - step) * values_t + lanes, values_i, M)
        of_step = d_states + b * d_states_b + (t - step) * d_states_t + lanes
        dy_at = dy_at + apart(of_step, d_states_i, M)
        # One step earlier.
        h_at = h_at + apart(states + (b * T + t - step - 1) * M * H + lanes, H, M)
    dg_at = d_gates + (b * T + t) * (M * GATES) * H + lanes
    dv_at = d_values + (b * T + t) * M * H + lanes
    zero = tl.zeros((R, L), S)
    carry = load_all(leaving + rows * M * H + lanes, H, mask, S, M)
    started = load_all(initial + sequence * M * H + lanes, H, mask & (c == 0), S, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        all_live = steps_back(t, begun, mask, STEPS, RAGGED)
        if ROWS == M:
            g_all = load_steps(g_at, all_live, S, STEPS, M * GATES)
        v_all = load_steps(v_at, all_live, S, STEPS, M)
        dy_all = load_steps(dy_at, all_live, S, STEPS, M)
        later = steps_back(t, tl.maximum(begun, origin + 1), mask, STEPS, RAGGED=True)
        h_all = load_steps(h_at, later, S, STEPS, M)
        for step in tl.static_range(STEPS):
            live = mask & (t >= begun) if RAGGED else mask
            h = part(h_all, step * M, M)
            h = chosen(t == origin, started, h, M)
            x = scaled(h, 2.0**-SHIFT, M)
            mean = zero
            products = x
            g_row = advanced(g_at, (M - ROWS) * gates_i, STEPS * ROWS * GATES)
            for _ in tl.range(0, M // ROWS):
                if ROWS == M:
                    g = part(g_all, step * M * GATES, M * GATES)
                else:
                    g = load_part(g_row, live, S, 0, ROWS * GATES)
                    g_row = advanced(g_row, -ROWS * gates_i, ROWS * GATES)
                for i in tl.static_range(ROWS):
                    row = part(g, (ROWS - 1 - i) * GATES, GATES)
                    mean += row[M] * (1.0 / M)
                    w, _, factor, _ = reflection(row, inverse, M, SHIFT)
                    by_state = product(w, x, M)
                    x = plus(x, -factor * by_state, w, M)
                    products = unshifted(by_state, products, M)
            a, kept = opening(mean, inverse)
            d_a = zero
            d_v = ()
            mu = ()
            for i in tl.static_range(M):
                lam = carry[i] + dy_all[step * M + i]
                # Scaled, because the difference may overflow although the gradient is finite.
                d_a += lam * (v_all[step * M + i] * 2.0**-SHIFT - x[i])
                d_v = d_v + (a * lam,)
                mu = mu + (kept * lam,)
            store_all(dv_at, H, d_v, live, M)
            d_mean = d_a * (a * kept) * 2.0**SHIFT * (inverse * (1.0 / M))
            g_row = g_at
            dg_row = dg_at
            for _ in tl.range(0, M // ROWS):
                if ROWS == M:
                    g = part(g_all, step * M * GATES, M * GATES)
                else:
                    g = load_part(g_row, live, S, 0, ROWS * GATES)
                    g_row = advanced(g_row, ROWS * gates_i, ROWS * GATES)
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    w, scale, factor, curve = reflection(row, inverse, M, SHIFT)
                    by_state = products[i]
                    by_adjoint = product(w, mu, M)
                    x = plus(x, factor * by_state, w, M)
                    bent = curve * by_adjoint * by_state
                    back = scale * -(2.0**SHIFT)
                    d_g = ()
                    for j in tl.static_range(M):
                        d_u = factor * by_state * mu[j] + factor * by_adjoint * x[j] + bent * w[j]
                        d_g = d_g + (back * d_u,)
                    store_all(dg_row + i * GATES * H, H, d_g + (d_mean,), live, GATES)
                    mu = plus(mu, -factor * by_adjoint, w, M)
                products = pushed(products, products, M, ROWS)
                dg_row += ROWS * GATES * H
            carry = chosen(live, mu, carry, M) if RAGGED else mu
            t -= 1
            dg_at -= M * GATES * H
            dv_at -= M * H
        g_at = advanced(g_at, -STEPS * gates_t, STEPS * ROWS * GATES)
        v_at = advanced(v_at, -STEPS * values_t, STEPS * M)
        dy_at = advanced(dy_at, -STEPS * d_states_t, STEPS * M)
        h_at = advanced(h_at, -STEPS * M * H, STEPS * M)
    store_all(d_initial + sequence * M * H + lanes, H, carry, mask & (c == 0), M)


@triton.jit(do_not_specialize=SIZES)
def chunk_backward(
    gates, d_states, d_final, offsets, temperature, sequences, bounds, firsts,
    T, H: tl.constexpr, num_maps, maps_of_row, chunk, gates_b, gates_t: tl.constexpr,
    gates_i: tl.constexpr, gates_j: tl.constexpr, d_states_b, d_states_t: tl.constexpr,
    d_states_i: tl.constexpr,
    M: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, FAMILY: tl.constexpr,
    SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr, RAGGED: tl.constexpr,
    PACKED: tl.constexpr, TEMPERED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Find what leaves all chunks but the first, if nothing enters them but into the last one.

    ``offsets`` has shape (maps, m, H). What enters passes by the transposed maps of
    :func:`chunk_forward`.
    """
    GATES: tl.constexpr = M + 1
    S: tl.constexpr = offsets.dtype.element_ty
    gates_b, d_states_b = multiples((gates_b, d_states_b), ALIGN, 2)
    rows, lanes, mask = tile(num_maps, H, R, L)
    inverse = inverse_of(temperature, S, TEMPERED)
    mask, b, sequence, c, origin, stop = span_of(
        rows, mask, sequences, bounds, firsts, num_maps, maps_of_row, T, PACKED, MAPS=True
    )
    begun = origin + (c + 1) * chunk
    t = tl.minimum(begun + chunk, stop) - 1
    steps = tl.max(t + 1 - begun) if PACKED else chunk
    g_at = ()
    dy_at = ()
    for step in tl.static_range(STEPS):
        for i in tl.static_range(ROWS):
            row_at = gates + b * gates_b + (t - step) * gates_t + lanes + i * gates_i
            g_at = g_at + apart(row_at, gates_j, GATES)
        of_step = d_states + b * d_states_b + (t - step) * d_states_t + lanes
        dy_at = dy_at + apart(of_step, d_states_i, M)
    carry = load_all(d_final + sequence * M * H + lanes, H, mask & (t + 1 == stop), S, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        all_live = steps_back(t, begun, mask, STEPS, RAGGED)
        if ROWS == M:
            g_all = load_steps(g_at, all_live, S, STEPS, M * GATES)
        dy_all = load_steps(dy_at, all_live, S, STEPS, M)
        for step in tl.static_range(STEPS):
            live = mask & (t >= begun) if RAGGED else mask
            mu = added(carry, part(dy_all, step * M, M), M)
            mean = tl.zeros((R, L), S)
            g_row = g_at
            for _ in tl.range(0, M // ROWS):
                if ROWS == M:
                    g = part(g_all, step * M * GATES, M * GATES)
                else:
                    g = load_part(g_row, live, S, 0, ROWS * GATES)
                    g_row = advanced(g_row, ROWS * gates_i, ROWS * GATES)
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    mean += row[M] * (1.0 / M)
                    w, _, factor, _ = reflection(row, inverse, M, SHIFT)
                    mu = reflected(mu, w, factor, M, 1)
            _, kept = opening(mean, inverse)
            after = scaled(mu, kept, M)
            carry = chosen(live, after, carry, M) if RAGGED else after
            t -= 1
        g_at = advanced(g_at, -STEPS * gates_t, STEPS * ROWS * GATES)
        dy_at = advanced(dy_at, -STEPS * d_states_t, STEPS * M)
    store_all(offsets + rows * M * H + lanes, H, carry, mask, M)
