"""The recurrences as differentiable functions: the closed-form backward around the operators."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statemix.ops.operators import scan_backward, scan_forward


def scan(
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    gate: str,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """The recurrence of :func:`statemix.ops.operators.scan_forward`, differentiable."""
    # Not "requires_grad": a tensor that vmap has wrapped within grad does not tell.
    if torch.is_grad_enabled():
        result: tuple[Tensor, Tensor] = _Scan.apply(  # type: ignore[no-untyped-call]
            gates, values, initial_state, cu_seqlens, gate, backend
        )
        return result
    # While decoding, a Function's bookkeeping costs more than the step itself.
    states, final_state = scan_forward(gates, values, initial_state, cu_seqlens, gate, backend)
    return states, final_state


class _Scan(torch.autograd.Function):
    """States and final state of either recurrence, with all gradients.

    A Function around the raw operators rather than ``register_autograd`` on them: only this form
    supports ``vmap`` of ``grad``. No gradient of the gradient is defined.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        gates: Tensor,
        values: Tensor,
        initial_state: Tensor,
        cu_seqlens: Tensor | None,
        gate: str,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        """See :func:`statemix.ops.operators.scan_forward`."""
        states, final_state = scan_forward(gates, values, initial_state, cu_seqlens, gate, backend)
        return states, final_state

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep raw gates, values and states: all that the closed form reads."""
        gates, values, initial_state, cu_seqlens, ctx.gate, ctx.backend = inputs
        ctx.save_for_backward(gates, values, initial_state, cu_seqlens, output[0])

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_states: Tensor, d_final_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        """See :func:`statemix.ops.operators.scan_backward`."""
        gates, values, initial_state, cu_seqlens, states = ctx.saved_tensors
        d_gates, d_values, d_initial_state = scan_backward(
            d_states,
            d_final_state,
            gates,
            values,
            states,
            initial_state,
            cu_seqlens,
            ctx.gate,
            ctx.backend,
        )
        return d_gates, d_values, d_initial_state, None, None, None
