r"""The lag recurrence in PyTorch: definition, loop with an adjoint, parallel scan, observer form.

The state of the controller form is the last m outputs. The observer form has the same eigenvalues
but delayed gates, and its state consists of partial sums:

.. math::
    s^k_t = a_{k,t} s^1_{t-1} + s^{k+1}_{t-1} + [k = 1] \, b_t \quad (s^{m+1} = 0), \qquad
    y_t = s^1_t

Without s^2 ... s^m this is a lag recurrence with delayed coefficients, a_{i,t-i+1}.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.ops.backends import Kernel, Results, Scan
from statemix.ops.block_kernels import parallel_scan
from statemix.ops.packing import Packing, over, previous
from statemix.ops.portable import ASSOCIATIVE, LOOP, REFERENCE


def define(scan: Scan) -> Results:
    """h_t = sum_i a_{i,t} h_{t-i} + b_t, one step at a time, newest lag first."""
    coefficients, inputs, initial_state, cu_seqlens, *_ = scan
    length = inputs.shape[1]
    lags = initial_state
    if cu_seqlens is not None and length:
        packing = Packing.of(cu_seqlens, length)
        starts = initial_state[packing.sequence].unsqueeze(1)  # h_0, h_{-1}, ... (T, 1, H, m)
        lags = torch.zeros_like(starts[0])
    states = []
    for t, (a_t, b_t) in enumerate(zip(coefficients.unbind(1), inputs.unbind(1), strict=True)):
        if cu_seqlens is not None:
            lags = torch.where(packing.first[t], starts[t], lags)
        h_t = (a_t * lags).sum(-1) + b_t
        lags = torch.cat([h_t.unsqueeze(-1), lags[..., :-1]], dim=-1)
        states.append(h_t)
    if not states:
        return inputs.clone(), initial_state.clone(), ()
    stacked = torch.stack(states, dim=1)
    if cu_seqlens is None:
        return stacked, lags.clone(), ()
    return stacked, final_lags(stacked, initial_state, cu_seqlens), ()


def loop_forward(scan: Scan) -> Results:
    """Run the recurrence as a loop over time."""
    coefficients, inputs, initial_state, cu_seqlens, *_ = scan
    rows = coefficients.permute(1, 0, 3, 2).contiguous()  # (T, B, m, H)
    lags = initial_state.transpose(1, 2)  # (B, m, H)
    states = torch.empty_like(inputs.transpose(0, 1).contiguous())  # (T, B, H)
    starts = None
    if cu_seqlens is not None:
        packing = Packing.of(cu_seqlens, len(states))
        starts, lags = lags[packing.sequence], lags.new_zeros(1, *lags.shape[1:])
    for t, (a_t, b_t, h_t) in enumerate(
        zip(rows.unbind(0), inputs.unbind(1), states.unbind(0), strict=True)
    ):
        if starts is not None:
            lags = torch.where(packing.first[t], starts[t], lags)
        torch.sum(a_t * lags, dim=1, out=h_t)
        h_t += b_t
        lags = torch.cat([h_t.unsqueeze(1), lags[:, :-1]], dim=1)
    logical = states.transpose(0, 1)
    if cu_seqlens is None:
        return logical, lags.transpose(1, 2).clone(), ()
    if not len(states):
        return logical, initial_state.clone(), ()
    return logical, final_lags(logical, initial_state, cu_seqlens), ()


def loop_backward(
    scan: Scan,
    d_states: Tensor,
    d_final_state: Tensor,
    states: Tensor,
    saved: tuple[Tensor, ...],  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the gradients: :math:`\lambda_t = dy_t + \sum_i a_{i,t+i} \lambda_{t+i}`."""
    coefficients, _, initial_state, cu_seqlens, *_ = scan
    rows = coefficients.permute(1, 0, 3, 2).contiguous()  # (T, B, m, H)
    adjoints = d_states.transpose(0, 1).contiguous().clone()  # (T, B, H)
    # Contributions of later steps to the gradients of h_t, h_{t-1}, ...
    pushed = d_final_state.transpose(1, 2)  # (B, m, H)
    ends, reached = None, []
    if cu_seqlens is not None:
        packing = Packing.of(cu_seqlens, len(adjoints))
        ends, pushed = pushed[packing.sequence], pushed.new_zeros(1, *pushed.shape[1:])
    steps = zip(rows.unbind(0), adjoints.unbind(0), strict=True)
    for t, (a_t, lam) in reversed(list(enumerate(steps))):
        if ends is not None:
            pushed = torch.where(packing.last[t], ends[t], pushed)
        lam += pushed[:, 0]
        later = torch.cat([pushed[:, 1:], torch.zeros_like(pushed[:, :1])], dim=1)
        pushed = later + a_t * lam.unsqueeze(1)
        if ends is not None:
            reached.append(pushed)
    d_initial = pushed.transpose(1, 2)
    if cu_seqlens is not None:
        d_initial = d_final_state
        if reached:
            at_starts = torch.cat(reached[::-1])[packing.starts].transpose(1, 2)
            d_initial = torch.where(over(packing.empty, 3, axis=0), d_final_state, at_starts)
    d_inputs = adjoints.transpose(0, 1)  # (B, T, H)
    lags = preceding(states, initial_state, cu_seqlens)
    d_coefficients = torch.stack([d_inputs * lag for lag in lags], dim=2).transpose(2, 3)
    return d_coefficients, d_inputs, d_initial.clone()


def _run_parallel_scan(scan: Scan) -> Results:
    """Solve a recurrence of order m as a block scan of companion matrices (Dubinin et al., Eq. 3).

    Their snippet has the coefficients in the first column: another recurrence if they vary.
    """
    coefficients, inputs, initial_state, cu_seqlens, *_ = scan
    padded = F.pad(inputs.unsqueeze(-1), (0, coefficients.shape[-1] - 1))
    windows, final_state = parallel_scan(
        companions(coefficients), padded, initial_state, cu_seqlens
    )
    return windows[..., 0], final_state, ()


def companions(coefficients: Tensor) -> Tensor:
    """Return companion matrices: coefficients in the first row, ones below the diagonal."""
    order = coefficients.shape[-1]
    ones = torch.ones(order - 1, dtype=coefficients.dtype, device=coefficients.device)
    return ones.diag(-1) + F.pad(coefficients.unsqueeze(-2), (0, 0, 0, order - 1))


def partial_sums(
    coefficients: Tensor, states: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None
) -> Tensor:
    """Return the partial sums s^1 ... s^m of the observer form at every step, (B, T, H, m)."""
    before = previous(states, initial_state[..., 0], cu_seqlens)
    sums: list[Tensor] = []
    for k in range(coefficients.shape[-1] - 1, 0, -1):
        s = coefficients[..., k] * before
        if sums:
            s = s + previous(sums[-1], initial_state[..., k + 1], cu_seqlens)
        sums.append(s)
    return torch.stack([states, *reversed(sums)], dim=2).transpose(-1, -2)


def preceding(states: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None) -> list[Tensor]:
    """Return the m states before every step: h_{t-1}, ..., h_{t-m}, each shaped like ``states``."""
    size, length = initial_state.shape[-1], states.shape[1]
    if cu_seqlens is None:
        # Entry t + m is h_t: the lags are slices of one history, oldest state first.
        before = initial_state.flip(-1).movedim(-1, 1).to(states.dtype)
        history = torch.cat([before, states], dim=1)
        return [history[:, size - k : size - k + length] for k in range(1, size + 1)]
    lags, newer = [], states
    for k in range(size):
        newer = previous(newer, initial_state[..., k], cu_seqlens)
        lags.append(newer)
    return lags


def lagged(states: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Return the last m states at every step, (B, T, H, m): the state of the controller form."""
    lags = [states, *preceding(states, initial_state[..., :-1], cu_seqlens)]
    # Channels stay innermost in memory, as in the kernels and projections.
    return torch.stack(lags, dim=2).transpose(-1, -2)


def final_lags(states: Tensor, initial_state: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the last m states of every packed sequence, newest first, then its initial ones."""
    lag = torch.arange(initial_state.shape[-1], device=states.device)
    lengths = cu_seqlens.diff().unsqueeze(1)
    steps = cu_seqlens[1:].to(torch.int64).unsqueeze(1) - 1 - lag  # (N, m)
    within = states[0, steps.clamp(min=0)].transpose(1, 2)  # (N, H, m)
    older = (lag - lengths).clamp(min=0).to(torch.int64).unsqueeze(1)
    before = initial_state.gather(-1, older.expand(initial_state.shape))
    return torch.where((lag < lengths).unsqueeze(1), within, before)


REFERENCE.add("lag", Kernel(define))
LOOP.add("lag", Kernel(loop_forward, loop_backward))
ASSOCIATIVE.add("lag", Kernel(_run_parallel_scan))
