"""The block recurrence as a parallel scan, with the printed errors of its adjoint repaired.

Forward and backward follow Appendix I of Dubinin et al. (``hopscan``): an associative scan, and a
closed-form adjoint that is the same scan run backwards in time. The printed gradient of the
transitions contracts the wrong axis; here it is the outer product dA_t = dh_t h_{t-1}^T. We add
initial states, final states and packed sequences.
"""

from typing import Any

import torch
from torch import Tensor

from statemix.ops import associative
from statemix.ops.packing import Packing, last_of_each, over, previous


def scan(
    transitions: Tensor, inputs: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Solve a linear recurrence over dense blocks by a parallel scan.

    .. math:: h_t = A_t h_{t-1} + b_t, \qquad t = 1, \dots, T

    Args:
        transitions: A, shape (B, T, H, m, m), float32 or wider.
        inputs: b, shape (B, T, H, m), same dtype.
        initial_state: h_0, shape (B, H, m), or (N, H, m) if packed, same dtype.
        cu_seqlens: bounds of packed sequences, or None.

    Returns:
        states: h_1 ... h_T, shape (B, T, H, m).
        final_state: the last state of every sequence; h_0 for an empty sequence.
    """
    if inputs.numel() == 0:
        # The scan rejects empty inputs. The sum keeps both arguments in the autograd graph.
        return inputs + transitions.sum(-1), initial_state.clone()
    states, final_state = _BlockScan.apply(  # type: ignore[no-untyped-call]
        transitions, inputs, initial_state, cu_seqlens
    )
    return states, final_state


class _BlockScan(torch.autograd.Function):
    """``scan`` for T >= 1 with its closed-form adjoint."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        transitions: Tensor, inputs: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with associative.full_precision(inputs):
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
            states = associative.scan(transitions, terms, resets)
        return states, last_of_each(states, initial_state, cu_seqlens).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        transitions, _, initial_state, cu_seqlens = inputs
        ctx.save_for_backward(transitions, initial_state, cu_seqlens, output[0])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        transitions, initial_state, cu_seqlens, states = ctx.saved_tensors
        d_states, d_final = grad_outputs
        with associative.full_precision(states):
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
            d_inputs = associative.scan(following.transpose(-1, -2), d_states, resets, reverse=True)
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
