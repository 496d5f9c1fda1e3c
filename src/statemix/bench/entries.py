"""The layers of a comparison: whether each can be run, and what it costs without being timed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from statemix.bench import allocation
from statemix.bench.allocation import check_fits
from statemix.bench.compared_layers import is_lost, layer_label
from statemix.bench.timed_devices import Cpu, DeviceName
from statemix.errors import RequestError
from statemix.layers import LAYERS, Layer, LayerSpec, Price, fla, price
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.ops import BackendUnavailableError
from statemix.training.settings import built

BASELINE = LayerSpec("lstm")
"""Layer of the same width that every other one is compared with."""

SCAN = "associative"
"""Backend of the paper's parallel scan."""

# Layers that kernels of flash-linear-attention may run.
_FOREIGN = ("mamba2", "delta_net", "delta_product")
# On a CPU, saved bytes are measured on one sequence of at most so many tokens.
_SAVED_TOKENS = 512
# A fast CPU computes so many in minutes, and a layer is called six times at least.
_MOST_FLOPS = 10**14


@dataclass(frozen=True)
class LayerCase:
    """Sizes of a training step: width of the layer, sequences, and tokens of each."""

    hidden_size: int
    batch_size: int
    length: int

    @property
    def num_tokens(self) -> int:
        """Tokens of one call."""
        return self.batch_size * self.length


@dataclass(frozen=True)
class Entry:
    """A layer of the comparison, with the part of its price that is not timed.

    Attributes:
        name: name and options as users write them, distinct within a comparison.
        spec: the layer.
        price: price of the last token of a sequence.
        saved_bytes: bytes per token that the forward keeps for the backward, parameters excluded;
            None if nothing was counted.
        compiled: whether the whole layer is compiled with max-autotune, as in the paper.
        projections: whether only its projections are timed, without the recurrence.
        foreign: whether kernels of flash-linear-attention may run it here.
    """

    name: str
    spec: LayerSpec
    price: Price
    saved_bytes: float | None
    compiled: bool = False
    projections: bool = False
    foreign: bool = False

    @property
    def label(self) -> str:
        """Name of the layer."""
        return layer_label(self.spec.name, self.spec.options)

    @property
    def title(self) -> str:
        """Name of the layer in tables, with the backend if one was chosen."""
        if self.projections:
            return "its projections"
        backend = "compiled" if self.compiled else self.spec.options.get("backend")
        return self.label if backend is None else f"{self.label}, {backend}"


def check_case(case: LayerCase, dtype: torch.dtype, total: int) -> None:
    """Check that the sizes are positive and that input, output and gradients fit into memory.

    Raises:
        RequestError: otherwise.
    """
    for name, size in asdict(case).items():
        bits = 20 if name == "length" else 31
        if not 1 <= size < 2**bits:
            raise RequestError(f"{name} must be in 1..2^{bits} - 1, got {size}")
    sizes = f"{case.batch_size} x {case.length} x {case.hidden_size}"
    needed = 4 * case.hidden_size * case.num_tokens * dtype.itemsize
    check_fits("batch_size x length x hidden_size", sizes, needed, total)


def entries(
    specs: Mapping[str, LayerSpec], case: LayerCase, dtype: torch.dtype, device: Cpu
) -> list[Entry]:
    """Return the layers with their prices, after checking that each can be run here.

    Layers are given by name, and :func:`check_case` has accepted the case.

    Raises:
        RequestError: if options do not fit a layer, its weights do not fit into memory, it would
            take hours, or it iterates in 16 bits.
        BackendUnavailableError: if a layer asks for a backend that cannot run here.
    """
    prices = {}
    for name, spec in specs.items():
        if is_lost(LAYERS[spec.name], dtype):
            raise RequestError(
                f"layers must not iterate in {str(dtype).removeprefix('torch.')}, where their "
                f"recurrence amplifies rounding errors too much to check them, got {name}"
            )
        prices[name] = _price(name, spec, case, dtype, device)
        _check_time(name, spec, case)
    with device.limited():
        return [
            Entry(
                name,
                spec,
                prices[name],
                _saved_bytes(spec, case, dtype, device.name),
                foreign=device.name == "cuda" and spec.name in _FOREIGN and fla.installed(),
            )
            for name, spec in specs.items()
        ]


def with_variants(
    listed: Sequence[Entry], *, compiled: bool = False, projections: bool = False
) -> list[Entry]:
    """Return the entries, each followed by the variants of it that are requested.

    Args:
        listed: the layers.
        compiled: add the compiled form of each layer that runs the paper's scan.
        projections: add the projections alone of each BD-LRU and H-LRU.

    Raises:
        RequestError: if no layer has a requested variant, or PyTorch compiles fewer at once.
    """
    every = []
    for entry in listed:
        every.append(entry)
        if projections and issubclass(LAYERS[entry.spec.name], GatedRecurrence):
            name = f"{entry.name} projections"
            every.append(replace(entry, name=name, projections=True, saved_bytes=None))
        if compiled and entry.spec.options.get("backend") == SCAN:
            name = f"{entry.name} compiled"
            every.append(replace(entry, name=name, compiled=True, saved_bytes=None))
    count, most = sum(one.compiled for one in every), torch._dynamo.config.recompile_limit
    if compiled and not 1 <= count <= most:
        raise RequestError(
            f"compiled must be used with 1 to {most} layers of backend={SCAN}, got {count}"
        )
    if projections and not any(one.projections for one in every):
        raise RequestError("projections must be used with a layer bd_lru or h_lru, got none")
    return every


def _price(name: str, spec: LayerSpec, case: LayerCase, dtype: torch.dtype, device: Cpu) -> Price:
    sizes = {"hidden_size": case.hidden_size, "length": case.length}
    try:
        paid: Price = built("layers", price, spec, **sizes, dtype=dtype)
    except BackendUnavailableError:
        raise
    except RuntimeError as error:
        # Tensors on "meta" fail only if they are larger than any memory.
        raise RequestError(f"layers must fit into memory, got {name}") from error
    # Weights, their gradients, and the copy in float64 that checks them.
    needed = paid.num_parameters * (2 * dtype.itemsize + torch.float64.itemsize)
    check_fits("layers", f"{name} of width {case.hidden_size}", needed, device.total_bytes())
    return paid


def _check_time(name: str, spec: LayerSpec, case: LayerCase) -> None:
    layer: Layer = spec.build(hidden_size=case.hidden_size, device="meta")
    # The middle token costs as much as the mean of all.
    flops = layer.flops_per_token((case.length + 1) // 2)
    # A backward takes twice as many as its forward.
    needed = 0 if flops is None else 3 * flops.total * case.num_tokens
    if needed > _MOST_FLOPS:
        raise RequestError(
            f"layers must need at most 1e14 FLOPs for forward and backward of {case.batch_size} x "
            f"{case.length} tokens, got {name}, which needs {needed:.1e}"
        )


def _saved_bytes(
    spec: LayerSpec, case: LayerCase, dtype: torch.dtype, device: DeviceName
) -> float | None:
    # On a GPU, every size of the problem has kernels of its own: compile only those that are timed.
    if device == "cpu":
        case = LayerCase(case.hidden_size, 1, min(case.length, _SAVED_TOKENS))
    try:
        layer, (x, _) = build_layer(spec, case, dtype, device), draw_problem(case, dtype, device)
        return allocation.saved_bytes(lambda: layer(x), layer.parameters()) / case.num_tokens
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - the layer fails again when it is timed, and that is reported
        return None


def build_layer(spec: LayerSpec, case: LayerCase, dtype: torch.dtype, device: DeviceName) -> Layer:
    """Return the layer with the same parameters on every call, drawn on the device."""
    layer: Layer = spec.build(hidden_size=case.hidden_size, device=device, dtype=dtype)
    layer.reset_parameters(torch.Generator(device).manual_seed(0))
    return layer


def draw_problem(case: LayerCase, dtype: torch.dtype, device: DeviceName) -> tuple[Tensor, Tensor]:
    """Return the input, which requires its gradient, and the gradient of the output."""
    generator = torch.Generator(device).manual_seed(1)
    shape = (case.batch_size, case.length, case.hidden_size)
    options: dict[str, Any] = {"generator": generator, "dtype": dtype, "device": device}
    x, d_y = (torch.randn(shape, **options) for _ in range(2))
    return x.requires_grad_(), d_y
