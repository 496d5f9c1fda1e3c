"""Gates of 0 and 1 that rounding could move: two largest raw gates that nearly tie."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.models import ReadoutModel
from statemix.ops.layout import at_least_float32


@dataclass
class GateGaps:
    """Differences between the largest and the second largest raw gate of all rows or columns seen.

    Attributes:
        smallest: the smallest difference; infinite if none was seen.
        nearest: the smallest difference beyond what rounding can move; if it is not above 0,
            another order of sums may choose another gate.
    """

    smallest: float = math.inf
    nearest: float = math.inf

    @property
    def finite(self) -> float | None:
        """The smallest difference; None if none was seen."""
        return self.smallest if math.isfinite(self.smallest) else None

    @property
    def doubt(self) -> str:
        """Why another order of sums may choose other gates; empty if none may."""
        if self.nearest > 0:
            return ""
        gates = "two gates of a row or column"
        return f"rounding may swap {gates}, which differ by {self.smallest:.2g}"

    def add(self, gaps: Tensor, moved: Tensor) -> None:
        """Take note of differences, and of how far rounding can move each."""
        if gaps.numel():
            self.smallest = min(self.smallest, float(gaps.min()))
            self.nearest = min(self.nearest, float((gaps - moved).min()))


@contextmanager
def watch_gaps(model: ReadoutModel, units: Sequence[int] | None = None) -> Iterator[GateGaps]:
    """Watch the raw gates of a model's layers while it runs in this context.

    Args:
        model: the model.
        units: units whose gates matter, of a model of one layer; None means all of all layers.
    """
    gaps, hooks = GateGaps(), []
    for layer in model.modules():
        # Gates that are linear in one channel are rounded alike in every batch.
        if isinstance(layer, GatedRecurrence) and layer.selective is True:
            hook = partial(_note, gaps, layer, units)
            hooks.append(layer.gate_proj.register_forward_hook(hook))
    try:
        yield gaps
    finally:
        for handle in hooks:
            handle.remove()


def rounding_of(projection: nn.Linear, x: Tensor) -> Tensor:
    r"""Return how far another order of sums can move what a linear map returns.

    A product of n terms has the error

    .. math:: |\hat z - z| \le k\,u\,(|W|\,|x| + |b|)

    whatever the order of their sum, with the unit roundoff u and k = 2 n + 32 roundings: n of the
    product, and as many of the norm that x comes from. Sums are float32 or wider; a narrower x and
    z are rounded once more each. Errors of the state that x may depend on are not counted. Source:
    our addition; the bound is the usual one of inner products (Higham, "Accuracy and Stability of
    Numerical Algorithms", 3.1).

    Args:
        projection: the map.
        x: what it reads, shape (..., n).
    """
    bias = None if projection.bias is None else projection.bias.abs()
    sizes = functional.linear(x.abs(), projection.weight.abs(), bias)
    wide = at_least_float32(x.dtype)
    roundings = (2 * projection.in_features + 32) * torch.finfo(wide).eps / 2
    if x.dtype != wide:
        roundings += torch.finfo(x.dtype).eps
    return roundings * sizes


def _note(
    gaps: GateGaps,
    layer: GatedRecurrence,
    units: Sequence[int] | None,
    projection: nn.Linear,
    read: tuple[Any, ...],
    flat: Tensor,
) -> None:
    (x,) = read
    with torch.no_grad():
        moved = rounding_of(projection, x)
        parts = [layer.split_gates(numbers) for numbers in (flat, moved)]
        if units is not None:
            chosen = torch.tensor(units, dtype=torch.int64, device=flat.device)
            parts = [part.index_select(x.ndim - 1, chosen) for part in parts]
        for gates, errors in zip(*(_compared(layer, part) for part in parts), strict=True):
            largest = gates.topk(2, dim=-1).values
            gaps.add(largest[..., 0] - largest[..., 1], 2 * errors.amax(-1))


def _compared(layer: GatedRecurrence, gates: Tensor) -> list[Tensor]:
    """Return gates of which the largest along the last axis becomes 1; there are at least two."""
    if layer.gate != "column_softmax":
        return [gates]
    # A zero stands for the state, beside the input gates.
    inputs = functional.pad(gates[..., -1], (0, 1))
    return [inputs] if gates.shape[-2] == 1 else [inputs, gates[..., :-1].mT]
