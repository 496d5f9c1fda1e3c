"""Scans as differentiable functions: closed-form gradients around the registered operators."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from statemix.ops.backends import BACKENDS, Scan
from statemix.ops.layout import BLOCK_AXIS, STATE_BLOCK_AXIS
from statemix.ops.registered import scan_backward, scan_forward


def solver_of(scan: Scan) -> Callable[..., tuple[Any, ...]]:
    """Return the function (*scan) -> (states, final state, ...) that also differentiates it."""
    shape = scan.inputs.shape
    if len(shape) == 5 and (shape[-1] < 2 or scan.gate not in scan.kernel.channels):
        return _solve_unshared
    if scan.kernel.backward is None:
        return lambda *arguments: scan.kernel.forward(Scan(*arguments))
    if torch.compiler.is_compiling():
        return _Scan.apply
    _refuse_tangents(scan)
    if not scan.keep:
        return scan_forward  # type: ignore[no-any-return]
    transformed = torch._C._are_functorch_transforms_active()
    return _Scan.apply if transformed else _PlainScan.apply


def may_be_differentiated(*tensors: Tensor) -> bool:
    """Return whether a gradient may be asked for; ``vmap`` hides whether one is required."""
    return torch.is_grad_enabled() and (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or any(tensor.requires_grad for tensor in tensors)
    )


def gradients_by_autograd(
    function: Callable[..., Any], tensors: Sequence[Tensor], incoming: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a function, None for tensors that require none.

    This is the backward pass of a kernel where the kernel's own cannot run: for second derivatives,
    and where a transform watches.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that paths from one argument to another do not count twice.
        views = [one.view_as(one) for one in tensors]
        results = function(*views)
    needed = [one for one in views if one.requires_grad]
    found = iter(torch.autograd.grad(results, needed, incoming, create_graph=create_graph))
    return tuple(next(found) if one.requires_grad else None for one in views)


def _solve_unshared(*arguments: Any) -> tuple[Any, ...]:
    """Run a scan of C channels as one of C times as many blocks, which have copies of the gates.

    Several run in the dtype of the state: gradients of gates are sums, whose terms may cancel.
    """
    scan = Scan(*arguments)
    gates, values = scan.coefficients, scan.inputs
    sizes = values.shape[-1], gates.shape[BLOCK_AXIS]
    if sizes[0] > 1:
        gates, values = (one.to(scan.initial_state.dtype) for one in (gates, values))
    scan = scan._replace(
        coefficients=_joined(gates.unsqueeze(-1).expand(*gates.shape, sizes[0]), BLOCK_AXIS),
        inputs=_joined(values, BLOCK_AXIS),
        initial_state=_joined(scan.initial_state, STATE_BLOCK_AXIS),
    )
    states, final_state, *saved = solver_of(scan)(*scan)
    return (
        states.unflatten(BLOCK_AXIS, sizes).movedim(BLOCK_AXIS, -1),
        final_state.unflatten(STATE_BLOCK_AXIS, sizes).movedim(STATE_BLOCK_AXIS, -1),
        *saved,
    )


def _joined(tensor: Tensor, axis: int) -> Tensor:
    """Return (..., H, ..., C) as (..., C * H, ...), with H at ``axis`` and innermost in memory."""
    return tensor.movedim(axis, -1).flatten(-2).movedim(-1, axis)


def _backward(
    ctx: Any, d_states: Tensor | None, d_final_state: Tensor | None, *_: Tensor | None
) -> tuple[Any, ...]:
    # Unpack once, as checkpoints demand.
    coefficients, inputs, initial_state, cu_seqlens, temperature, states, *saved = ctx.saved_tensors
    scan = Scan(coefficients, inputs, initial_state, cu_seqlens, temperature, *ctx.options)
    if d_states is None:
        d_states = torch.zeros_like(states)
    if d_final_state is None:
        d_final_state = torch.zeros_like(initial_state)
    if torch.is_grad_enabled():
        # Under create_graph=True or torch.func, a second derivative must raise, not be wrong.
        refuse_batched(d_states, d_final_state)
        gradients = _Gradients.apply(  # type: ignore[no-untyped-call]
            d_states, d_final_state, states, *scan, *saved
        )
    else:
        gradients = scan_backward(d_states, d_final_state, states, *scan, *saved)
    return *gradients, *(None for _ in scan[3:])


class _Scan(torch.autograd.Function):
    """A scan with its gradients; ``register_autograd`` would support no ``vmap`` of ``grad``."""

    generate_vmap_rule = True

    # List the arguments: the compiler would insert its context into *arguments.
    @staticmethod
    def forward(
        coefficients: Tensor,
        inputs: Tensor,
        initial_state: Tensor,
        cu_seqlens: Tensor | None,
        temperature: Tensor | None,
        operator: str,
        backend: str,
        gate: str,
        keep: bool,  # noqa: FBT001  a field of Scan
    ) -> tuple[Tensor, ...]:
        states, final_state, saved = scan_forward(
            *(coefficients, inputs, initial_state, cu_seqlens, temperature),
            *(operator, backend, gate, keep),
        )  # fmt: skip
        return states, final_state, *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        states, _, *saved = output
        ctx.options = inputs[5:]
        ctx.mark_non_differentiable(*saved)
        ctx.save_for_backward(*inputs[:5], states, *saved)

    backward = staticmethod(_backward)


class _PlainScan(torch.autograd.Function):
    """``_Scan`` for calls that no transform or compiler sees: small problems take half the time."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        states, final_state, saved = scan_forward(*arguments)
        ctx.set_materialize_grads(False)
        _Scan.setup_context(ctx, arguments, (states, final_state, *saved))
        return states, final_state, *saved

    backward = staticmethod(_backward)


class _Gradients(torch.autograd.Function):
    """The closed-form gradients, with a clear error in place of second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        d_coefficients, d_inputs, d_initial_state = scan_backward(*arguments)
        return d_coefficients, d_inputs, d_initial_state

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        ctx.scan = Scan(*inputs[3 : 3 + len(Scan._fields)])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        operator = ctx.scan.operator
        able = [repr(one.name) for one in BACKENDS.values() if one.differentiates(operator)]
        raise RuntimeError(
            f"the gradient of the recurrence cannot be differentiated again: {_limits(ctx.scan)}; "
            f"operators, and layers with the option backend, can with {' or '.join(able)}"
        )


def refuse_batched(*gradients: Tensor) -> None:
    """Refuse gradients of ``is_grads_batched``, which autograd functions take for constants."""
    if any(map(torch._C._functorch.is_legacy_batchedtensor, gradients)):
        raise RuntimeError(
            "batched gradients (is_grads_batched, vectorize) must come without create_graph; "
            "torch.func and gradients one by one can be differentiated again where layers can"
        )


def _refuse_tangents(scan: Scan) -> None:
    """Refuse forward mode, which works even with gradients disabled."""
    if forward_ad._current_level < 0:
        return
    names = ("gates or transitions", "values or inputs", "initial_state")
    unpack: Any = forward_ad.unpack_dual
    given = [
        name for name, one in zip(names, scan, strict=False) if unpack(one).tangent is not None
    ]
    if given:
        raise ValueError(
            f"{' and '.join(given)} must have no tangent (jvp): {_limits(scan)}; "
            "operators, and layers with the option backend, can have them with 'reference'"
        )


def _limits(scan: Scan) -> str:
    return f"backend {scan.backend!r} has first derivatives in reverse mode only"
