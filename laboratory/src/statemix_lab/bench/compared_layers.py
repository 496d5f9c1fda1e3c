"""The layers of comparisons: names, colours, options of one size, and what each costs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from statemix.errors import RequestError
from statemix.layers import LAYERS, Layer, LayerSpec, Price, fla, price
from statemix.layers.fixed_point.fixed_point_layer import LEAST_BUDGET
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.ops import BackendUnavailableError
from statemix.training.settings import built
from statemix_lab.bench.timed_devices import Cpu, DeviceName, check_fits, saved_bytes

STATE_PER_CHANNEL = 4
"""Entries of the state of a sequence, divided by the width of the layer."""


@dataclass(frozen=True)
class Look:
    """How a layer is shown; its colour has a contrast of 3 with white and with black pages."""

    name: str
    colour: str
    label: Callable[[Mapping[str, Any]], str] = lambda _: ""


def _range(options: Mapping[str, Any]) -> str:
    return f" [{-1 if options.get('allow_neg_eigval', True) else 0}, 1]"


def _mixer(options: Mapping[str, Any]) -> str:
    mixer = options.get("mixer", "householder")
    return f" {mixer}" + ("" if mixer == "kronecker" else f" {options.get('rank', 1)}")


LOOKS = {
    "bd_lru": Look("BD-LRU", "#0072B2", lambda options: f" m={options['block_size']}"),
    "h_lru": Look("H-LRU", "#009E73", lambda options: f" m={options['order']}"),
    "lstm": Look("LSTM", "#D55E00"),
    "mamba2": Look("Mamba-2", "#9A7D0A", lambda options: f" S={options.get('d_state', 128)}"),
    "delta_net": Look("DeltaNet", "#CC79A7", _range),
    "delta_product": Look(
        "DeltaProduct",
        "#7E57C2",
        lambda options: f" n={options.get('num_householder', 4)}{_range(options)}",
    ),
    "attention": Look(
        "Attention", "#7F7F7F", lambda options: " with RoPE" if options.get("rope") else ""
    ),
    "conv": Look("Convolution", "#8C564B", lambda options: f" K={options['kernel_size']}"),
    "fp_rnn": Look("FP-RNN", "#C0392B"),
    "fp_mamba1": Look("FP-Mamba1", "#2E86AB", _mixer),
    "fp_mamba2": Look("FP-Mamba2", "#B8860B", _mixer),
}
"""Name of a layer -> how it is shown. A layer without an entry is shown by its name."""


def display_name(layer: str) -> str:
    """Return the name of a layer in tables and figures."""
    return LOOKS[layer].name if layer in LOOKS else layer


def layer_label(layer: str, options: Mapping[str, Any]) -> str:
    """Return the name of a layer with the options that tell it apart, such as "BD-LRU m=3"."""
    look = LOOKS.get(layer, Look(layer, ""))
    gated = "Gated " if options.get("use_forget_gate") and layer.startswith("delta") else ""
    depthwise = layer == "conv" and options.get("depthwise")
    name = "Depthwise convolution" if depthwise else look.name
    return f"{gated}{name}{look.label(options)}"


def compared(hidden_size: int) -> dict[str, LayerSpec]:
    """Return the layers by name, with their options for a comparison at a width."""
    delta_rule = {"num_heads": max(STATE_PER_CHANNEL * hidden_size // 16**2, 1), "head_dim": 16}
    columns = {"d_state": STATE_PER_CHANNEL // 2}
    iteration = {"contraction": 0.5, "max_iterations": LEAST_BUDGET}
    units = STATE_PER_CHANNEL * hidden_size // 4
    options: dict[str, dict[str, Any]] = {
        "bd_lru": {"num_blocks": units, "block_size": 4},
        "h_lru": {"num_channels": units, "order": 4},
        "lstm": {},
        "delta_net": delta_rule,
        "delta_product": delta_rule,
        "mamba2": {**columns, "head_dim": math.gcd(2 * hidden_size, 64)},
        "conv": {"kernel_size": STATE_PER_CHANNEL + 1},
        "attention": {"num_heads": hidden_size // math.gcd(hidden_size, 64)},
        "fp_rnn": {"expand": STATE_PER_CHANNEL},
        "fp_mamba1": {**columns, **iteration},
        "fp_mamba2": {**columns, **iteration},
    }
    return {name: LayerSpec(name, **chosen) for name, chosen in options.items()}


def is_lost(kind: type[Layer], dtype: torch.dtype) -> bool:
    """Return whether rounding errors of a data type spoil what a layer computes by iteration."""
    return kind.iterative and dtype.itemsize < torch.float32.itemsize


def layers_of_dtype(hidden_size: int, dtype: torch.dtype) -> list[LayerSpec]:
    """Return the compared layers, without those that iterate if the data type has 16 bits."""
    every = compared(hidden_size)
    return [spec for name, spec in every.items() if not is_lost(LAYERS[name], dtype)]


BASELINE = LayerSpec("lstm")
"""Layer of the same width that every other one is compared with."""

SCAN = "associative"
"""Backend of the paper's parallel scan."""

# Layers that kernels of flash-linear-attention may run.
_FOREIGN = ("mamba2", "delta_net", "delta_product")
# On a CPU, saved bytes are measured on one sequence of at most so many tokens.
_SAVED_TOKENS = 512


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
class TimedLayer:
    """A layer of the comparison by its name and options as users write them, and its price.

    Saved bytes are per token and leave out parameters; None if not counted. ``foreign``
    says whether kernels of flash-linear-attention may run it here.
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
    """Raise a RequestError if a size is not positive, or the tensors do not fit into memory."""
    for name, size in asdict(case).items():
        if size < 1:
            raise RequestError(f"{name} must be at least 1, got {size}")
    if case.length >= 2**20:
        raise RequestError(f"length must be below 2^20, got {case.length}")
    sizes = f"{case.batch_size} x {case.length} x {case.hidden_size}"
    needed = 4 * case.hidden_size * case.num_tokens * dtype.itemsize
    check_fits("batch_size x length x hidden_size", sizes, needed, total)


def entries(
    specs: Mapping[str, LayerSpec], case: LayerCase, dtype: torch.dtype, device: Cpu
) -> list[TimedLayer]:
    """Return the layers with their prices, after checking that each can be run here."""
    prices: dict[str, Price] = {}
    sizes = {"hidden_size": case.hidden_size, "length": case.length}
    for name, spec in specs.items():
        if is_lost(LAYERS[spec.name], dtype):
            raise RequestError(
                f"layers must not iterate in {str(dtype).removeprefix('torch.')}, where their "
                f"recurrence amplifies rounding errors too much to check them, got {name}"
            )
        try:
            prices[name] = built("layers", price, spec, **sizes, dtype=dtype)
        except RuntimeError as error:
            # The sizes of tensors on "meta" are larger than any memory, or the layer is at fault.
            if "overflow" not in str(error):
                raise
            raise RequestError(f"layers must fit into memory, got {name}") from error
        # Weights, their gradients, and the copy in float64 that checks them.
        needed = prices[name].num_parameters * (2 * dtype.itemsize + torch.float64.itemsize)
        shown = f"{name} of width {case.hidden_size}"
        check_fits("layers", shown, needed, device.total_bytes())
    with device.limited():
        return [
            TimedLayer(
                name,
                spec,
                prices[name],
                _saved_bytes(spec, case, dtype, device.name),
                foreign=device.name == "cuda" and spec.name in _FOREIGN and fla.installed(),
            )
            for name, spec in specs.items()
        ]


def with_variants(
    listed: Sequence[TimedLayer], *, compiled: bool = False, projections: bool = False
) -> list[TimedLayer]:
    """Return the entries, each followed by the variants of it that are requested."""
    every = []
    for entry in listed:
        every.append(entry)
        if projections and issubclass(LAYERS[entry.spec.name], GatedRecurrence):
            name = f"{entry.name} projections"
            every.append(replace(entry, name=name, projections=True, saved_bytes=None))
        if compiled and entry.spec.options.get("backend") == SCAN:
            name = f"{entry.name} compiled"
            every.append(replace(entry, name=name, compiled=True, saved_bytes=None))
    count = sum(entry.compiled for entry in every)
    most = torch._dynamo.config.recompile_limit
    if compiled and not 1 <= count <= most:
        raise RequestError(
            f"compiled must be used with 1 to {most} layers of backend={SCAN}, got {count}"
        )
    if projections and not any(entry.projections for entry in every):
        raise RequestError("projections must be used with a layer bd_lru or h_lru, got none")
    return every


def _saved_bytes(
    spec: LayerSpec, case: LayerCase, dtype: torch.dtype, device: DeviceName
) -> float | None:
    # On a GPU, every size of the problem has kernels of its own: compile only those that are timed.
    if device == "cpu":
        case = LayerCase(case.hidden_size, 1, min(case.length, _SAVED_TOKENS))
    try:
        layer, (x, _) = build_layer(spec, case, dtype, device), draw_problem(case, dtype, device)
        return saved_bytes(lambda: layer(x), layer.parameters()) / case.num_tokens
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
