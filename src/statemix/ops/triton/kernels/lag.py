"""Triton kernels of the lag recurrence, over chunks of time, as those of blocks (block.py).

The state is the window of the last m states, newest first: m tiles in registers. A map has a column
for each entry of the window before the chunk, so no companion matrix is ever formed. The kernels
take the arguments of those of blocks; ``gates_i``, ``values_i`` and ``d_states_i`` are not used.
``sequences`` and ``positions`` hold, for each step of a packed row, the number of its sequence and
its place there.
"""

import triton
import triton.language as tl

from statemix.ops.triton.kernels.rows import inverse_of, row_backward, row_forward, row_weights
from statemix.ops.triton.kernels.tiles import (
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


@triton.jit
def local_forward(
    gates, values, entering, states, final, initial, temperature, sequences, positions, ends,
    T, H, num_rows, num_chunks, chunk, gates_b, gates_t, gates_i, gates_j, values_b, values_t,
    values_i,
    M: tl.constexpr, FAMILY: tl.constexpr, SHIFT: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
    RAGGED: tl.constexpr, PACKED: tl.constexpr, TEMPERED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Run the recurrence in each chunk, from the windows that enter it."""
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
    h_at = states + (b * T + t) * H + lanes
    window = load_all(entering + rows * M * H + lanes, H, mask, S, M)
    for _ in tl.range(0, chunk):
        live = mask & (t < T) if RAGGED else mask
        if PACKED:
            sequence = tl.load(sequences + t, mask=t < T, other=0).to(tl.int64)
            fresh = live & (tl.load(positions + t, mask=t < T, other=1) == 0)
            started = load_all(initial + sequence * M * H + lanes, H, fresh, S, M)
            window = chosen(fresh, started, window, M)
        v = tl.load(v_at, mask=live, other=0.0).to(S)
        g = load_all(g_at, gates_j, live, S, GATES)
        h = row_forward(g, window + (v,), inverse, M + 1, FAMILY, SHIFT)
        after = _shifted(h, window, M)
        window = chosen(live, after, window, M) if RAGGED else after
        tl.store(h_at, h.to(states.dtype.element_ty), mask=live)
        if PACKED:
            last = live & (tl.load(ends + t, mask=t < T, other=0) != 0)
            store_all(final + sequence * M * H + lanes, H, window, last, M)
        t += 1
        g_at += gates_t
        v_at += values_t
        h_at += H
    if not PACKED:
        store_all(final + b * M * H + lanes, H, window, mask & (c == num_chunks - 1), M)


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
    """Find where all chunks but the last take the unit windows, without inputs, and zero, with."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = maps.dtype.element_ty
    rows, lanes, mask = readable(num_maps, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // maps_of_row, rows % maps_of_row
    t = c * chunk
    g_first = gates + b * gates_b + t * gates_t + lanes
    g_at = ()
    for i in tl.static_range(UNROLL):
        g_at = g_at + apart(g_first + i * gates_t, gates_j, GATES)
    v_at = apart(values + b * values_b + t * values_t + lanes, values_t, UNROLL)
    zero = tl.zeros((R, L), S)
    windows = unit_columns(first, zero, M, COLUMNS)
    for _ in tl.range(0, chunk // UNROLL):
        for i in tl.static_range(UNROLL):
            if PACKED:
                sequence = tl.load(sequences + t).to(tl.int64)
                fresh = mask & (tl.load(positions + t) == 0)
                started = load_all(initial + sequence * M * H + lanes, H, fresh, S, M)
                reset = last_column(first, started, zero, M, COLUMNS)
                windows = chosen(fresh, reset, windows, COLUMNS * M)
                t += 1
            g = load_part(g_at, mask, S, i * GATES, GATES)
            v = tl.load(v_at[i], mask=mask).to(S)
            p = row_weights(g, inverse, M + 1, FAMILY)
            after = ()
            for k in tl.static_range(COLUMNS):
                x = p[0] * windows[k]
                for j in tl.static_range(1, M):
                    x += p[j] * windows[j * COLUMNS + k]
                after = after + (with_input(x, p[M], v, first, k, M, COLUMNS),)
            for k in tl.static_range(COLUMNS * (M - 1)):
                after = after + (windows[k],)
            windows = after
        g_at = advanced(g_at, UNROLL * gates_t, UNROLL * GATES)
        v_at = advanced(v_at, UNROLL * values_t, UNROLL)
    store_columns(maps, rows, lanes, first, windows, mask, H, M, COLUMNS)


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

    ``pending`` holds what later steps have added to the gradients of h_t, h_{t-1}, ...
    """
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
    dg_at = d_gates + (b * T + t) * GATES * H + lanes
    dv_at = d_values + (b * T + t) * H + lanes
    h_at = states + (b * T + t) * H + lanes
    zero = tl.zeros((R, L), S)
    pending = load_all(leaving + rows * M * H + lanes, H, mask, S, M)
    window = pending
    if not PACKED:
        window = _window(h_at, initial, b, t, lanes, H, mask & (t >= 0), S, M)
    entered = t
    for _ in tl.range(0, chunk):
        live = mask & (t >= begun)
        sequence = b
        position = t
        if PACKED:
            sequence = tl.load(sequences + t, mask=t >= begun, other=0).to(tl.int64)
            position = tl.load(positions + t, mask=t >= begun, other=0).to(tl.int64)
            last = live & (tl.load(ends + t, mask=t >= begun, other=0) != 0)
            d_window = load_all(d_final + sequence * M * H + lanes, H, last, S, M)
            pending = chosen(last, d_window, pending, M)
            # The first window, or that of another sequence, replaces all entries: in a loop, as
            # their addresses take many registers.
            new = last | (live & (t == entered))
            older = _before(h_at, initial, sequence, position, M - 1, lanes, H, live, S, M)
            window = pushed(window, (older,), M, 1)
            for k in tl.range(0, M):
                older = _before(h_at, initial, sequence, position, k, lanes, H, new, S, M)
                window = pushed(window, (tl.where(new, older, window[0]),), M, 1)
        v = tl.load(v_at, mask=live, other=0.0).to(S)
        dy = tl.load(dy_at, mask=live, other=0.0).to(S)
        g = load_all(g_at, gates_j, live, S, GATES)
        lam = pending[0] + dy
        d_g, d_u = row_backward(g, window + (v,), lam, inverse, M + 1, FAMILY, SHIFT)
        store_all(dg_at, H, d_g, live, GATES)
        tl.store(dv_at, d_u[M].to(d_values.dtype.element_ty), mask=live)
        moved = ()
        for i in tl.static_range(M):
            later = pending[i + 1] if i + 1 < M else zero
            moved = moved + (later + d_u[i],)
        pending = moved
        if PACKED:
            store_all(d_initial + sequence * M * H + lanes, H, pending, live & (position == 0), M)
        t -= 1
        g_at -= gates_t
        v_at -= values_t
        dy_at -= d_states_t
        dg_at -= GATES * H
        dv_at -= H
        h_at -= H
        if not PACKED:
            older = _before(h_at, initial, b, t, M - 1, lanes, H, mask & (t >= begun), S, M)
            window = pushed(window, (older,), M, 1)
    if not PACKED:
        store_all(d_initial + b * M * H + lanes, H, pending, mask & (c == 0), M)


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
    """Find where all chunks but the first take unit windows of the adjoint, and zero."""
    GATES: tl.constexpr = M if FAMILY == "given" else M + 1
    S: tl.constexpr = maps.dtype.element_ty
    rows, lanes, mask = readable(num_maps, H, R, L)
    first = tl.program_id(2) * COLUMNS + tl.zeros_like(rows)
    inverse = inverse_of(temperature, S, TEMPERED)
    b, c = rows // maps_of_row, rows % maps_of_row + 1
    begun = c * chunk
    t = tl.minimum(begun + chunk, T) - 1
    g_first = gates + b * gates_b + t * gates_t + lanes
    g_at = ()
    for i in tl.static_range(UNROLL):
        g_at = g_at + apart(g_first - i * gates_t, gates_j, GATES)
    dy_at = apart(d_states + b * d_states_b + t * d_states_t + lanes, -d_states_t, UNROLL)
    zero = tl.zeros((R, L), S)
    pending = unit_columns(first, zero, M, COLUMNS)
    for _ in tl.range(0, chunk // UNROLL):
        for step in tl.static_range(UNROLL):
            live = mask & (t >= begun) if RAGGED else mask
            if PACKED:
                sequence = tl.load(sequences + t, mask=t >= begun, other=0).to(tl.int64)
                last = live & (tl.load(ends + t, mask=t >= begun, other=0) != 0)
                d_window = load_all(d_final + sequence * M * H + lanes, H, last, S, M)
                reset = last_column(first, d_window, zero, M, COLUMNS)
                pending = chosen(last, reset, pending, COLUMNS * M)
            g = load_part(g_at, mask, S, step * GATES, GATES)
            dy = tl.load(dy_at[step], mask=mask).to(S)
            p = row_weights(g, inverse, M + 1, FAMILY)
            lam = ()
            for k in tl.static_range(COLUMNS):
                lam = lam + (with_input(pending[k], 1.0, dy, first, k, M, COLUMNS),)
            after = ()
            for i in tl.static_range(M):
                for k in tl.static_range(COLUMNS):
                    later = pending[(i + 1) * COLUMNS + k] if i + 1 < M else zero
                    after = after + (later + p[i] * lam[k],)
            pending = chosen(live, after, pending, COLUMNS * M) if RAGGED else after
            t -= 1
        g_at = advanced(g_at, -UNROLL * gates_t, UNROLL * GATES)
        dy_at = advanced(dy_at, -UNROLL * d_states_t, UNROLL)
    store_columns(maps, rows, lanes, first, pending, mask, H, M, COLUMNS)
