"""Kernels as two PyTorch operators, which compilers, transforms, tracers and profilers see.

``statemix::scan_forward`` and ``statemix::scan_backward`` run every operator of the library on
every backend with its own backward: both names are arguments. autograd.py attaches the gradients.
"""

from typing import Any

import torch
from torch import Tensor

from statemix.ops.backends import Results, Scan
from statemix.ops.checks import check_cu_seqlens_values
from statemix.ops.layout import STATE_BLOCK_AXIS, dense, empty_innermost


class Folding:
    """Fold V scans into one, and unfold its results.

    Args:
        count: size of the mapped axis, V.
        scan: arguments of all scans.
        dims: number of the mapped axis of each argument, None where it is shared.

    Attributes:
        scan: the one larger scan. A mapped temperature has divided its coefficients.

    Raises:
        ValueError: if ``cu_seqlens`` is mapped.
    """

    def __init__(self, count: int, scan: Scan, dims: Scan) -> None:
        if dims.cu_seqlens is not None:
            raise ValueError("cu_seqlens must not be mapped by vmap, got a mapped axis")
        self._count, bounds = count, scan.cu_seqlens
        self._packed = bounds is not None
        self._dtypes = scan.coefficients.dtype, scan.inputs.dtype
        self._divisor: Tensor | None = None
        coefficients = self._in_front(scan.coefficients, dims.coefficients)
        inputs = self._in_front(scan.inputs, dims.inputs)
        if scan.temperature is not None and dims.temperature is not None:
            wide, ones = scan.initial_state.dtype, (1,) * (coefficients.ndim - 1)
            self._divisor = scan.temperature.view(-1, *ones)
            coefficients, inputs = coefficients.to(wide) / self._divisor, inputs.to(wide)
            scan = scan._replace(temperature=None)
        if bounds is not None:
            length = inputs.shape[2]
            offsets = length * torch.arange(count, device=bounds.device).unsqueeze(1)
            starts = (bounds[:-1] + offsets).flatten()
            # Each sequence ends where the next one starts; only the last needs its own end.
            bounds = torch.cat([starts, bounds[-1:] + length * (count - 1)])
        self.scan = scan._replace(
            coefficients=self._flat(coefficients),
            inputs=self._flat(inputs),
            initial_state=self.fold_state(scan.initial_state, dims.initial_state),
            cu_seqlens=bounds,
        )

    def fold(self, tensor: Tensor, dim: object) -> Tensor:
        """Fold a tensor of sequences into (V*B, T, ...), or (1, V*T, ...) if packed."""
        return self._flat(self._in_front(tensor, dim))

    def fold_state(self, state: Tensor, dim: object) -> Tensor:
        """Fold a state into (V*N, H, m)."""
        return self._in_front(state, dim).flatten(0, 1)

    def unfold(self, tensor: Tensor) -> Tensor:
        """Return a tensor of sequences as (V, B, T, ...)."""
        return self._split(tensor, 1).transpose(0, 1) if self._packed else self._split(tensor, 0)

    def unfold_gradient(self, gradient: Tensor, *, divided: bool = True) -> Tensor:
        """Return the gradient of coefficients (``divided``) or inputs, as :meth:`unfold`."""
        gradient = self.unfold(gradient)
        if divided and self._divisor is not None:
            gradient = gradient / self._divisor
        return gradient.to(self._dtypes[0 if divided else 1])

    def unfold_state(self, state: Tensor) -> Tensor:
        """Return a state as (V, N, H, m)."""
        return self._split(state, 0)

    def _in_front(self, tensor: Tensor, dim: object) -> Tensor:
        if isinstance(dim, int):
            return tensor.movedim(dim, 0)
        return tensor.expand(self._count, *tensor.shape)

    def _flat(self, tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1).flatten(1, 2) if self._packed else tensor.flatten(0, 1)

    def _split(self, tensor: Tensor, dim: int) -> Tensor:
        shape = tensor.shape
        parts = (self._count, shape[dim] // self._count)
        return tensor.reshape(*shape[:dim], *parts, *shape[dim + 1 :])


_TYPES = {Tensor: "Tensor", Tensor | None: "Tensor?", str: "str", bool: "bool"}
_SCAN = ", ".join(f"{_TYPES[kind]} {name}" for name, kind in Scan.__annotations__.items())
_GRADIENT = "Tensor d_states, Tensor d_final_state, Tensor states"
# Batched gradients (is_grads_batched) loop over an operator only if no argument is a list.
_SAVED = "Tensor? saved_0=None, Tensor? saved_1=None"

_FIELDS = len(Scan._fields)

_LIBRARY: Any = torch.library.Library("statemix", "FRAGMENT")  # type: ignore[no-untyped-call]


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
    scan = Scan(*arguments)
    if scan.cu_seqlens is not None and scan.cu_seqlens.is_cpu:
        check_cu_seqlens_values(scan.cu_seqlens, scan.inputs.shape[1])
    kernel = scan.kernel
    # The parameters of an exported graph ask for gradients, which operators do not record.
    with torch.no_grad():
        states, final_state, saved = kernel.forward(scan)
    if kernel.empty is None:
        states, final_state = dense(states), dense(final_state, STATE_BLOCK_AXIS)
    return states, final_state, list(saved)


def _backward(
    d_states: Tensor, d_final_state: Tensor, states: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    scan, saved = Scan(*arguments[:_FIELDS]), arguments[_FIELDS:]
    backward = scan.kernel.backward
    if backward is None:
        raise RuntimeError(f"backend {scan.backend!r} leaves its gradients to autograd")
    d_coefficients, d_inputs, d_initial_state = backward(
        scan, d_states, d_final_state, states, tuple(one for one in saved if one is not None)
    )
    return dense(d_coefficients), dense(d_inputs), dense(d_initial_state, STATE_BLOCK_AXIS)


def _fake_forward(*arguments: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
    states, final_state, saved = _empty(Scan(*arguments))
    return states, final_state, list(saved)


def _empty(scan: Scan) -> Results:
    """Return room for all results of a scan."""
    return (scan.kernel.empty or empty_results)(scan)


def empty_results(scan: Scan) -> Results:
    """Return room for states and final state in the dtype of the initial state, and nothing saved.

    In memory, blocks are innermost.
    """
    states = empty_innermost(scan.inputs.shape, scan.initial_state)
    return states, empty_state(scan), ()


def empty_state(scan: Scan) -> Tensor:
    """Return room for a state like the initial one, blocks innermost in memory."""
    return empty_innermost(scan.initial_state.shape, scan.initial_state, STATE_BLOCK_AXIS)


def _fake_backward(
    d_states: Tensor,  # noqa: ARG001
    d_final_state: Tensor,  # noqa: ARG001
    states: Tensor,  # noqa: ARG001
    *arguments: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    scan = Scan(*arguments[:_FIELDS])
    a, b = (empty_innermost(one.shape, one) for one in (scan.coefficients, scan.inputs))
    return a, b, empty_state(scan)


def _mapped_forward(info: Any, in_dims: Any, *arguments: Any) -> Any:
    folding = Folding(info.batch_size, Scan(*arguments), Scan(*in_dims))
    states, final_state, _ = scan_forward(*folding.scan)
    # What the folded scan saved belongs to no scan of its own: the backward computes it again.
    return (folding.unfold(states), folding.unfold_state(final_state), []), (0, 0, [])


def _mapped_backward(
    info: Any,
    in_dims: Any,
    d_states: Tensor,
    d_final_state: Tensor,
    states: Tensor,
    *arguments: Any,
) -> Any:
    scan, dims = Scan(*arguments[:_FIELDS]), Scan(*in_dims[3 : 3 + _FIELDS])
    folding = Folding(info.batch_size, scan, dims)
    states, _, saved = scan_forward(*folding.scan)
    d_coefficients, d_inputs, d_initial_state = scan_backward(
        folding.fold(d_states, in_dims[0]),
        folding.fold_state(d_final_state, in_dims[1]),
        states,
        *folding.scan,
        *saved,
    )
    return (
        folding.unfold_gradient(d_coefficients),
        folding.unfold_gradient(d_inputs, divided=False),
        folding.unfold_state(d_initial_state),
    ), (0, 0, 0)


def _define(schema: str, run: Any, fake: Any, mapped: Any) -> Any:
    """Define an operator of PyTorch: its schema, and what runs it on tensors of all kinds."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"statemix::{name}", fake, lib=_LIBRARY)
    torch.library.register_vmap(f"statemix::{name}", mapped, lib=_LIBRARY)
    return getattr(torch.ops.statemix, name).default


scan_forward = _define(
    f"scan_forward({_SCAN}) -> (Tensor, Tensor, Tensor[])", _forward, _fake_forward, _mapped_forward
)
"""(*scan) -> states (B, T, H, ...), final state (N, H, m), and what the backward needs besides."""

scan_backward = _define(
    f"scan_backward({_GRADIENT}, {_SCAN}, {_SAVED}) -> (Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
    _mapped_backward,
)
"""(d_states, d_final_state, states, *scan, *saved) -> gradients of a scan's first three tensors."""
