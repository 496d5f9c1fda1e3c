"""Kernels as differentiable functions: the closed-form backward around the registered operators."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from statemix.ops.backends import BACKENDS
from statemix.ops.registered import (
    run_backward,
    run_forward,
    run_inference,
    scan_backward,
    scan_forward,
)
from statemix.ops.shortcuts import are_plain, unobserved


def scan(
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    temperature: Tensor | None,
    operator: str,
    backend: str,
    gate: str,
) -> tuple[Tensor, Tensor]:
    """The recurrence of :func:`statemix.ops.registered.scan_forward`, differentiable."""
    arguments = (
        gates, values, initial_state, cu_seqlens, temperature, operator, backend, gate
    )  # fmt: skip
    function: Any = _EagerScan
    if torch.compiler.is_compiling():
        function = _Scan
    elif _bypasses(*arguments[:5]):
        if not _differentiated(gates, values, initial_state):
            return run_inference(*arguments)
        function = _DirectScan
    elif torch.is_inference_mode_enabled():
        # It rules out every derivative. Nothing else does: a tensor wrapped by vmap hides whether
        # it requires a gradient. A compiled graph cannot query it.
        states, final_state, *_ = scan_forward(*arguments)
        return states, final_state
    states, final_state, *_ = function.apply(*arguments)
    return states, final_state


class _Scan(torch.autograd.Function):
    """States and final state of any operator, with all gradients; other results are private.

    A Function wraps the raw operators because ``register_autograd`` does not support ``vmap`` of
    ``grad``.
    """

    generate_vmap_rule = True

    # List the arguments: the compiler would insert its context into *arguments.
    @staticmethod
    def forward(
        gates: Tensor,
        values: Tensor,
        initial_state: Tensor,
        cu_seqlens: Tensor | None,
        temperature: Tensor | None,
        operator: str,
        backend: str,
        gate: str,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See :func:`statemix.ops.registered.scan_forward`."""
        states, final_state, wide_states, maps = scan_forward(
            gates, values, initial_state, cu_seqlens, temperature, operator, backend, gate
        )
        return states, final_state, wide_states, maps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save raw gates, values, states and maps: the closed form reads nothing else."""
        *tensors, operator, backend, gate = inputs
        states, _, wide_states, maps = output
        ctx.names = operator, backend, gate
        ctx.states_dtype = states.dtype
        ctx.mark_non_differentiable(wide_states, maps)
        ctx.save_for_backward(*tensors, wide_states if wide_states.numel() else states, maps)

    @staticmethod
    def backward(
        ctx: Any,
        d_states: Tensor | None,
        d_final_state: Tensor | None,
        *_: None,
    ) -> tuple[Tensor | None, ...]:
        """See :func:`statemix.ops.registered.scan_backward`."""
        gates, values, initial_state, cu_seqlens, temperature, states, maps = ctx.saved_tensors
        # Under create_graph=True or torch.func, a second derivative must raise, not be wrong.
        if d_states is None:
            d_states = torch.zeros_like(values, dtype=ctx.states_dtype)
        if d_final_state is None:
            d_final_state = torch.zeros_like(initial_state)
        backward: Any = scan_backward
        if torch.is_grad_enabled():
            backward = _ScanBackward.apply
        elif _bypasses(
            *(d_states, d_final_state, gates, values),
            *(states, maps, initial_state, cu_seqlens, temperature),
        ):
            backward = run_backward
        d_gates, d_values, d_initial_state = backward(
            d_states,
            d_final_state,
            gates,
            values,
            states,
            maps,
            initial_state,
            cu_seqlens,
            temperature,
            *ctx.names,
        )
        return d_gates, d_values, d_initial_state, None, None, None, None, None


class _EagerScan(_Scan):
    """``_Scan`` with a clear error in forward mode; the compiler cannot trace a class with jvp."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Let undefined gradients be None: PyTorch's zeros would have another memory order."""
        ctx.set_materialize_grads(False)
        _Scan.setup_context(ctx, inputs, output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> None:
        """Refuse forward mode.

        Raises:
            ValueError: always, naming the arguments that have a tangent.
        """
        names = ("gates", "values", "initial_state")
        given = [
            name for name, tangent in zip(names, tangents, strict=False) if tangent is not None
        ]
        raise ValueError(
            f"{' and '.join(given)} must have no tangent (jvp): "
            f"{_differentiated_by_hand(*ctx.names[:2])}"
        )


class _DirectScan(torch.autograd.Function):
    """``_EagerScan`` without operators that a compiler, transform or profiler would see.

    PyTorch binds the arguments of a Function with ``setup_context`` anew in every call, which takes
    as long as a small problem.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        """See :func:`statemix.ops.registered.run_forward`."""
        results = run_forward(*arguments)
        _EagerScan.setup_context(ctx, arguments, results)
        return results

    backward = staticmethod(_Scan.backward)
    jvp = staticmethod(_EagerScan.jvp)


class _ScanBackward(torch.autograd.Function):
    """The closed-form gradients, with a clear error in place of second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        """See :func:`statemix.ops.registered.scan_backward`."""
        d_gates, d_values, d_initial_state = scan_backward(*arguments)
        return d_gates, d_values, d_initial_state

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Any, ...],
        output: tuple[Tensor, ...],  # noqa: ARG004
    ) -> None:
        """Save the names for the error message."""
        ctx.names = inputs[-3:]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> None:  # noqa: ARG004
        """Refuse second derivatives.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "the gradient of the recurrence cannot be differentiated again: "
            f"{_differentiated_by_hand(*ctx.names[:2])}"
        )


def _differentiated(*tensors: Tensor) -> bool:
    """Return whether a derivative by one of the tensors may be asked for."""
    # Forward mode works with gradients disabled.
    return forward_ad._current_level >= 0 or (
        torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    )


def _bypasses(*tensors: Tensor | None) -> bool:
    """Return whether kernels may be called directly.

    The bookkeeping of a registered operator takes as long as a small problem.
    """
    return unobserved() and are_plain(*(tensor for tensor in tensors if tensor is not None))


def _differentiated_by_hand(operator: str, backend: str) -> str:
    others = [repr(record.name) for record in BACKENDS.values() if record.differentiates(operator)]
    return (
        f"backend {backend!r} has first derivatives in reverse mode only; "
        f"use backend={' or '.join(others)}"
    )
