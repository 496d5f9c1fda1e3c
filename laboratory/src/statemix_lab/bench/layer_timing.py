"""Time training with single layers of one width."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from statemix.layers import LAYERS, Layer, LayerSpec
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix_lab.bench.compared_layers import LayerCase, TimedLayer, build_layer, draw_problem
from statemix_lab.bench.harness import (
    Measurement,
    Provider,
    copy_provider,
    relative_error,
    timed_row,
    unavailable_if_it_fails,
)
from statemix_lab.bench.operator_timing import autotuned
from statemix_lab.bench.timed_devices import DeviceName

# Steps that are checked: the last ones of the first sequence.
_CHECKED_STEPS = 32


def providers(
    listed: Sequence[TimedLayer], case: LayerCase, dtype: torch.dtype, device: DeviceName = "cpu"
) -> list[Provider]:
    """Return a provider for each entry, and a copy."""
    if any(entry.compiled for entry in listed):
        # Otherwise this case would count as a recompilation of earlier ones.
        torch.compiler.reset()

    @cache
    def problem() -> tuple[Tensor, Tensor]:
        return draw_problem(case, dtype, device)

    def provider(entry: TimedLayer) -> Provider:
        def prepare() -> Callable[[], tuple[Tensor, Tensor]]:
            layer, (x, d_y) = build_layer(entry.spec, case, dtype, device), problem()
            leaves = [x, *layer.parameters()]
            run: Callable[[Tensor], tuple[Tensor, Any]]
            run = autotuned(layer) if entry.compiled else layer

            def call() -> tuple[Tensor, Tensor]:
                y, _ = run(x)
                d_x, *_ = torch.autograd.grad(y, leaves, d_y, allow_unused=True)
                return y.detach(), d_x

            return partial(unavailable_if_it_fails, entry.name, call) if entry.foreign else call

        def error(result: tuple[Tensor, Tensor]) -> float:
            exact = _last_of_all if LAYERS[entry.spec.name].iterative else _last_steps
            spec = entry.spec
            if device == "cuda" and issubclass(LAYERS[spec.name], GatedRecurrence):
                spec = LayerSpec(spec.name, **{**spec.options, "backend": "reference"})
            judge = build_layer(spec, case, dtype, device)
            expected = exact(judge, *problem())
            return max(
                relative_error(actual[0, -len(right) :], right)
                for actual, right in zip(result, expected, strict=True)
            )

        if entry.projections:
            return Provider(entry.name, partial(_projections, entry, case, dtype, device))
        return Provider(entry.name, prepare, error)

    copied = copied_bytes(listed, case, dtype)
    return [*(provider(entry) for entry in listed), copy_provider(copied, device)]


def moved_bytes(entry: TimedLayer, case: LayerCase, dtype: torch.dtype) -> int:
    """Return the bytes that forward and backward of a layer have to move, whatever it computes."""
    inputs = case.num_tokens * case.hidden_size
    return dtype.itemsize * (3 * entry.price.num_parameters + 5 * inputs)


def copied_bytes(listed: Sequence[TimedLayer], case: LayerCase, dtype: torch.dtype) -> int:
    """Return the bytes of the copy beside some layers: those of the one that has to move most."""
    return max(moved_bytes(entry, case, dtype) for entry in listed)


def _projections(
    entry: TimedLayer, case: LayerCase, dtype: torch.dtype, device: DeviceName
) -> Callable[[], Any]:
    """Return a call of all that a gated layer does but for its recurrence."""
    layer = build_layer(entry.spec, case, dtype, device)
    x, d_y = draw_problem(case, dtype, device)
    assert isinstance(layer, GatedRecurrence)
    states = x.new_empty(*x.shape[:2], layer.out_proj.in_features).normal_().requires_grad_()
    used = [layer.gate_proj, layer.value_proj, layer.out_proj]
    leaves = [x, states, *(parameter for linear in used for parameter in linear.parameters())]
    d_gates, d_values = (
        torch.randn_like(linear(x)).detach() for linear in (layer.gate_proj, layer.value_proj)
    )

    def call() -> Any:
        results = layer.gate_proj(x), layer.value_proj(x), layer.out_proj(states)
        return torch.autograd.grad(results, leaves, (d_gates, d_values, d_y))

    return call


def row(
    entry: TimedLayer, case: LayerCase, measurement: Measurement, dtype: str, copied: int
) -> dict[str, Any]:
    """Return the stored row of a measurement, without its provenance."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    moved = None if entry.projections else moved_bytes(entry, case, torch_dtype)
    time_s, flops = measurement.time_s, entry.price.flops
    return {
        **timed_row("layers", case, measurement, torch_dtype, moved, copied),
        "layer": entry.spec.complete().to_plain(),
        "label": entry.label,
        "compiled": entry.compiled,
        "projections": entry.projections,
        "foreign_kernels": entry.foreign,
        **asdict(entry.price),
        "flops": flops and {**flops._asdict(), "total": flops.total},
        "saved_bytes_per_token": entry.saved_bytes,
        "tokens_per_s": time_s and case.num_tokens / time_s.p50,
    }


def _last_steps(layer: Layer, x: Tensor, d_y: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and input gradients of the last tokens of the first sequence, in float64."""
    exact = copy.deepcopy(layer).double()
    # No later token changes an output, so neither depends on gradients of earlier tokens.
    start = max(x.shape[1] - _CHECKED_STEPS, 0)
    tokens = x[:1].detach().double()
    with torch.no_grad():
        _, state = exact(tokens[:, :start])
    last = tokens[:, start:].requires_grad_()
    outputs = []
    for x_t in last.unbind(1):
        y_t, state = exact.step(x_t, state)
        outputs.append(y_t)
    y = torch.stack(outputs, 1)
    (d_x,) = torch.autograd.grad(y, last, d_y[:1, start:].double())
    return y[0].detach(), d_x[0]


def _last_of_all(layer: Layer, x: Tensor, d_y: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and input gradients of the same tokens from all sequences, in float64."""
    exact = copy.deepcopy(layer).double()
    tokens = x.detach().double().requires_grad_()
    # All of them decide together when an iteration stops.
    y, _ = exact(tokens)
    (d_x,) = torch.autograd.grad(y, tokens, d_y.double())
    return y[0, -_CHECKED_STEPS:].detach(), d_x[0, -_CHECKED_STEPS:]
