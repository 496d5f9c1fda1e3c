"""The recurrences as differentiable functions: the closed-form backward around the operators."""

from typing import Any

import torch
from torch import Tensor

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
    # Derivatives of any kind are only ruled out here: a tensor that vmap has wrapped does not tell
    # whether it requires a gradient, and forward mode works without gradients being enabled.
    # (A compiled graph cannot ask.)
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
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
    supports ``vmap`` of ``grad``.
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
    def backward(
        ctx: Any, d_states: Tensor, d_final_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        """See :func:`statemix.ops.operators.scan_backward`."""
        gates, values, initial_state, cu_seqlens, states = ctx.saved_tensors
        # What create_graph=True or torch.func differentiates again must know that it cannot be.
        backward: Any = _ScanBackward.apply if torch.is_grad_enabled() else scan_backward
        d_gates, d_values, d_initial_state = backward(
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


class _ScanBackward(torch.autograd.Function):
    """The closed-form gradients, with a clear error in place of theirs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        """See :func:`statemix.ops.operators.scan_backward`."""
        d_gates, d_values, d_initial_state = scan_backward(*arguments)
        return d_gates, d_values, d_initial_state

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing to keep."""

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> None:  # noqa: ARG004
        """Refuse.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "the gradient of the recurrence cannot be differentiated again by the backends 'cpu' "
            "and 'loop'; use backend='reference'"
        )
