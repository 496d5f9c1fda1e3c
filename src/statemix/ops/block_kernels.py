"""The block recurrence in PyTorch: its definition, a loop with an adjoint, and a parallel scan."""

from typing import Any

import torch
from torch import Tensor

from statemix.ops.backends import Kernel, Results, Scan
from statemix.ops.packing import Packing, last_of_each, over, previous
from statemix.ops.portable import ASSOCIATIVE, LOOP, REFERENCE, associative_scan, without_autocast


def define(scan: Scan) -> Results:
    """h_t = A_t h_{t-1} + b_t, one step at a time; h_{t-1} is h_0 where a sequence starts."""
    transitions, inputs, initial_state, cu_seqlens, *_ = scan
    length = inputs.shape[1]
    h = initial_state
    if cu_seqlens is not None and length:
        packing = Packing.of(cu_seqlens, length)
        starts = initial_state[packing.sequence].unsqueeze(1)  # h_0 (T, 1, H, m)
        h = torch.zeros_like(starts[0])
    states = []
    for t, (A_t, b_t) in enumerate(zip(transitions.unbind(1), inputs.unbind(1), strict=True)):
        if cu_seqlens is not None:
            h = torch.where(packing.first[t], starts[t], h)
        h = (A_t * h.unsqueeze(-2)).sum(-1) + b_t
        states.append(h)
    if not states:
        return inputs.clone(), initial_state.clone(), ()
    stacked = torch.stack(states, dim=1)
    return stacked, last_of_each(stacked, initial_state, cu_seqlens), ()


def loop_forward(scan: Scan) -> Results:
    """Run the recurrence as a loop over time."""
    transitions, inputs, initial_state, cu_seqlens, *_ = scan
    rows = transitions.permute(1, 0, 3, 4, 2).contiguous()  # (T, B, m, m, H)
    terms = inputs.permute(1, 0, 3, 2).contiguous()  # (T, B, m, H)
    h = initial_state.transpose(1, 2)
    starts = None
    if cu_seqlens is not None:
        packing = Packing.of(cu_seqlens, len(terms))
        starts, h = h[packing.sequence], h.new_zeros(terms.shape[1:])
    states = torch.empty_like(terms)
    for t, (A_t, b_t, h_t) in enumerate(
        zip(rows.unbind(0), terms.unbind(0), states.unbind(0), strict=True)
    ):
        if starts is not None:
            h = torch.where(packing.first[t], starts[t], h)
        torch.sum(A_t * h.unsqueeze(1), dim=2, out=h_t)
        h_t += b_t
        h = h_t
    logical = states.permute(1, 0, 3, 2)
    return logical, last_of_each(logical, initial_state, cu_seqlens), ()


def loop_backward(
    scan: Scan,
    d_states: Tensor,
    d_final_state: Tensor,
    states: Tensor,
    saved: tuple[Tensor, ...],  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the gradients by the adjoint, :math:`\lambda_t = dy_t + A_{t+1}^T \lambda_{t+1}`."""
    transitions, _, initial_state, cu_seqlens, *_ = scan
    rows = transitions.permute(1, 0, 3, 4, 2).contiguous()  # (T, B, m, m, H)
    adjoints = d_states.permute(1, 0, 3, 2).contiguous().clone()  # (T, B, m, H)
    carry = d_final_state.transpose(1, 2)
    ends = None
    if cu_seqlens is not None:
        packing = Packing.of(cu_seqlens, len(adjoints))
        ends, carry = carry[packing.sequence], carry.new_zeros(adjoints.shape[1:])
    steps = zip(rows.unbind(0), adjoints.unbind(0), strict=True)
    for t, (A_t, lam) in reversed(list(enumerate(steps))):
        if ends is not None:
            carry = torch.where(packing.last[t], ends[t], carry)
        lam += carry
        carry = (A_t * lam.unsqueeze(2)).sum(1)
    d_initial = carry.transpose(1, 2)
    if cu_seqlens is not None:
        d_initial = d_final_state
        if len(adjoints):
            first = packing.starts
            reached = (rows[first, 0] * adjoints[first, 0].unsqueeze(2)).sum(1).transpose(1, 2)
            d_initial = torch.where(over(packing.empty, 3, axis=0), d_final_state, reached)
    before = previous(states, initial_state, cu_seqlens).permute(1, 0, 3, 2)
    d_transitions = adjoints.unsqueeze(3) * before.unsqueeze(2)  # (T, B, m, m, H)
    return (d_transitions.permute(1, 0, 4, 2, 3), adjoints.permute(1, 0, 3, 2), d_initial.clone())


def parallel_scan(
    transitions: Tensor, inputs: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return states and final state of the recurrence, solved by a parallel scan."""
    if inputs.numel() == 0:
        # The scan rejects empty inputs. The sum keeps both arguments in the autograd graph.
        return inputs + transitions.sum(-1), initial_state.clone()
    states, final_state = _BlockScan.apply(  # type: ignore[no-untyped-call]
        transitions, inputs, initial_state, cu_seqlens
    )
    return states, final_state


class _BlockScan(torch.autograd.Function):
    """The published scan (``hopscan``, Appendix I of Dubinin et al.) and its adjoint, for T >= 1.

    The printed gradient of the transitions contracts the wrong axis: it is dA_t = dh_t h_{t-1}^T.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        transitions: Tensor, inputs: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(inputs.device):
            # h_0 enters through the first input, so that every prefix starts from zero.
            if cu_seqlens is None:
                resets = None
                entered = _apply(transitions[:, :1], initial_state.unsqueeze(1)) + inputs[:, :1]
                terms = torch.cat([entered, inputs[:, 1:]], dim=1)
            else:
                packing = Packing.of(cu_seqlens, inputs.shape[1])
                resets = packing.first
                entered = _apply(transitions, initial_state[packing.sequence].unsqueeze(0))
                terms = torch.where(over(resets, 4), entered + inputs, inputs)
            states = associative_scan(transitions, terms, resets)
        return states, last_of_each(states, initial_state, cu_seqlens)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        transitions, _, initial_state, cu_seqlens = inputs
        ctx.save_for_backward(transitions, initial_state, cu_seqlens, output[0])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        transitions, initial_state, cu_seqlens, states = ctx.saved_tensors
        d_states, d_final = grad_outputs
        with without_autocast(states.device):
            # h_T is returned twice, so its gradient has two parts.
            if cu_seqlens is None:
                resets = None
                last = d_states[:, -1:] + d_final.unsqueeze(1)
                d_states = torch.cat([d_states[:, :-1], last], dim=1)
            else:
                packing = Packing.of(cu_seqlens, states.shape[1])
                resets = packing.last
                added = d_states + d_final[packing.sequence].unsqueeze(0)
                d_states = torch.where(over(resets, 4), added, d_states)
            # The adjoint is dh_t = dy_t + A_{t+1}^T dh_{t+1}: the forward scan in reversed time,
            # with every transition moved one step towards the past.
            following = torch.cat([transitions[:, 1:], torch.zeros_like(transitions[:, :1])], dim=1)
            d_inputs = associative_scan(following.transpose(-1, -2), d_states, resets, reverse=True)
            before = previous(states, initial_state, cu_seqlens)
            d_transitions = torch.einsum("bthi,bthj->bthij", d_inputs, before)
            if cu_seqlens is None:
                d_initial = torch.einsum("bhij,bhi->bhj", transitions[:, 0], d_inputs[:, 0])
            else:
                first = packing.starts
                reached = torch.einsum("bhij,bhi->bhj", transitions[0, first], d_inputs[0, first])
                d_initial = torch.where(over(packing.empty, 3, axis=0), d_final, reached)
        return d_transitions, d_inputs, d_initial, None


def _apply(transitions: Tensor, states: Tensor) -> Tensor:
    return torch.einsum("bthij,bthj->bthi", transitions, states)


REFERENCE.add("block", Kernel(define))
LOOP.add("block", Kernel(loop_forward, loop_backward))
ASSOCIATIVE.add("block", Kernel(lambda scan: (*parallel_scan(*scan[:4]), ())))
