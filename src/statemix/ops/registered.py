"""Kernels as two PyTorch operators, which compilers, transforms, tracers and profilers see.

``statemix::scan_forward`` and ``statemix::scan_backward`` run every operator of the library on
every backend with its own backward: both names are arguments. autograd.py attaches the gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from statemix.ops.backends import Scan
from statemix.ops.checks import check_cu_seqlens_values
from statemix.ops.layout import STATE_BLOCK_AXIS, dense, empty_innermost

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
    scan = Scan(*arguments)
    if scan.kernel.empty is None:
        return empty_innermost(scan.inputs.shape, scan.initial_state), empty_state(scan), []
    states, final_state, saved = scan.kernel.empty(scan)
    return states, final_state, list(saved)


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


def _mapped(
    run: Callable[..., Sequence[Tensor]], count: int, info: Any, in_dims: Any, arguments: Any
) -> list[Tensor]:
    """Map ``run``, whose first ``count`` arguments are tensors with rows, and the next a scan's.

    Packed sequences, and several temperatures, run one after the other; else one run has all rows.
    """
    bounds, temperature, *options = arguments[count:]
    bounds_dim, temperature_dim = in_dims[count : count + 2]
    if bounds_dim is not None:
        raise ValueError("cu_seqlens must not be mapped by vmap, got a mapped axis")
    size = info.batch_size
    tensors = [
        one.expand(size, *one.shape) if dim is None else one.movedim(dim, 0)
        for one, dim in zip(arguments[:count], in_dims, strict=False)
    ]
    if bounds is None and temperature_dim is None:
        folded = run(*(one.flatten(0, 1) for one in tensors), None, temperature, *options)
        return [one.reshape(size, one.shape[0] // size, *one.shape[1:]) for one in folded]
    each = [temperature] * size if temperature_dim is None else temperature.unbind(temperature_dim)
    results = [
        run(*parts, bounds, divisor, *options)
        for *parts, divisor in zip(*(one.unbind(0) for one in tensors), each, strict=True)
    ]
    return [torch.stack(parts) for parts in zip(*results, strict=True)]


def _mapped_forward(info: Any, in_dims: Any, *arguments: Any) -> Any:
    # What a scan saves belongs to none of the mapped ones: the backward computes it again.
    results = _mapped(lambda *scan: scan_forward(*scan)[:2], 3, info, in_dims, arguments)
    return (*results, []), (0, 0, [])


def _mapped_backward(info: Any, in_dims: Any, *arguments: Any) -> Any:
    def run(d_states: Tensor, d_final_state: Tensor, *scan: Any) -> Sequence[Tensor]:
        states, _, saved = scan_forward(*scan)
        return scan_backward(d_states, d_final_state, states, *scan, *saved)  # type: ignore[no-any-return]

    # Without the states and what was saved.
    places = [0, 1, *range(3, 3 + _FIELDS)]
    results = _mapped(run, 5, info, [in_dims[i] for i in places], [arguments[i] for i in places])
    return tuple(results), (0, 0, 0)


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
