"""Triton kernels of all recurrences, over chunks of time.

With one chunk per sequence, ``local_forward`` and ``local_backward`` do all. With several,
``chunk_forward`` first finds the map of each chunk, h_end = P h_start + q, and ``carries``
(carries.py) follows the maps, so that the local scans know where they start. Backward, a chunk
passes gradients on by P^T, which is known from the forward, and adds some of its own:
``chunk_backward`` finds these by the adjoint recurrence.

A state is M tiles in registers. KIND says what they are and what a step of N entries does:

- "block" (N = M): the state of a block; every row of gates makes one entry of the next
- "lag" (N = 1): the window of the last M states, newest first; one row of gates makes the next
- "reflect" (N = M): the state of a block, which M rows of gates reflect in turn, the last one first
  (reflections.py)

Maps have shape (maps, m+1, m, H), with one column for each entry of the state before, and q last;
carried states have shape (chunks, m, H). Chunks and maps of packed sequences are numbered as
ops/packing.py does: a chunk belongs to one sequence, whose steps ``span_of`` (tiles.py) looks up.

A thread reads ``STEPS`` steps with all their rows, or of large blocks ``ROWS`` rows of a step,
before it uses the first number of them, so that it waits for memory once. H and all strides but
that of the batch are constants, so that addresses are parts of the loads, and take neither
registers nor instructions. So kernels are compiled for each layout: for a layer, for each width.
"""

import triton
import triton.language as tl

from statemix.ops.triton.kernels.reflections import opening, plus, product, reflected, reflection
from statemix.ops.triton.kernels.rows import inverse_of, row_backward, row_forward, row_weights
from statemix.ops.triton.kernels.tiles import (
    added,
    advanced,
    chosen,
    in_front,
    load_all,
    load_part,
    load_steps,
    part,
    places,
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
    zeros,
)

# Arguments that differ from call to call. A kernel is not compiled again for their values, but for
# what plan.py makes of them: tiles, steps that are read at once, and whether these divide a chunk.
SIZES = ["T", "num_rows", "rows_of_sequence", "chunk"]


@triton.jit
def _rows(
    g_all, g_row, by, live, step,
    S: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr, GATES: tl.constexpr,
):  # fmt: skip
    """Return the next ROWS rows of gates, and where those after them are."""
    if ROWS == N:
        g = part(g_all, step * N * GATES, N * GATES)
        after = g_row
    else:
        g = load_part(g_row, live, S, 0, ROWS * GATES)
        after = advanced(g_row, ROWS * by, ROWS * GATES)
    return g, after


@triton.jit(do_not_specialize=SIZES)
def local_forward(
    gates, values, entering, states, final, temperature, sequences, bounds, firsts,
    T, H: tl.constexpr, num_rows, rows_of_sequence, chunk, gates_b, gates_t: tl.constexpr,
    gates_i: tl.constexpr, gates_j: tl.constexpr, values_b, values_t: tl.constexpr,
    values_i: tl.constexpr, KIND: tl.constexpr, M: tl.constexpr, STEPS: tl.constexpr,
    ROWS: tl.constexpr, FAMILY: tl.constexpr, SHIFT: tl.constexpr, R: tl.constexpr,
    L: tl.constexpr, RAGGED: tl.constexpr, PACKED: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Run the recurrence in each chunk, from the states that enter it."""
    N: tl.constexpr = 1 if KIND == "lag" else M
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    FIRST: tl.constexpr = M - 1 if KIND == "reflect" else 0
    BY: tl.constexpr = -gates_i if KIND == "reflect" else gates_i
    S: tl.constexpr = entering.dtype.element_ty
    inverse = inverse_of(temperature, S, TEMPERED)
    rows, lanes = tile(num_rows, H, R, L)
    mask, b, sequence, c, origin, stop = span_of(
        rows, sequences, bounds, firsts, rows_of_sequence, T, L, PACKED, MAPS=False
    )
    t = origin + c * chunk
    end = tl.minimum(t + chunk, stop)
    steps = tl.max(end - t) if PACKED else chunk
    g_at = gates + b * gates_b + t * gates_t + FIRST * gates_i + lanes
    g_at = places(g_at, gates_t, BY, gates_j, STEPS, ROWS, GATES)
    v_at = places(values + b * values_b + t * values_t + lanes, values_t, 0, values_i, STEPS, 1, N)
    h_at = states + (b * T + t) * N * H + lanes
    h = load_all(entering + rows * M * H + lanes, H, mask, S, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        # All that is read at once, before the first number of it is used: what a thread waits for.
        all_live = steps_ahead(t, end, mask, STEPS, RAGGED)
        g_all = g_at
        if ROWS == N:
            g_all = load_steps(g_at, all_live, S, STEPS, N * GATES)
        v_all = load_steps(v_at, all_live, S, STEPS, N)
        for step in tl.static_range(STEPS):
            live = mask & (t < end) if RAGGED else mask
            v = part(v_all, step * N, N)
            after = scaled(h, 2.0**-SHIFT, M) if KIND == "reflect" else h
            mean = tl.zeros((R, L), S)
            g_row = g_at
            for _ in tl.range(0, N // ROWS):
                g, g_row = _rows(g_all, g_row, BY, live, step, S, ROWS, N, GATES)
                made = ()
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    if KIND == "reflect":
                        mean += row[M] * (1.0 / M)
                        w, _, factor, _ = reflection(row, inverse, M, SHIFT)
                        after = reflected(after, w, factor, M, 1)
                    else:
                        u = h + (v[i],)
                        made = made + (row_forward(row, u, inverse, M + 1, FAMILY, SHIFT),)
                if KIND == "block":
                    after = pushed(after, made, M, ROWS)
                    v = pushed(v, v, M, ROWS)
                elif KIND == "lag":
                    after = in_front(made[0], h, M)
            if KIND == "reflect":
                a, kept = opening(mean, inverse)
                after = added(scaled(after, kept * 2.0**SHIFT, M), scaled(v, a, M), M)
            h = chosen(live, after, h, M) if RAGGED else after
            store_all(h_at, H, h, live, N)
            t += 1
            h_at += N * H
        g_at = advanced(g_at, STEPS * gates_t, STEPS * ROWS * GATES)
        v_at = advanced(v_at, STEPS * values_t, STEPS * N)
    store_all(final + sequence * M * H + lanes, H, h, mask & (end == stop), M)


@triton.jit(do_not_specialize=SIZES)
def chunk_forward(
    gates, values, maps, temperature, sequences, bounds, firsts,
    T, H: tl.constexpr, num_rows, rows_of_sequence, chunk, gates_b, gates_t: tl.constexpr,
    gates_i: tl.constexpr, gates_j: tl.constexpr, values_b, values_t: tl.constexpr,
    values_i: tl.constexpr, KIND: tl.constexpr, M: tl.constexpr, STEPS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FAMILY: tl.constexpr, SHIFT: tl.constexpr,
    R: tl.constexpr, L: tl.constexpr, PACKED: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Find where all chunks but the last take the unit states, without inputs, and zero, with."""
    N: tl.constexpr = 1 if KIND == "lag" else M
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    FIRST: tl.constexpr = M - 1 if KIND == "reflect" else 0
    BY: tl.constexpr = -gates_i if KIND == "reflect" else gates_i
    S: tl.constexpr = maps.dtype.element_ty
    inverse = inverse_of(temperature, S, TEMPERED)
    rows, lanes = tile(num_rows, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    mapped, b, _, c, origin, stop = span_of(
        rows, sequences, bounds, firsts, rows_of_sequence, T, L, PACKED, MAPS=True
    )
    # A row without a map, beside others that have one, reads the first steps.
    mask = tl.full((R, L), 1, tl.int1)
    t = origin + c * chunk
    steps = tl.max(tl.where(stop > 0, chunk, 0)) if PACKED else chunk
    g_at = gates + b * gates_b + t * gates_t + FIRST * gates_i + lanes
    g_at = places(g_at, gates_t, BY, gates_j, STEPS, ROWS, GATES)
    v_at = places(values + b * values_b + t * values_t + lanes, values_t, 0, values_i, STEPS, 1, N)
    zero = tl.zeros((R, L), S)
    h = unit_columns(first, zero, M, COLUMNS)
    for _ in tl.range(0, steps // STEPS):
        g_all = g_at
        if ROWS == N:
            g_all = load_part(g_at, mask, S, 0, STEPS * N * GATES)
        v_all = load_part(v_at, mask, S, 0, STEPS * N)
        for step in tl.static_range(STEPS):
            v = part(v_all, step * N, N)
            after = scaled(h, 2.0**-SHIFT, COLUMNS * M) if KIND == "reflect" else h
            mean = zero
            g_row = g_at
            for _ in tl.range(0, N // ROWS):
                g, g_row = _rows(g_all, g_row, BY, mask, step, S, ROWS, N, GATES)
                made = ()
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    if KIND == "reflect":
                        mean += row[M] * (1.0 / M)
                        w, _, factor, _ = reflection(row, inverse, M, SHIFT)
                        after = reflected(after, w, factor, M, COLUMNS)
                    else:
                        p = row_weights(row, inverse, M + 1, FAMILY)
                        for k in tl.static_range(COLUMNS):
                            x = p[0] * h[k]
                            for j in tl.static_range(1, M):
                                x += p[j] * h[j * COLUMNS + k]
                            made = made + (with_input(x, p[M], v[i], first, k, M, COLUMNS),)
                if KIND == "block":
                    after = pushed(after, made, COLUMNS * M, COLUMNS * ROWS)
                    v = pushed(v, v, M, ROWS)
                elif KIND == "lag":
                    after = made + part(h, 0, COLUMNS * (M - 1))
            if KIND == "reflect":
                a, kept = opening(mean, inverse)
                after = scaled(after, kept * 2.0**SHIFT, COLUMNS * M)
                whole = ()
                for i in tl.static_range(M):
                    for k in tl.static_range(COLUMNS):
                        y = with_input(after[i * COLUMNS + k], a, v[i], first, k, M, COLUMNS)
                        whole = whole + (y,)
                after = whole
            h = after
        g_at = advanced(g_at, STEPS * gates_t, STEPS * ROWS * GATES)
        v_at = advanced(v_at, STEPS * values_t, STEPS * N)
    store_columns(maps, rows, lanes, first, h, mapped, H, M, COLUMNS)


@triton.jit
def _before(h_at, initial, sequence, position, k, lanes, H, mask, S: tl.constexpr, M: tl.constexpr):
    """Return h_{t-1-k}, of the initial window where that is before the first step."""
    within = k < position
    before = tl.load(h_at - (k + 1) * H, mask=mask & within, other=0.0).to(S)
    i_at = initial + (sequence * M + k - position) * H + lanes
    older = tl.load(i_at, mask=mask & (k >= position), other=0.0).to(S)
    return tl.where(within, before, older)


@triton.jit(do_not_specialize=SIZES)
def local_backward(
    gates, values, states, initial, leaving, d_states, d_gates, d_values, d_initial,
    temperature, sequences, bounds, firsts,
    T, H: tl.constexpr, num_rows, rows_of_sequence, chunk, gates_b, gates_t: tl.constexpr,
    gates_i: tl.constexpr, gates_j: tl.constexpr, values_b, values_t: tl.constexpr,
    values_i: tl.constexpr, d_states_b, d_states_t: tl.constexpr, d_states_i: tl.constexpr,
    KIND: tl.constexpr, M: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr,
    FAMILY: tl.constexpr, SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
    RAGGED: tl.constexpr, PACKED: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Run the adjoint recurrence in each chunk, from the gradients that enter at its end.

    ``carry`` holds what later steps have added to the gradient of the state. The states between the
    reflections of a step are not kept, but only their products with the vectors: with these, each
    reflection is undone before its gradient is formed.
    """
    N: tl.constexpr = 1 if KIND == "lag" else M
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = initial.dtype.element_ty
    inverse = inverse_of(temperature, S, TEMPERED)
    rows, lanes = tile(num_rows, H, R, L)
    mask, b, sequence, c, origin, stop = span_of(
        rows, sequences, bounds, firsts, rows_of_sequence, T, L, PACKED, MAPS=False
    )
    begun = origin + c * chunk
    t = tl.minimum(begun + chunk, stop) - 1
    steps = tl.max(t + 1 - begun) if PACKED else chunk
    g_at = gates + b * gates_b + t * gates_t + lanes
    g_at = places(g_at, -gates_t, gates_i, gates_j, STEPS, ROWS, GATES)
    v_at = places(values + b * values_b + t * values_t + lanes, -values_t, 0, values_i, STEPS, 1, N)
    dy_at = d_states + b * d_states_b + t * d_states_t + lanes
    dy_at = places(dy_at, -d_states_t, 0, d_states_i, STEPS, 1, N)
    h_at = states + (b * T + t) * N * H + lanes
    dg_at = d_gates + (b * T + t) * (N * GATES) * H + lanes
    dv_at = d_values + (b * T + t) * N * H + lanes
    zero = tl.zeros((R, L), S)
    carry = load_all(leaving + rows * M * H + lanes, H, mask, S, M)
    if KIND == "lag":
        # The window of the step after the chunk: each step drops one state and reads one.
        h = ()
        position = t + 1 - origin
        some = mask & (position > 0)
        for k in tl.static_range(M):
            h = h + (_before(h_at + H, initial, sequence, position, k, lanes, H, some, S, M),)
    else:
        h = load_all(initial + sequence * M * H + lanes, H, mask & (c == 0), S, M)
    started = h
    # One step earlier.
    before_at = places(h_at - M * H, -M * H, 0, H, STEPS, 1, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        all_live = steps_back(t, begun, mask, STEPS, RAGGED)
        g_all = g_at
        if ROWS == N:
            g_all = load_steps(g_at, all_live, S, STEPS, N * GATES)
        v_all = load_steps(v_at, all_live, S, STEPS, N)
        dy_all = load_steps(dy_at, all_live, S, STEPS, N)
        h_all = ()
        if KIND == "lag":
            for i in tl.static_range(STEPS):
                position = t - i - origin
                some = all_live[i]
                older = h_at - i * H
                older = _before(older, initial, sequence, position, M - 1, lanes, H, some, S, M)
                h_all = h_all + (older,)
        else:
            later = steps_back(t, tl.maximum(begun, origin + 1), mask, STEPS, RAGGED=True)
            h_all = load_steps(before_at, later, S, STEPS, M)
        for step in tl.static_range(STEPS):
            live = mask & (t >= begun) if RAGGED else mask
            v = part(v_all, step * N, N)
            dy = part(dy_all, step * N, N)
            before = carry
            if KIND == "lag":
                h = pushed(h, (h_all[step],), M, 1)
                sums = part(carry, 1, M - 1) + (zero,)
            else:
                h = chosen(t == origin, started, part(h_all, step * M, M), M)
                sums = zeros(zero, M)
            g_row = g_at
            dg_row = dg_at
            if KIND == "reflect":
                x = scaled(h, 2.0**-SHIFT, M)
                mean = zero
                products = x
                g_row = advanced(g_at, (M - ROWS) * gates_i, STEPS * ROWS * GATES)
                for _ in tl.range(0, N // ROWS):
                    g, g_row = _rows(g_all, g_row, -gates_i, live, step, S, ROWS, N, GATES)
                    for i in tl.static_range(ROWS):
                        row = part(g, (ROWS - 1 - i) * GATES, GATES)
                        mean += row[M] * (1.0 / M)
                        w, _, factor, _ = reflection(row, inverse, M, SHIFT)
                        by_state = product(w, x, M)
                        x = plus(x, -factor * by_state, w, M)
                        products = in_front(by_state, products, M)
                a, kept = opening(mean, inverse)
                lam = added(carry, dy, M)
                d_a = zero
                for i in tl.static_range(M):
                    # Scaled, because the difference may overflow although the gradient is finite.
                    d_a += lam[i] * (v[i] * 2.0**-SHIFT - x[i])
                store_all(dv_at, H, scaled(lam, a, M), live, M)
                d_mean = d_a * (a * kept) * 2.0**SHIFT * (inverse * (1.0 / M))
                sums = scaled(lam, kept, M)
                g_row = g_at
                for _ in tl.range(0, N // ROWS):
                    g, g_row = _rows(g_all, g_row, gates_i, live, step, S, ROWS, N, GATES)
                    for i in tl.static_range(ROWS):
                        row = part(g, i * GATES, GATES)
                        w, scale, factor, curve = reflection(row, inverse, M, SHIFT)
                        by_state = products[i]
                        by_adjoint = product(w, sums, M)
                        x = plus(x, factor * by_state, w, M)
                        bent = curve * by_adjoint * by_state
                        d_u = scaled(sums, factor * by_state, M)
                        d_u = plus(plus(d_u, factor * by_adjoint, x, M), bent, w, M)
                        d_g = scaled(d_u, scale * -(2.0**SHIFT), M) + (d_mean,)
                        store_all(dg_row + i * GATES * H, H, d_g, live, GATES)
                        sums = plus(sums, -factor * by_adjoint, w, M)
                    products = pushed(products, products, M, ROWS)
                    dg_row += ROWS * GATES * H
            else:
                dv_row = dv_at
                for _ in tl.range(0, N // ROWS):
                    g, g_row = _rows(g_all, g_row, gates_i, live, step, S, ROWS, N, GATES)
                    for i in tl.static_range(ROWS):
                        row = part(g, i * GATES, GATES)
                        u = h + (v[i],)
                        lam = carry[i] + dy[i]
                        d_g, d_u = row_backward(row, u, lam, inverse, M + 1, FAMILY, SHIFT)
                        store_all(dg_row + i * GATES * H, H, d_g, live, GATES)
                        store_all(dv_row + i * H, H, part(d_u, M, 1), live, 1)
                        sums = added(sums, d_u, M)
                    if ROWS < N:
                        carry = pushed(carry, carry, M, ROWS)
                        v = pushed(v, v, M, ROWS)
                        dy = pushed(dy, dy, M, ROWS)
                    dg_row += ROWS * GATES * H
                    dv_row += ROWS * H
            carry = chosen(live, sums, before, M) if RAGGED else sums
            t -= 1
            dg_at -= N * GATES * H
            dv_at -= N * H
            h_at -= N * H
        g_at = advanced(g_at, -STEPS * gates_t, STEPS * ROWS * GATES)
        v_at = advanced(v_at, -STEPS * values_t, STEPS * N)
        dy_at = advanced(dy_at, -STEPS * d_states_t, STEPS * N)
        before_at = advanced(before_at, -STEPS * M * H, STEPS * M)
    store_all(d_initial + sequence * M * H + lanes, H, carry, mask & (c == 0), M)


@triton.jit(do_not_specialize=SIZES)
def chunk_backward(
    gates, d_states, d_final, offsets, temperature, sequences, bounds, firsts,
    T, H: tl.constexpr, num_rows, rows_of_sequence, chunk, gates_b, gates_t: tl.constexpr,
    gates_i: tl.constexpr, gates_j: tl.constexpr, d_states_b, d_states_t: tl.constexpr,
    d_states_i: tl.constexpr, KIND: tl.constexpr, M: tl.constexpr, STEPS: tl.constexpr,
    ROWS: tl.constexpr, FAMILY: tl.constexpr, SHIFT: tl.constexpr, R: tl.constexpr,
    L: tl.constexpr, RAGGED: tl.constexpr, PACKED: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Find what leaves all chunks but the first, if nothing enters but into the last one."""
    N: tl.constexpr = 1 if KIND == "lag" else M
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = offsets.dtype.element_ty
    inverse = inverse_of(temperature, S, TEMPERED)
    rows, lanes = tile(num_rows, H, R, L)
    mask, b, sequence, c, origin, stop = span_of(
        rows, sequences, bounds, firsts, rows_of_sequence, T, L, PACKED, MAPS=True
    )
    begun = origin + (c + 1) * chunk
    t = tl.minimum(begun + chunk, stop) - 1
    steps = tl.max(t + 1 - begun) if PACKED else chunk
    g_at = gates + b * gates_b + t * gates_t + lanes
    g_at = places(g_at, -gates_t, gates_i, gates_j, STEPS, ROWS, GATES)
    dy_at = d_states + b * d_states_b + t * d_states_t + lanes
    dy_at = places(dy_at, -d_states_t, 0, d_states_i, STEPS, 1, N)
    zero = tl.zeros((R, L), S)
    carry = load_all(d_final + sequence * M * H + lanes, H, mask & (t + 1 == stop), S, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        all_live = steps_back(t, begun, mask, STEPS, RAGGED)
        g_all = g_at
        if ROWS == N:
            g_all = load_steps(g_at, all_live, S, STEPS, N * GATES)
        dy_all = load_steps(dy_at, all_live, S, STEPS, N)
        for step in tl.static_range(STEPS):
            live = mask & (t >= begun) if RAGGED else mask
            dy = part(dy_all, step * N, N)
            before = carry
            if KIND == "lag":
                sums = part(carry, 1, M - 1) + (zero,)
            elif KIND == "reflect":
                sums = added(carry, dy, M)
            else:
                sums = zeros(zero, M)
            mean = zero
            g_row = g_at
            for _ in tl.range(0, N // ROWS):
                g, g_row = _rows(g_all, g_row, gates_i, live, step, S, ROWS, N, GATES)
                for i in tl.static_range(ROWS):
                    row = part(g, i * GATES, GATES)
                    if KIND == "reflect":
                        mean += row[M] * (1.0 / M)
                        w, _, factor, _ = reflection(row, inverse, M, SHIFT)
                        sums = reflected(sums, w, factor, M, 1)
                    else:
                        p = row_weights(row, inverse, M + 1, FAMILY)
                        sums = added(sums, scaled(p, carry[i] + dy[i], M), M)
                if ROWS < N:
                    carry = pushed(carry, carry, M, ROWS)
                    dy = pushed(dy, dy, M, ROWS)
            if KIND == "reflect":
                _, kept = opening(mean, inverse)
                sums = scaled(sums, kept, M)
            carry = chosen(live, sums, before, M) if RAGGED else sums
            t -= 1
        g_at = advanced(g_at, -STEPS * gates_t, STEPS * ROWS * GATES)
        dy_at = advanced(dy_at, -STEPS * d_states_t, STEPS * N)
    store_all(offsets + rows * M * H + lanes, H, carry, mask, M)
