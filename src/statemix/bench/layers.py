"""Time training with single layers of one width."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from statemix.bench.devices import DeviceName
from statemix.bench.entries import (
    Case,
    Entry,
    build_layer,
    draw_problem,
    failure_of,
)
from statemix.bench.harness import Measurement, Provider
from statemix.bench.ops import autotuned
from statemix.bench.roofline import COPY, copying, fraction
from statemix.layers import LAYERS, Layer, LayerSpec
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.ops import BackendUnavailableError

# Steps that are checked: the last ones of the first sequence.
_CHECKED_STEPS = 32


def providers(
    listed: Sequence[Entry], case: Case, dtype: torch.dtype, device: DeviceName = "cpu"
) -> list[Provider]:
    """Return a provider for each entry: forward and backward of the layer alone.

    A call computes the output and the gradients of the input and of all parameters, from the same
    random input and gradient of the output. Outputs and gradients of the last tokens are checked
    against single steps of the layer in float64; those of a layer that iterates, whose steps agree
    only as far as the iteration has converged, against whole sequences in float64. On a GPU, BD-LRU
    and H-LRU are checked against backend "reference", which compiles no kernels. Projections alone
    are applied to random input, values and states, with random gradients.
    """
    if any(entry.compiled for entry in listed):
        # Otherwise this case would count as a recompilation of earlier ones.
        torch.compiler.reset()

    @cache
    def problem() -> tuple[Tensor, Tensor]:
        return draw_problem(case, dtype, device)

    def provider(entry: Entry) -> Provider:
        def prepare() -> Callable[[], tuple[Tensor, Tensor]]:
            if entry.failure:
                raise (BackendUnavailableError if entry.foreign else RuntimeError)(entry.failure)
            layer, (x, d_y) = build_layer(entry.spec, case, dtype, device), problem()
            leaves = [x, *layer.parameters()]
            run: Callable[[Tensor], tuple[Tensor, Any]]
            run = autotuned(layer) if entry.compiled else layer

            def call() -> tuple[Tensor, Tensor]:
                y, _ = run(x)
                d_x, *_ = torch.autograd.grad(y, leaves, d_y, allow_unused=True)
                return y.detach(), d_x

            return partial(_skipped_if_it_fails, entry, call) if entry.foreign else call

        def error(result: tuple[Tensor, Tensor]) -> float:
            exact = _last_of_all if LAYERS[entry.spec.name].iterative else _last_steps
            judge = build_layer(_judge_of(entry.spec, device), case, dtype, device)
            expected = exact(judge, *problem())
            return max(
                _relative_error(actual[0, -len(right) :], right)
                for actual, right in zip(result, expected, strict=True)
            )

        needed = _required_bytes(entry, case, dtype)
        if entry.projections:
            prepare_part = partial(_projections, entry, case, dtype, device)
            return Provider(entry.name, prepare_part, required_bytes=needed)
        return Provider(entry.name, prepare, error, needed)

    return [provider(entry) for entry in listed]


def moved_bytes(entry: Entry, case: Case, dtype: torch.dtype) -> int:
    """Return the bytes that forward and backward of a layer have to move, whatever it computes.

    Forward reads x and the parameters and writes y; backward reads x, the parameters and the
    gradient of y, and writes the gradients of x and of the parameters.
    """
    inputs = case.num_tokens * case.hidden_size
    return dtype.itemsize * (3 * entry.price.num_parameters + 5 * inputs)


def copied_bytes(listed: Sequence[Entry], case: Case, dtype: torch.dtype) -> int:
    """Return the bytes of the copy beside some layers: those of the one that has to move most."""
    return max(moved_bytes(entry, case, dtype) for entry in listed)


def copy_provider(moved: int, device: DeviceName) -> Provider:
    """Return a provider that copies until so many bytes have been read or written."""
    return Provider(COPY, partial(copying, moved, device), note="the memory roofline")


def _judge_of(spec: LayerSpec, device: DeviceName) -> LayerSpec:
    """Return the layer whose steps in float64 judge another one's."""
    if device != "cuda" or not issubclass(LAYERS[spec.name], GatedRecurrence):
        return spec
    return LayerSpec(spec.name, **{**spec.options, "backend": "reference"})


def _skipped_if_it_fails(
    entry: Entry, call: Callable[[], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Call a layer whose kernels are another package's.

    Raises:
        BackendUnavailableError: if they fail, forward or backward, so that the other layers are
            still measured.
    """
    try:
        return call()
    except Exception as error:
        raise BackendUnavailableError(failure_of(entry.name, error)) from error


def _projections(
    entry: Entry, case: Case, dtype: torch.dtype, device: DeviceName
) -> Callable[[], Any]:
    """Return a call of all that a gated layer does but for its recurrence."""
    layer, (x, d_y) = (
        build_layer(entry.spec, case, dtype, device),
        draw_problem(case, dtype, device),
    )
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


def _required_bytes(entry: Entry, case: Case, dtype: torch.dtype) -> int:
    """Estimate the peak memory of one call, generously; see the test of that name."""
    weights = 4 * entry.price.num_parameters * dtype.itemsize
    inputs = 8 * case.num_tokens * case.hidden_size * dtype.itemsize
    return weights + inputs + int(3 * entry.saved_bytes * case.num_tokens)


def row(
    entry: Entry, case: Case, measurement: Measurement, dtype: str, copied: int
) -> dict[str, Any]:
    """Return the stored row of a measurement, without its provenance.

    Args:
        entry: the layer. Its projections alone have no bytes that must move.
        case: sizes.
        measurement: outcome of the layer.
        dtype: name of the dtype of parameters and activations.
        copied: what :func:`copied_bytes` returns.
    """
    outcome = asdict(measurement)
    torch_dtype: torch.dtype = getattr(torch, dtype)
    moved = None if entry.projections else moved_bytes(entry, case, torch_dtype)
    share = None if moved is None else fraction(measurement, moved / copied)
    time_s, error, flops = measurement.time_s, measurement.relative_error, entry.price.flops
    outcome["time_s"] = time_s and time_s._asdict()
    outcome["ratios"] = {name: ratio._asdict() for name, ratio in measurement.ratios.items()}
    # JSON has no NaN; the reason reports it.
    outcome["relative_error"] = error if error is not None and isfinite(error) else None
    return {
        "benchmark": "layers",
        "case": asdict(case),
        "dtype": dtype,
        "layer": entry.spec.complete().to_plain(),
        "label": entry.label,
        "compiled": entry.compiled,
        "projections": entry.projections,
        "foreign_kernels": entry.foreign,
        **asdict(entry.price),
        "flops": flops and {**flops._asdict(), "total": flops.total},
        "saved_bytes_per_token": (
            None if entry.compiled or entry.projections or entry.failure else entry.saved_bytes
        ),
        "moved_bytes": moved,
        "roofline": share and share._asdict(),
        "tokens_per_s": time_s and case.num_tokens / time_s.p50,
        **outcome,
    }


def _last_steps(layer: Layer, x: Tensor, d_y: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and input gradients of the last tokens of the first sequence, in float64.

    No later token changes an output, so neither depends on gradients of earlier tokens.
    """
    exact = copy.deepcopy(layer).double()
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


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest error relative to the largest entry."""
    return float((actual.double() - expected).abs().max() / expected.abs().max())
