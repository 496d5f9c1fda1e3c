"""Triton kernels of the scan of Mamba, forward and backward."""

import triton
import triton.language as tl

# Another length compiles no other kernel.
LENGTHS = ("T", "num_tiles")


@triton.jit
def _joined(decay, written, later_decay, later_written):
    """Return x -> later_decay (decay x + written) + later_written as one such map."""
    return decay * later_decay, later_decay * written + later_written


@triton.jit(do_not_specialize=LENGTHS)
def selective_forward(
    steps, rates, inputs, b, c, entering, outputs, T, N, S, num_tiles,
    STEPS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Store what is read, and the state before every tile of STEPS tokens and after the last.

    ``entering`` (B, tiles + 1, S, N) has the first states. A program follows CHANNELS channels.
    """
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    column = tl.arange(0, COLUMNS)
    row = tl.arange(0, STEPS)
    in_state = (column[:, None] < S) & (channel < N)
    at_state = column[:, None] * N + channel
    rate = tl.load(rates + at_state, mask=in_state, other=0.0)
    stored = entering + sequence * (num_tiles + 1) * S * N + at_state
    state = tl.load(stored, mask=in_state, other=0.0)
    for tile in range(num_tiles):
        token = tile * STEPS + row
        # Beyond the sequence, decays are 1 and nothing is written.
        in_wide = (token[:, None] < T) & (channel < N)
        in_narrow = (token[:, None] < T) & (column[None, :] < S)
        at = sequence * T + token[:, None]
        step = tl.load(steps + at * N + channel, mask=in_wide, other=0.0)
        x = tl.load(inputs + at * N + channel, mask=in_wide, other=0.0)
        b_tile = tl.load(b + at * S + column[None, :], mask=in_narrow, other=0.0)
        c_tile = tl.load(c + at * S + column[None, :], mask=in_narrow, other=0.0)
        decay = tl.where(in_wide[:, None, :], tl.exp(-rate[None] * step[:, None, :]), 1.0)
        written = b_tile[:, :, None] * x[:, None, :]
        product, states = tl.associative_scan((decay, written), 0, _joined)
        states += product * state[None]
        read = tl.sum(c_tile[:, :, None] * states, axis=1)
        tl.store(outputs + at * N + channel, read, mask=in_wide)
        state = tl.sum(tl.where(row[:, None, None] == STEPS - 1, states, 0.0), axis=0)
        stored += S * N
        tl.store(stored, state, mask=in_state)


@triton.jit(do_not_specialize=LENGTHS)
def selective_backward(
    steps, rates, inputs, b, c, entering, d_outputs, d_final_state,
    d_steps, d_rates, d_inputs, d_b, d_c, d_initial_state, T, N, S, num_tiles,
    STEPS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Store all gradients; those of b and c for each program (programs, B, T, S), to be summed.

    Those of the rates are for each sequence, (B, S, N). States are computed again within a tile.
    """
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    column = tl.arange(0, COLUMNS)
    row = tl.arange(0, STEPS)
    in_state = (column[:, None] < S) & (channel < N)
    at_state = column[:, None] * N + channel
    of_sequence = sequence * S * N + at_state
    of_program = tl.program_id(1).to(tl.int64) * tl.num_programs(0) * T * S
    rate = tl.load(rates + at_state, mask=in_state, other=0.0)
    stored = entering + (sequence * (num_tiles + 1) + num_tiles) * S * N + at_state
    d_rate = tl.zeros_like(rate)
    # The gradient of the state after a tile.
    leaving = tl.load(d_final_state + of_sequence, mask=in_state, other=0.0)
    for back in range(num_tiles):
        tile = num_tiles - 1 - back
        token = tile * STEPS + row
        in_wide = (token[:, None] < T) & (channel < N)
        in_narrow = (token[:, None] < T) & (column[None, :] < S)
        at = sequence * T + token[:, None]
        wide, narrow = at * N + channel, at * S + column[None, :]
        step = tl.load(steps + wide, mask=in_wide, other=0.0)
        x = tl.load(inputs + wide, mask=in_wide, other=0.0)
        d_read = tl.load(d_outputs + wide, mask=in_wide, other=0.0)
        b_tile = tl.load(b + narrow, mask=in_narrow, other=0.0)
        c_tile = tl.load(c + narrow, mask=in_narrow, other=0.0)
        stored -= S * N
        state = tl.load(stored, mask=in_state, other=0.0)
        decay = tl.where(in_wide[:, None, :], tl.exp(-rate[None] * step[:, None, :]), 1.0)
        # The state before each token, from the tokens before it in the tile.
        in_last = in_wide & (row[:, None] > 0)
        last_step = tl.load(steps + wide - N, mask=in_last, other=0.0)
        last_x = tl.load(inputs + wide - N, mask=in_last, other=0.0)
        last_b = tl.load(b + narrow - S, mask=in_narrow & (row[:, None] > 0), other=0.0)
        last_decay = tl.exp(-rate[None] * last_step[:, None, :])
        last_decay = tl.where(in_last[:, None, :], last_decay, 1.0)
        last_written = last_b[:, :, None] * last_x[:, None, :]
        product, before = tl.associative_scan((last_decay, last_written), 0, _joined)
        decayed = decay * (before + product * state[None])
        states = decayed + b_tile[:, :, None] * x[:, None, :]
        # The decay of the token after; that of the tile after is in the gradient that enters.
        in_next = in_wide & (row[:, None] < STEPS - 1) & (token[:, None] + 1 < T)
        next_step = tl.load(steps + wide + N, mask=in_next, other=0.0)
        next_decay = tl.exp(-rate[None] * next_step[:, None, :])
        next_decay = tl.where(in_next[:, None, :], next_decay, 1.0)
        read_from = c_tile[:, :, None] * d_read[:, None, :]
        product, d_states = tl.associative_scan((next_decay, read_from), 0, _joined, reverse=True)
        d_states += product * leaving[None]
        tl.store(d_inputs + wide, tl.sum(d_states * b_tile[:, :, None], axis=1), mask=in_wide)
        d_b_tile = tl.sum(d_states * x[:, None, :], axis=2)
        tl.store(d_b + of_program + narrow, d_b_tile, mask=in_narrow)
        d_c_tile = tl.sum(states * d_read[:, None, :], axis=2)
        tl.store(d_c + of_program + narrow, d_c_tile, mask=in_narrow)
        d_log = -d_states * decayed
        tl.store(d_steps + wide, tl.sum(d_log * rate[None], axis=1), mask=in_wide)
        d_rate += tl.sum(d_log * step[:, None, :], axis=0)
        first = row[:, None, None] == 0
        leaving = tl.sum(tl.where(first, decay * d_states, 0.0), axis=0)
    tl.store(d_rates + of_sequence, d_rate, mask=in_state)
    tl.store(d_initial_state + of_sequence, leaving, mask=in_state)
