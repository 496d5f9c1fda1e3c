"""Triton kernels of the block recurrence, over chunks of time.

With one chunk per sequence, ``local_forward`` and ``local_backward`` do all. With several,
``chunk_forward`` first finds the map of each chunk, h_end = P h_start + q, and ``carries``
(carries.py) follows the maps, so that the local scans know where they start. Backward, a chunk
passes gradients on by P^T, which is known from the forward, and adds some of its own:
``chunk_backward`` finds these by the adjoint recurrence.

The m entries of a block are m tiles in registers. Maps have shape (maps, m+1, m, H), with one
column for each entry of the state before, and q last; carried states have shape (chunks, m, H).
Chunks and maps of packed sequences are numbered as ops/packing.py does: a chunk belongs to one
sequence, whose steps ``span_of`` (tiles.py) looks up.

A thread reads ``STEPS`` steps with all their rows, or of large blocks ``ROWS`` rows of a step,
before it uses the first number of them, so that it waits for memory once. H and all strides but
that of the batch are constants, so that addresses are parts of the loads, and take neither
registers nor instructions. So kernels are compiled for each layout: for a layer, for each width.
"""

import triton
import triton.language as tl

from statemix.ops.triton.kernels.rows import inverse_of, row_backward, row_forward, row_weights
from statemix.ops.triton.kernels.tiles import (
    SIZES,
    added,
    advanced,
    apart,
    chosen,
    load_all,
    load_part,
    load_rows,
    load_steps,
    multiples,
    part,
    pushed,
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
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
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
    # If parts of ROWS rows do not divide the block, rows that do not exist come first.
    PARTS: tl.constexpr = (M + ROWS - 1) // ROWS
    MISSING: tl.constexpr = PARTS * ROWS - M
    g_at = ()
    v_at = ()
    for step in tl.static_range(STEPS):
        for i in tl.static_range(ROWS):
            row_at = gates + b * gates_b + (t + step) * gates_t + lanes + (i - MISSING) * gates_i
            g_at = g_at + apart(row_at, gates_j, GATES)
            of_step = values + b * values_b + (t + step) * values_t + lanes
            v_at = v_at + (of_step + (i - MISSING) * values_i,)
    h_at = states + (b * T + t) * M * H + lanes
    h = load_all(entering + rows * M * H + lanes, H, mask, S, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        # All that is read at once, before the first number of it is used: what a thread waits for.
        if ROWS == M:
            all_live = steps_ahead(t, end, mask, STEPS, RAGGED)
            g_all = load_steps(g_at, all_live, S, STEPS, M * GATES)
            v_all = load_steps(v_at, all_live, S, STEPS, M)
        for step in tl.static_range(STEPS):
            live = mask & (t < end) if RAGGED else mask
            after = h
            g_row = g_at
            v_row = v_at
            for part_index in tl.range(0, PARTS):
                if ROWS == M:
                    g = part(g_all, step * M * GATES, M * GATES)
                    v = part(v_all, step * M, M)
                else:
                    exists = live & (part_index > 0)
                    g = load_rows(g_row, exists, live, S, MISSING * GATES, ROWS * GATES)
                    v = load_rows(v_row, exists, live, S, MISSING, ROWS)
                    g_row = advanced(g_row, ROWS * gates_i, ROWS * GATES)
                    v_row = advanced(v_row, ROWS * values_i, ROWS)
                of_rows = ()
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    h_i = row_forward(row, h + (v[i],), inverse, M + 1, FAMILY, SHIFT)
                    of_rows = of_rows + (h_i,)
                after = pushed(after, of_rows, M, ROWS)
            h = chosen(live, after, h, M) if RAGGED else after
            store_all(h_at, H, h, live, M)
            t += 1
            h_at += M * H
        g_at = advanced(g_at, STEPS * gates_t, STEPS * ROWS * GATES)
        v_at = advanced(v_at, STEPS * values_t, STEPS * ROWS)
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
    """Find where all chunks but the last take the unit vectors, without inputs, and zero, with.

    All weights of the rows first, then column by column all rows at once, entry by entry: the last
    entry of a column is read where the first results are complete, so that these take the places of
    the entries before, and no copies are made.
    """
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = maps.dtype.element_ty
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
            row_at = gates + b * gates_b + (t + step) * gates_t + lanes + i * gates_i
            g_at = g_at + apart(row_at, gates_j, GATES)
            v_at = v_at + (values + b * values_b + (t + step) * values_t + lanes + i * values_i,)
    zero = tl.zeros((R, L), S)
    h = unit_columns(first, zero, M, COLUMNS)
    for _ in tl.range(0, steps // STEPS):
        if ROWS == M:
            g_all = load_part(g_at, mask, S, 0, STEPS * M * GATES)
            v_all = load_part(v_at, mask, S, 0, STEPS * M)
        for step in tl.static_range(STEPS):
            after = h
            g_row = g_at
            v_row = v_at
            for _ in tl.range(0, M // ROWS):
                if ROWS == M:
                    g = part(g_all, step * M * GATES, M * GATES)
                    v = part(v_all, step * M, M)
                else:
                    g = load_part(g_row, mask, S, 0, ROWS * GATES)
                    v = load_part(v_row, mask, S, 0, ROWS)
                    g_row = advanced(g_row, ROWS * gates_i, ROWS * GATES)
                    v_row = advanced(v_row, ROWS * values_i, ROWS)
                p = ()
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    p = p + row_weights(row, inverse, M + 1, FAMILY)
                columns = ()
                for k in tl.static_range(COLUMNS):
                    x = ()
                    for i in tl.static_range(ROWS):
                        x = x + (p[i * (M + 1)] * h[k],)
                    for j in tl.static_range(1, M):
                        y = ()
                        for i in tl.static_range(ROWS):
                            y = y + (p[i * (M + 1) + j] * h[j * COLUMNS + k] + x[i],)
                        x = y
                    for i in tl.static_range(ROWS):
                        y = (with_input(x[i], p[i * (M + 1) + M], v[i], first, k, M, COLUMNS),)
                        columns = columns + y
                of_rows = ()
                for i in tl.static_range(ROWS):
                    for k in tl.static_range(COLUMNS):
                        of_rows = of_rows + (columns[k * ROWS + i],)
                after = pushed(after, of_rows, COLUMNS * M, COLUMNS * ROWS)
            h = after
        g_at = advanced(g_at, STEPS * gates_t, STEPS * ROWS * GATES)
        v_at = advanced(v_at, STEPS * values_t, STEPS * ROWS)
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
    """Run the adjoint recurrence in each chunk, from the gradients that enter at its end."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
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
    # If parts of ROWS rows do not divide the block, rows that do not exist come first.
    PARTS: tl.constexpr = (M + ROWS - 1) // ROWS
    MISSING: tl.constexpr = PARTS * ROWS - M
    g_at = ()
    v_at = ()
    dy_at = ()
    h_at = ()
    for step in tl.static_range(STEPS):
        for i in tl.static_range(ROWS):
            row_at = gates + b * gates_b + (t - step) * gates_t + lanes + (i - MISSING) * gates_i
            g_at = g_at + apart(row_at, gates_j, GATES)
            of_step = values + b * values_b + (t - step) * values_t + lanes
            v_at = v_at + (of_step + (i - MISSING) * values_i,)
            of_step = d_states + b * d_states_b + (t - step) * d_states_t + lanes
            dy_at = dy_at + (of_step + (i - MISSING) * d_states_i,)
        # One step earlier.
        h_at = h_at + apart(states + (b * T + t - step - 1) * M * H + lanes, H, M)
    dg_at = d_gates + (b * T + t) * (M * GATES) * H + lanes
    dv_at = d_values + (b * T + t) * M * H + lanes
    carry = load_all(leaving + rows * M * H + lanes, H, mask, S, M)
    started = load_all(initial + sequence * M * H + lanes, H, mask & (c == 0), S, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        if ROWS == M:
            all_live = steps_back(t, begun, mask, STEPS, RAGGED)
            g_all = load_steps(g_at, all_live, S, STEPS, M * GATES)
            v_all = load_steps(v_at, all_live, S, STEPS, M)
            dy_all = load_steps(dy_at, all_live, S, STEPS, M)
        later = steps_back(t, tl.maximum(begun, origin + 1), mask, STEPS, RAGGED=True)
        h_all = load_steps(h_at, later, S, STEPS, M)
        for step in tl.static_range(STEPS):
            live = mask & (t >= begun) if RAGGED else mask
            h = part(h_all, step * M, M)
            h = chosen(t == origin, started, h, M)
            sums = ()
            for _ in tl.static_range(M):
                sums = sums + (tl.zeros((R, L), S),)
            before = carry
            g_row = g_at
            v_row = v_at
            dy_row = dy_at
            dg_row = dg_at - MISSING * GATES * H
            dv_row = dv_at - MISSING * H
            if MISSING > 0:
                carry = pushed(carry, carry, M, M - MISSING)
            for part_index in tl.range(0, PARTS):
                exists = live & (part_index > 0)
                if ROWS == M:
                    g = part(g_all, step * M * GATES, M * GATES)
                    v = part(v_all, step * M, M)
                    dy = part(dy_all, step * M, M)
                else:
                    g = load_rows(g_row, exists, live, S, MISSING * GATES, ROWS * GATES)
                    v = load_rows(v_row, exists, live, S, MISSING, ROWS)
                    dy = load_rows(dy_row, exists, live, S, MISSING, ROWS)
                    g_row = advanced(g_row, ROWS * gates_i, ROWS * GATES)
                    v_row = advanced(v_row, ROWS * values_i, ROWS)
                    dy_row = advanced(dy_row, ROWS * d_states_i, ROWS)
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    lam = carry[i] + dy[i]
                    d_g, d_u = row_backward(row, h + (v[i],), lam, inverse, M + 1, FAMILY, SHIFT)
                    kept = exists if i < MISSING else live
                    store_all(dg_row + i * GATES * H, H, d_g, kept, GATES)
                    tl.store(dv_row + i * H, d_u[M].to(d_values.dtype.element_ty), mask=kept)
                    more = added(sums, d_u, M)
                    sums = chosen(exists, more, sums, M) if i < MISSING else more
                carry = pushed(carry, carry, M, ROWS)
                dg_row += ROWS * GATES * H
                dv_row += ROWS * H
            carry = chosen(live, sums, before, M) if RAGGED else sums
            t -= 1
            dg_at -= M * GATES * H
            dv_at -= M * H
        g_at = advanced(g_at, -STEPS * gates_t, STEPS * ROWS * GATES)
        v_at = advanced(v_at, -STEPS * values_t, STEPS * ROWS)
        dy_at = advanced(dy_at, -STEPS * d_states_t, STEPS * ROWS)
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
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
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
            of_row = d_states + b * d_states_b + (t - step) * d_states_t + lanes
            dy_at = dy_at + (of_row + i * d_states_i,)
    carry = load_all(d_final + sequence * M * H + lanes, H, mask & (t + 1 == stop), S, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        if ROWS == M:
            all_live = steps_back(t, begun, mask, STEPS, RAGGED)
            g_all = load_steps(g_at, all_live, S, STEPS, M * GATES)
            dy_all = load_steps(dy_at, all_live, S, STEPS, M)
        for step in tl.static_range(STEPS):
            live = mask & (t >= begun) if RAGGED else mask
            sums = ()
            for _ in tl.static_range(M):
                sums = sums + (tl.zeros((R, L), S),)
            before = carry
            g_row = g_at
            dy_row = dy_at
            for _ in tl.range(0, M // ROWS):
                if ROWS == M:
                    g = part(g_all, step * M * GATES, M * GATES)
                    dy = part(dy_all, step * M, M)
                else:
                    g = load_part(g_row, live, S, 0, ROWS * GATES)
                    dy = load_part(dy_row, live, S, 0, ROWS)
                    g_row = advanced(g_row, ROWS * gates_i, ROWS * GATES)
                    dy_row = advanced(dy_row, ROWS * d_states_i, ROWS)
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    p = row_weights(row, inverse, M + 1, FAMILY)
                    lam = carry[i] + dy[i]
                    y = ()
                    for j in tl.static_range(M):
                        y = y + (sums[j] + p[j] * lam,)
                    sums = y
                carry = pushed(carry, carry, M, ROWS)
            carry = chosen(live, sums, before, M) if RAGGED else sums
            t -= 1
        g_at = advanced(g_at, -STEPS * gates_t, STEPS * ROWS * GATES)
        dy_at = advanced(dy_at, -STEPS * d_states_t, STEPS * ROWS)
    store_all(offsets + rows * M * H + lanes, H, carry, mask, M)
