"""The low-rank recurrence in PyTorch: its definition, a solution in chunks, and their adjoint.

Kernels receive the entries of heads as blocks: coefficients (B, T, m, H, 1 + 2 r), inputs
(B, T, m, H) and initial state (N, m, H). The functions here move the heads before the entries.
"""

from collections.abc import Callable
from functools import partial
from math import isqrt

import torch
from torch import Tensor
from torch.nn.functional import pad

from statemix.ops.backends import Kernel, Results, Scan
from statemix.ops.packing import Packing, last_of_each, over, previous
from statemix.ops.portable import ASSOCIATIVE, LOOP, REFERENCE, without_autocast


def define(scan: Scan) -> Results:
    """h_t = (diag(d_t) + sum_i u_{t,i} w_{t,i}^T) h_{t-1} + x_t, one step at a time."""
    if scan.inputs.shape[1] == 0:
        return scan.inputs.clone(), scan.initial_state.clone(), ()
    resets = _resets(scan)
    h = scan.initial_state.transpose(1, 2)
    if resets is not None:
        h = torch.zeros_like(resets[1][:, 0])
    rows, inputs = scan.coefficients.movedim(2, -1), scan.inputs.transpose(2, 3)
    return _results(scan, _steps(rows, inputs, h, resets))


def solve_in_chunks(scan: Scan) -> Results:
    """Solve the recurrence in chunks of time.

    The transitions of a chunk of c steps multiply to diag(p) + Y^T Z, where Y and Z have c r rows.
    All chunks compute theirs at once. The first states of chunks then follow one another, and all
    chunks run from there. Nothing is divided by products of d, which may be zero.
    """
    batch, length = scan.inputs.shape[:2]
    if length == 0:
        return scan.inputs.clone(), scan.initial_state.clone(), ()
    # About the fewest steps in sequence: two for each step of a chunk, and one for each chunk.
    chunk = isqrt((length - 1) // 2) + 1
    count = -(-length // chunk)

    def cut(x: Tensor) -> Tensor:
        """Return (B, T, ...) as (B * count, chunk, ...)."""
        padded = pad(x, (*(0, 0) * (x.ndim - 2), 0, count * chunk - length))
        return padded.reshape(len(x) * count, chunk, *x.shape[2:])

    resets = _resets(scan)
    h = scan.initial_state.transpose(1, 2)
    if resets is not None:
        resets = cut(resets[0]), cut(resets[1])
        h = torch.zeros_like(resets[1][:1, 0])
    rows, inputs = cut(scan.coefficients.movedim(2, -1)), cut(scan.inputs.transpose(2, 3))
    with without_autocast(inputs.device):
        p = torch.ones_like(inputs[:, 0])
        y = z = rows[:, 0, :, :0]
        for d, u, w in map(_split, rows.unbind(1)):
            z = torch.cat([z, w * p.unsqueeze(-2) + (w @ y.mT) @ z], dim=-2)
            y = torch.cat([y * d.unsqueeze(-2), u], dim=-2)
            p = p * d
        q = _steps(rows, inputs, torch.zeros_like(p), resets)[:, -1]
        maps = (one.view(batch, count, *one.shape[1:]).unbind(1) for one in (p, y, z, q))
        before = []
        for k, (p, y, z, q) in enumerate(zip(*maps, strict=True)):
            before.append(h)
            h = p * h + ((z @ h.unsqueeze(-1)).mT @ y).squeeze(-2) + q
            if resets is not None:
                h = torch.where(resets[0][k].any(), q, h)
    states = _steps(rows, inputs, torch.stack(before, dim=1).flatten(0, 1), resets)
    return _results(scan, states.view(batch, count * chunk, *states.shape[2:])[:, :length])


def adjoint(
    solve: Callable[[Scan], Results],
    scan: Scan,
    d_states: Tensor,
    d_final_state: Tensor,
    states: Tensor,
    saved: tuple[Tensor, ...],  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the gradients by the adjoint, :math:`\lambda_t = dy_t + A_{t+1}^T \lambda_{t+1}`.

    This is the recurrence in reversed time, where u and w change places and transitions come one
    step later. The last step of a sequence has the identity.
    """
    rows, bounds, length = scan.coefficients.movedim(2, -1), scan.cu_seqlens, scan.inputs.shape[1]
    if length == 0:
        empty = torch.empty_like(scan.coefficients), torch.empty_like(scan.inputs)
        return *empty, d_final_state.clone()
    d, u, w = _split(rows)
    identity = rows.new_zeros(len(d_final_state), *rows.shape[2:])
    identity[..., 0, :] = 1
    transposed, final = torch.cat([d.unsqueeze(-2), w, u], dim=-2).flip(1), d_final_state
    if bounds is not None:
        bounds, final = length - bounds.flip(0), final.flip(0)
    later = previous(transposed, identity, bounds).movedim(-1, 2)
    reversed_time = scan._replace(
        coefficients=later, inputs=d_states.flip(1), initial_state=final, cu_seqlens=bounds
    )
    d_inputs = solve(reversed_time)[0].flip(1)
    adjoints = d_inputs.transpose(2, 3)
    if scan.cu_seqlens is None:
        d_initial = _apply(d[:, 0], w[:, 0], u[:, 0], adjoints[:, 0]).transpose(1, 2)
    else:
        packing = Packing.of(scan.cu_seqlens, length)
        d_0, u_0, w_0, lam_0 = (one[0, packing.starts] for one in (d, u, w, adjoints))
        reached = _apply(d_0, w_0, u_0, lam_0).transpose(1, 2)
        d_initial = torch.where(over(packing.empty, 3, axis=0), d_final_state, reached)
    before = previous(states, scan.initial_state, scan.cu_seqlens).transpose(2, 3).unsqueeze(-2)
    adjoints = adjoints.unsqueeze(-2)
    d_u = adjoints * (w * before).sum(-1, keepdim=True)
    d_w = before * (u * adjoints).sum(-1, keepdim=True)
    d_coefficients = torch.cat([adjoints * before, d_u, d_w], dim=-2)
    return d_coefficients.movedim(-1, 2), d_inputs, d_initial


def _steps(rows: Tensor, inputs: Tensor, h: Tensor, resets: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return all states from h on; ``resets`` are where sequences start, and their h_0."""
    states = []
    for t in range(inputs.shape[1]):
        if resets is not None:
            h = torch.where(over(resets[0][:, t], 3, axis=0), resets[1][:, t], h)
        h = _apply(*_split(rows[:, t]), h) + inputs[:, t]
        states.append(h)
    return torch.stack(states, dim=1)


def _resets(scan: Scan) -> tuple[Tensor, Tensor] | None:
    """Return where packed sequences start, (1, T), and the h_0 of each step, (1, T, H, m)."""
    if scan.cu_seqlens is None:
        return None
    packing = Packing.of(scan.cu_seqlens, scan.inputs.shape[1])
    starts = scan.initial_state.transpose(1, 2)[packing.sequence]
    return packing.first.unsqueeze(0), starts.unsqueeze(0)


def _results(scan: Scan, states: Tensor) -> Results:
    """Return states (B, T, H, m) as results."""
    states = states.transpose(2, 3)
    return states, last_of_each(states, scan.initial_state, scan.cu_seqlens), ()


def _split(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return d (..., m), u and w (..., r, m)."""
    rank = rows.shape[-2] // 2
    return rows[..., 0, :], rows[..., 1 : 1 + rank, :], rows[..., 1 + rank :, :]


def _apply(d: Tensor, u: Tensor, w: Tensor, h: Tensor) -> Tensor:
    """Return (diag(d) + sum_i u_i w_i^T) h."""
    along = (w * h.unsqueeze(-2)).sum(-1, keepdim=True)
    return d * h + (u * along).sum(-2)


REFERENCE.add("low_rank", Kernel(define))
LOOP.add("low_rank", Kernel(define, partial(adjoint, define)))
ASSOCIATIVE.add("low_rank", Kernel(solve_in_chunks, partial(adjoint, solve_in_chunks)))
