"""Time decoding steps of the layers against their projections alone, and against other layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from statemix.errors import RequestError
from statemix.layers import Layer, LayerSpec, price
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.memory import total_bytes
from statemix_lab.bench.harness import (
    Measurement,
    Provider,
    copy_provider,
    relative_error,
    timed_row,
)
from statemix_lab.bench.operator_timing import RecurrenceName
from statemix_lab.bench.timed_devices import DeviceName, check_fits

STEP, PROJECTIONS = "statemix", "projections"
# A step takes microseconds: one timed call makes this many, and fewer of more sequences.
STEPS_PER_CALL = 200
_STEPS_OF_MANY, _MANY = 20, 256
# Backend of our step; None means the one that is chosen by itself.
_KERNELS: dict[DeviceName, str | None] = {"cpu": None, "cuda": "triton"}
# Sequences that are checked: the first ones, and the last.
_CHECKED_SEQUENCES = 4


@dataclass(frozen=True)
class StepCase:
    """Decoding with one layer at one size. For H-LRU, the block size is the order."""

    recurrence: RecurrenceName
    batch_size: int
    hidden_size: int
    block_size: int

    @property
    def spec(self) -> LayerSpec:
        """The layer, whose state has as many entries as it is wide."""
        units = self.hidden_size // self.block_size
        if self.recurrence == "bd_lru":
            return LayerSpec("bd_lru", num_blocks=units, block_size=self.block_size)
        return LayerSpec("h_lru", num_channels=units, order=self.block_size)

    def moved_bytes(self, dtype: torch.dtype, spec: LayerSpec | None = None) -> int:
        """Return the bytes that a step of a layer, by default that of the case, has to move."""
        paid = price(spec or self.spec, hidden_size=self.hidden_size, length=1, dtype=dtype)
        parameters = paid.num_parameters * dtype.itemsize
        tokens = 2 * self.hidden_size * dtype.itemsize
        return parameters + self.batch_size * (paid.decode_bytes - parameters + tokens)

    @property
    def steps_per_call(self) -> int:
        """Number of steps of a timed call."""
        return STEPS_PER_CALL if self.batch_size < _MANY else min(STEPS_PER_CALL, _STEPS_OF_MANY)


def cases(
    recurrences: Sequence[RecurrenceName],
    batch_sizes: Sequence[int],
    hidden_sizes: Sequence[int],
    block_sizes: Sequence[int],
) -> list[StepCase]:
    """Return all combinations."""
    sizes = {"batch_sizes": batch_sizes, "hidden_sizes": hidden_sizes, "block_sizes": block_sizes}
    for name, given in sizes.items():
        if any(size < 1 for size in given):
            raise RequestError(f"{name} must be at least 1, got {tuple(given)}")
    for hidden_size, block_size in product(hidden_sizes, block_sizes):
        if hidden_size % block_size:
            raise RequestError(
                f"hidden_sizes must be multiples of block_sizes, got {hidden_size} and {block_size}"
            )
    listed = [
        StepCase(recurrence, batch_size, hidden_size, block_size)
        for recurrence, hidden_size, block_size, batch_size in product(
            recurrences, hidden_sizes, block_sizes, batch_sizes
        )
    ]
    for case in listed:
        # The projections of values and outputs, and the tokens.
        needed = 4 * case.hidden_size * (2 * case.hidden_size + case.batch_size)
        shown = f"{case.hidden_size} and {case.batch_size}"
        check_fits("hidden_sizes and batch_sizes", shown, needed, total_bytes())
    return listed


def providers(
    case: StepCase,
    dtype: torch.dtype = torch.float32,
    peers: Mapping[str, LayerSpec] | None = None,
    device: DeviceName = "cpu",
) -> list[Provider]:
    """Return what is timed: the projections of the layer, ``step`` of all layers, and a copy."""

    def projections() -> Callable[[], Tensor]:
        layer, x = _layer(case, dtype).to(device), _token(case, dtype).to(device)
        state = x.new_zeros(case.batch_size, layer.out_proj.in_features)

        def call() -> Tensor:
            with torch.inference_mode():
                for _ in range(case.steps_per_call):
                    layer.value_proj(x)
                    layer.gate_proj(x)
                    y: Tensor = layer.out_proj(state)
            return y

        return call

    backend = _KERNELS[device]
    chosen = "" if backend is None else f", backend {backend}"
    ours, exact = (partial(_layer, case, dtype, name) for name in (backend, "reference"))
    listed = [
        Provider(PROJECTIONS, projections, note="gates, values and output, without the recurrence"),
        _steps(STEP, case, dtype, device, ours, exact, chosen),
    ]
    for name, spec in (peers or {}).items():
        build = partial(_built, spec, case, dtype)
        listed.append(_steps(name, case, dtype, device, build, build))
    return [*listed, copy_provider(case.moved_bytes(dtype), device, case.steps_per_call)]


def _steps(
    name: str,
    case: StepCase,
    dtype: torch.dtype,
    device: DeviceName,
    build: Callable[[], Layer],
    build_exact: Callable[[], Layer],
    chosen: str = "",
) -> Provider:
    """Return the provider of a layer's steps, checked against whole sequences in float64."""

    def prepare() -> Callable[[], Tensor]:
        layer, x = build().to(device), _token(case, dtype).to(device)

        def call() -> Tensor:
            with torch.inference_mode():
                state = layer.init_state(case.batch_size)
                for _ in range(case.steps_per_call):
                    y, state = layer.step(x, state)
            return y

        return call

    def error(y: Tensor) -> float:
        checked = [*range(case.batch_size)[:_CHECKED_SEQUENCES], case.batch_size - 1]
        token = _token(case, dtype)[checked].double()
        tokens = token.unsqueeze(1).expand(-1, case.steps_per_call, -1)
        with torch.no_grad():
            expected = build_exact().double()(tokens)[0][:, -1]
        return relative_error(y.cpu()[checked], expected)

    note = f"layer.step with the state of the step before{chosen}"
    return Provider(name, prepare, error, note=note)


def row(
    case: StepCase,
    measurement: Measurement,
    dtype: str = "float32",
    peers: Mapping[str, LayerSpec] | None = None,
) -> dict[str, Any]:
    """Return the stored row of a measurement, without its provenance; times are per step."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    moved = None
    if measurement.provider != PROJECTIONS:
        moved = case.moved_bytes(torch_dtype, (peers or {}).get(measurement.provider))
    time_s, steps = measurement.time_s, case.steps_per_call
    return {
        **timed_row("decode", case, measurement, torch_dtype, moved, case.moved_bytes(torch_dtype)),
        "steps_per_call": steps,
        "time_s": time_s and {name: t / steps for name, t in time_s._asdict().items()},
    }


def _layer(case: StepCase, dtype: torch.dtype, backend: str | None = None) -> GatedRecurrence:
    spec = LayerSpec(case.spec.name, **case.spec.options, backend=backend)
    layer = _built(spec, case, dtype)
    assert isinstance(layer, GatedRecurrence)
    return layer


def _built(spec: LayerSpec, case: StepCase, dtype: torch.dtype) -> Layer:
    layer: Layer = spec.build(hidden_size=case.hidden_size, dtype=dtype)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    return layer


def _token(case: StepCase, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(case.batch_size, case.hidden_size, generator=generator, dtype=dtype)
