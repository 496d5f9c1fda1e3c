"""Triton kernels of the lag recurrence, over chunks of time, as those of blocks (block.py).

The state is the window of the last m states, newest first: m tiles in registers. A map has a column
for each entry of the window before the chunk, so no companion matrix is ever formed. The kernels
take the arguments of those of blocks, of which ``gates_i``, ``values_i``, ``d_states_i`` and
``ROWS`` are not used; what a thread reads at once are ``STEPS`` steps.
"""

import triton
import triton.language as tl

from statemix.ops.triton.kernels.rows import inverse_of, row_backward, row_forward, row_weights
from statemix.ops.triton.kernels.tiles import (
    SIZES,
    advanced,
    apart,
    chosen,
    load_all,
    load_part,
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


@triton.jit
def _shifted(first, window, M: tl.constexpr):
    """Return the window with one more entry in front and without the last."""
    result = (first,)
    for i in tl.static_range(M - 1):
        result = result + (window[i],)
    return result


@triton.jit
def _before(h_at, initial, sequence, position, k, lanes, H, mask, S: tl.constexpr, M: tl.constexpr):
    """Return h_{t-1-k}, of the initial window where that is before the first step."""
    within = k < position
    before = tl.load(h_at - (k + 1) * H, mask=mask & within, other=0.0).to(S)
    i_at = initial + (sequence * M + k - position) * H + lanes
    older = tl.load(i_at, mask=mask & (k >= position), other=0.0).to(S)
    return tl.where(within, before, older)


@triton.jit
def _window(h_at, initial, sequence, position, lanes, H, mask, S: tl.constexpr, M: tl.constexpr):
    """Return h_{t-1}, ..., h_{t-m}."""
    window = ()
    for k in tl.static_range(M):
        older = _before(h_at, initial, sequence, position, k, lanes, H, mask, S, M)
        window = window + (older,)
    return window


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
    """Run the recurrence in each chunk, from the windows that enter it."""
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
    g_at = ()
    for step in tl.static_range(STEPS):
        g_first = gates + b * gates_b + (t + step) * gates_t + lanes
        g_at = g_at + apart(g_first, gates_j, GATES)
    v_at = apart(values + b * values_b + t * values_t + lanes, values_t, STEPS)
    h_at = states + (b * T + t) * H + lanes
    window = load_all(entering + rows * M * H + lanes, H, mask, S, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        all_live = steps_ahead(t, end, mask, STEPS, RAGGED)
        g_all = load_steps(g_at, all_live, S, STEPS, GATES)
        v_all = load_steps(v_at, all_live, S, STEPS, 1)
        for step in tl.static_range(STEPS):
            live = mask & (t < end) if RAGGED else mask
            g = part(g_all, step * GATES, GATES)
            h = row_forward(g, window + (v_all[step],), inverse, M + 1, FAMILY, SHIFT)
            after = _shifted(h, window, M)
            window = chosen(live, after, window, M) if RAGGED else after
            tl.store(h_at, h.to(states.dtype.element_ty), mask=live)
            t += 1
            h_at += H
        g_at = advanced(g_at, STEPS * gates_t, STEPS * GATES)
        v_at = advanced(v_at, STEPS * values_t, STEPS)
    store_all(final + sequence * M * H + lanes, H, window, mask & (end == stop), M)


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
    """Find where all chunks but the last take the unit windows, without inputs, and zero, with."""
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
    for step in tl.static_range(STEPS):
        g_first = gates + b * gates_b + (t + step) * gates_t + lanes
        g_at = g_at + apart(g_first, gates_j, GATES)
    v_at = apart(values + b * values_b + t * values_t + lanes, values_t, STEPS)
    zero = tl.zeros((R, L), S)
    windows = unit_columns(first, zero, M, COLUMNS)
    for _ in tl.range(0, steps // STEPS):
        g_all = load_part(g_at, mask, S, 0, STEPS * GATES)
        v_all = load_part(v_at, mask, S, 0, STEPS)
        for step in tl.static_range(STEPS):
            p = row_weights(part(g_all, step * GATES, GATES), inverse, M + 1, FAMILY)
            after = ()
            for k in tl.static_range(COLUMNS):
                x = p[0] * windows[k]
                for j in tl.static_range(1, M):
                    x += p[j] * windows[j * COLUMNS + k]
                after = after + (with_input(x, p[M], v_all[step], first, k, M, COLUMNS),)
            for k in tl.static_range(COLUMNS * (M - 1)):
                after = after + (windows[k],)
            windows = after
        g_at = advanced(g_at, STEPS * gates_t, STEPS * GATES)
        v_at = advanced(v_at, STEPS * values_t, STEPS)
    store_columns(maps, rows, lanes, first, windows, mapped, H, M, COLUMNS)


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

    ``pending`` holds what later steps have added to the gradients of h_t, h_{t-1}, ...
    """
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
    g_at = ()
    for step in tl.static_range(STEPS):
        g_first = gates + b * gates_b + (t - step) * gates_t + lanes
        g_at = g_at + apart(g_first, gates_j, GATES)
    v_at = apart(values + b * values_b + t * values_t + lanes, -values_t, STEPS)
    dy_at = apart(d_states + b * d_states_b + t * d_states_t + lanes, -d_states_t, STEPS)
    dg_at = d_gates + (b * T + t) * GATES * H + lanes
    dv_at = d_values + (b * T + t) * H + lanes
    h_at = states + (b * T + t) * H + lanes
    zero = tl.zeros((R, L), S)
    pending = load_all(leaving + rows * M * H + lanes, H, mask, S, M)
    position = t - origin
    # That of the step after the chunk: each step drops one and reads one.
    window = _window(
        h_at + H, initial, sequence, position + 1, lanes, H, mask & (position >= 0), S, M
    )
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        all_live = steps_back(t, begun, mask, STEPS, RAGGED)
        g_all = load_steps(g_at, all_live, S, STEPS, GATES)
        v_all = load_steps(v_at, all_live, S, STEPS, 1)
        dy_all = load_steps(dy_at, all_live, S, STEPS, 1)
        oldest = ()
        for i in tl.static_range(STEPS):
            older = _before(
                h_at - i * H, initial, sequence, t - origin - i, M - 1, lanes, H, all_live[i], S, M
            )
            oldest = oldest + (older,)
        for step in tl.static_range(STEPS):
            live = mask & (t >= begun) if RAGGED else mask
            window = pushed(window, (oldest[step],), M, 1)
            lam = pending[0] + dy_all[step]
            g = part(g_all, step * GATES, GATES)
            u = window + (v_all[step],)
            d_g, d_u = row_backward(g, u, lam, inverse, M + 1, FAMILY, SHIFT)
            store_all(dg_at, H, d_g, live, GATES)
            tl.store(dv_at, d_u[M].to(d_values.dtype.element_ty), mask=live)
            moved = ()
            for i in tl.static_range(M):
                later = pending[i + 1] if i + 1 < M else zero
                moved = moved + (later + d_u[i],)
            pending = chosen(live, moved, pending, M) if RAGGED else moved
            t -= 1
            dg_at -= GATES * H
            dv_at -= H
            h_at -= H
        g_at = advanced(g_at, -STEPS * gates_t, STEPS * GATES)
        v_at = advanced(v_at, -STEPS * values_t, STEPS)
        dy_at = advanced(dy_at, -STEPS * d_states_t, STEPS)
    store_all(d_initial + sequence * M * H + lanes, H, pending, mask & (c == 0), M)


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
    for step in tl.static_range(STEPS):
        g_first = gates + b * gates_b + (t - step) * gates_t + lanes
        g_at = g_at + apart(g_first, gates_j, GATES)
    dy_at = apart(d_states + b * d_states_b + t * d_states_t + lanes, -d_states_t, STEPS)
    zero = tl.zeros((R, L), S)
    pending = load_all(d_final + sequence * M * H + lanes, H, mask & (t + 1 == stop), S, M)
    for _ in tl.range(0, tl.cdiv(steps, STEPS)):
        all_live = steps_back(t, begun, mask, STEPS, RAGGED)
        g_all = load_steps(g_at, all_live, S, STEPS, GATES)
        dy_all = load_steps(dy_at, all_live, S, STEPS, 1)
        for step in tl.static_range(STEPS):
            live = mask & (t >= begun) if RAGGED else mask
            p = row_weights(part(g_all, step * GATES, GATES), inverse, M + 1, FAMILY)
            lam = pending[0] + dy_all[step]
            after = ()
            for i in tl.static_range(M):
                later = pending[i + 1] if i + 1 < M else zero
                after = after + (later + p[i] * lam,)
            pending = chosen(live, after, pending, M) if RAGGED else after
            t -= 1
        g_at = advanced(g_at, -STEPS * gates_t, STEPS * GATES)
        dy_at = advanced(dy_at, -STEPS * d_states_t, STEPS)
    store_all(offsets + rows * M * H + lanes, H, pending, mask, M)
