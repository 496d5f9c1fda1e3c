"""The layers of a comparison: whether each can be run, and what it costs without being timed."""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from statemix.bench import memory
from statemix.bench.deadline import Deadline, OutOfTime
from statemix.bench.devices import BenchDevice, DeviceName
from statemix.bench.harness import NOT_READY
from statemix.errors import RequestError
from statemix.layers import LAYERS, Layer, LayerSpec, Price, fla, price
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.memory import gigabytes, is_shortage
from statemix.ops import BackendUnavailableError
from statemix.registry import REQUIRED
from statemix.settings import built

BASELINE = LayerSpec("lstm")
"""Layer of the same width that every other one is compared with."""

SCAN = "associative"
"""Backend of the paper's parallel scan."""

# Layers that kernels of flash-linear-attention may run.
_FOREIGN = ("mamba2", "delta_net", "delta_product")
# On a CPU, saved bytes are measured on one sequence of at most so many tokens.
_SAVED_TOKENS = 512
# Entries of activations per output of a projection, at most.
_PER_OUTPUT = 4
# A fast CPU computes so many in minutes, and a layer is called six times at least.
_MOST_FLOPS = 10**14


@dataclass(frozen=True)
class Case:
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
            of a compiled layer those that it would keep if it were not compiled.
        compiled: whether the whole layer is compiled with max-autotune, as in the paper.
        projections: whether only its projections are timed, without the recurrence.
        foreign: whether kernels of flash-linear-attention may run it here.
        failure: why the layer cannot run here; empty if it can.
    """

    name: str
    spec: LayerSpec
    price: Price
    saved_bytes: float
    compiled: bool = False
    projections: bool = False
    foreign: bool = False
    failure: str = ""

    @property
    def label(self) -> str:
        """Name of the layer."""
        return LAYERS[self.spec.name].label(self.spec.options)

    @property
    def title(self) -> str:
        """Name of the layer in tables, with the backend if one was chosen."""
        if self.projections:
            return "its projections"
        backend = "compiled" if self.compiled else self.spec.options.get("backend")
        return self.label if backend is None else f"{self.label}, {backend}"


def registered(hidden_size: int, dtype: torch.dtype) -> list[LayerSpec]:
    """Return the registered layers with their options for comparisons at this width.

    A layer of the user's that leaves a required option open, such as an inner layer, is left out,
    and so are layers that iterate, in 16 bits (see :func:`entries`).
    """
    found = []
    for name, kind in LAYERS.items():
        options = kind.compared(hidden_size)
        required = {o for o, (_, default) in LAYERS.options(name).items() if default is REQUIRED}
        if required <= options.keys() and not _is_lost(kind, dtype):
            found.append(LayerSpec(name, **options))
    return found


def check_case(case: Case, dtype: torch.dtype) -> None:
    """Check that the sizes are positive and that input, output and gradients fit into memory.

    Raises:
        RequestError: otherwise.
    """
    for name, size in asdict(case).items():
        bits = 20 if name == "length" else 31
        if not 1 <= size < 2**bits:
            raise RequestError(f"{name} must be in 1..2^{bits} - 1, got {size}")
    sizes = f"{case.batch_size} x {case.length} x {case.hidden_size}"
    _check_fits(
        "batch_size x length x hidden_size",
        sizes,
        4 * case.hidden_size * case.num_tokens * dtype.itemsize,
    )


def entries(
    specs: Mapping[str, LayerSpec],
    case: Case,
    dtype: torch.dtype,
    device: BenchDevice,
    deadline: Deadline | None = None,
) -> list[Entry]:
    """Return the layers with their prices, after checking that each can be run here.

    A layer that raises an error has a failure, and the others can be run.

    Args:
        specs: name of each layer -> the layer.
        case: the sizes, which :func:`check_case` has checked.
        dtype: dtype of parameters and activations.
        device: where to run.
        deadline: when the first forward of a layer must have ended; None means no deadline.

    Raises:
        RequestError: if options do not fit a layer, it does not fit into memory, it would take
            hours, or it iterates in 16 bits.
        BackendUnavailableError: if a layer asks for a backend that cannot run here.
    """
    for name, spec in specs.items():
        if _is_lost(LAYERS[spec.name], dtype):
            raise RequestError(
                f"layers must not iterate in {str(dtype).removeprefix('torch.')}, where their "
                f"recurrence amplifies rounding errors too much to check them, got {name}"
            )
    prices = {name: _price(name, spec, case, dtype) for name, spec in specs.items()}
    for name, spec in specs.items():
        _check_time(name, spec, case)
    deadline = deadline or Deadline(None)
    return [
        _entry(name, spec, prices[name], case, dtype, device, deadline)
        for name, spec in specs.items()
    ]


def _entry(
    name: str,
    spec: LayerSpec,
    its_price: Price,
    case: Case,
    dtype: torch.dtype,
    device: BenchDevice,
    deadline: Deadline,
) -> Entry:
    foreign = device.name == "cuda" and spec.name in _FOREIGN and fla.installed()
    saved_bytes, failure = 0.0, ""
    try:
        with deadline.enforced():
            saved_bytes = _saved_bytes(name, spec, case, dtype, device)
    except (RequestError, BackendUnavailableError):
        raise
    except OutOfTime:
        failure = NOT_READY
    except Exception as error:  # noqa: BLE001 - the others are measured
        traceback.print_exception(error)
        failure = failure_of(name, error) if foreign else f"{type(error).__name__}: {error}"
    return Entry(name, spec, its_price, saved_bytes, foreign=foreign, failure=failure)


def failure_of(name: str, error: Exception) -> str:
    """Return the words for an error of another package's kernels."""
    return f"flash-linear-attention cannot run {name} here: {error}"


def with_compiled(listed: Sequence[Entry]) -> list[Entry]:
    """Return the entries, each one that runs the paper's scan followed by its compiled form.

    Raises:
        RequestError: if none runs the paper's scan, or more do than PyTorch compiles at once.
    """
    found = []
    for entry in listed:
        found.append(entry)
        if entry.spec.options.get("backend") == SCAN:
            found.append(replace(entry, name=f"{entry.name} compiled", compiled=True))
    count, most = len(found) - len(listed), torch._dynamo.config.recompile_limit
    if not 1 <= count <= most:
        raise RequestError(
            f"compiled must be used with 1 to {most} layers of backend={SCAN}, got {count}"
        )
    return found


def projections_of(name: str) -> str:
    """Return the name of the projections of a layer with this name."""
    return f"{name} projections"


def with_projections(listed: Sequence[Entry]) -> list[Entry]:
    """Return the entries, each one of BD-LRU or H-LRU followed by its projections alone.

    Raises:
        RequestError: if there is none.
    """
    found = []
    for entry in listed:
        found.append(entry)
        if issubclass(LAYERS[entry.spec.name], GatedRecurrence) and not entry.compiled:
            found.append(replace(entry, name=projections_of(entry.name), projections=True))
    if len(found) == len(listed):
        raise RequestError("projections must be used with a layer bd_lru or h_lru, got none")
    return found


def _is_lost(kind: type[Layer], dtype: torch.dtype) -> bool:
    return kind.iterative and dtype.itemsize < torch.float32.itemsize


def _price(name: str, spec: LayerSpec, case: Case, dtype: torch.dtype) -> Price:
    sizes = {"hidden_size": case.hidden_size, "length": case.length}
    try:
        found: Price = built("layers", price, spec, **sizes, dtype=dtype)
        # It needs modules of PyTorch that are not public.
        from statemix.layers.largest import largest_tensor

        largest = largest_tensor(spec, **sizes, batch_size=1, dtype=dtype)
    except BackendUnavailableError:
        raise
    except RuntimeError as error:
        # Tensors on "meta" fail only if they are larger than any memory.
        raise RequestError(f"layers must fit into memory, got {name}") from error
    # Weights, their gradients, and the copy in float64 that checks them.
    weights = found.num_parameters * (2 * dtype.itemsize + torch.float64.itemsize)
    outputs = found.num_parameters // case.hidden_size
    activations = _PER_OUTPUT * outputs * min(case.length, _SAVED_TOKENS) * dtype.itemsize
    _check_fits("layers", _of_width(name, case), weights + max(activations, largest))
    return found


def _of_width(name: str, case: Case) -> str:
    return f"{name} of width {case.hidden_size}"


def _check_time(name: str, spec: LayerSpec, case: Case) -> None:
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


def _check_fits(name: str, shown: str, needed: int) -> None:
    total = memory.total_bytes()
    if needed > total:
        raise RequestError(
            f"{name} must fit into memory ({gigabytes(total)}), got {shown}, which needs "
            f"{gigabytes(needed)}"
        )


def _saved_bytes(
    name: str, spec: LayerSpec, case: Case, dtype: torch.dtype, device: BenchDevice
) -> float:
    on_cpu = device.name != "cuda"
    # On a GPU, every size of the problem has kernels of its own: compile only those that are timed.
    one = Case(case.hidden_size, 1, min(case.length, _SAVED_TOKENS)) if on_cpu else case
    layer, (x, _) = (
        build_layer(spec, one, dtype, device.name),
        draw_problem(one, dtype, device.name),
    )
    try:
        return memory.saved_bytes(lambda: layer(x), layer.parameters()) / one.num_tokens
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error) or (not on_cpu and case.batch_size == 1):
            raise
        if not on_cpu:
            # Smaller batches may be asked for, too, and each is tried by itself.
            return _saved_bytes(name, spec, Case(case.hidden_size, 1, case.length), dtype, device)
        # The estimate counts the largest tensor alone.
        total = gigabytes(device.total_bytes())
        raise RequestError(
            f"layers must fit into memory ({total}), got {_of_width(name, case)}: {error}"
        ) from error


def build_layer(spec: LayerSpec, case: Case, dtype: torch.dtype, device: DeviceName) -> Layer:
    """Return the layer with the same parameters on every call, drawn on the device."""
    layer: Layer = spec.build(hidden_size=case.hidden_size, device=device, dtype=dtype)
    layer.reset_parameters(torch.Generator(device).manual_seed(0))
    return layer


def draw_problem(case: Case, dtype: torch.dtype, device: DeviceName) -> tuple[Tensor, Tensor]:
    """Return the input, which requires its gradient, and the gradient of the output."""
    generator = torch.Generator(device).manual_seed(1)
    shape = (case.batch_size, case.length, case.hidden_size)
    options: dict[str, Any] = {"generator": generator, "dtype": dtype, "device": device}
    x, d_y = (torch.randn(shape, **options) for _ in range(2))
    return x.requires_grad_(), d_y
