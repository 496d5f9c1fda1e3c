"""The paper's figures of accuracies: their panels, lines and points."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from statemix.experiments.reproduction.contenders import (
    CONTENDERS,
    ORDERS,
    Contender,
    bd_lru,
    h_lru,
)
from statemix.experiments.reproduction.protocols import SIZES, ProtocolName, SizeName
from statemix.experiments.reproduction.tables import Cell, Column, column
from statemix.layers import LayerSpec, price
from statemix.training import RunConfig

STATE_SIZES = (48, 96, 192, 384, 768, 1536, 3072, 6144)
"""State sizes of Figure 5; only size "paper" goes beyond 1536."""

KERNEL_SIZES = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Point:
    """A point of a figure: the accuracy of one cell.

    Attributes:
        panel: title of its panel.
        line: label of its line.
        x: place on the x axis.
        cell: its runs.
    """

    panel: str
    line: str
    x: float
    cell: Cell


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Attributes:
        name: name on the command line.
        title: what it shows.
        x_label: label of the x axis.
        lines: label of a line -> its points, as x and model, for a size.
        columns: a panel for each of these columns of the tables, with its first data set alone.
    """

    name: str
    title: str
    x_label: str
    lines: Callable[[SizeName], dict[str, list[tuple[float, Contender]]]]
    columns: tuple[Column, ...]

    def points(self, protocol: ProtocolName, size: SizeName) -> Iterator[Point]:
        """Yield the points, panel by panel."""
        lines = self.lines(size)
        for panel in self.columns:
            for line, models in lines.items():
                for x, model in models:
                    cell = Cell(self.name, model, panel, protocol, size)
                    yield Point(panel.data[0].name, line, x, cell)


_COMPRESSION = column("table3", "compression").first
_COPYING = column("table3", "selective_copying").first
_MIXED = (
    column("table4", "s3_250").first,
    column("table4", "s4_3k").first,
    column("table3", "in_context_recall").first,
    column("table3", "selective_copying").first,
    column("table3", "compression").first,
)


@cache
def _by_flops(size: SizeName) -> dict[str, list[tuple[float, Contender]]]:
    found: dict[str, list[tuple[float, Contender]]] = {}
    for name, contender in CONTENDERS.items():
        # One layer for each model, so that the accuracy is that of the layer whose FLOPs are shown.
        one = _fixed(contender, SIZES[size].state_sizes[0])
        flops = price(one.layer(0), hidden_size=_WIDTH, length=1).flops
        assert flops is not None
        found.setdefault(name.partition(" m=")[0], []).append((flops.transition, one))
    return found


_WIDTH = RunConfig().model.hidden_size


@cache
def _by_order(size: SizeName) -> dict[str, list[tuple[float, Contender]]]:
    del size
    return {
        "BD-LRU": [(m, CONTENDERS[f"BD-LRU m={m}"]) for m in ORDERS],
        "H-LRU": [(m, CONTENDERS[f"H-LRU m={m}"]) for m in ORDERS],
    }


@cache
def _by_gate(size: SizeName) -> dict[str, list[tuple[float, Contender]]]:
    del size
    gates = ("softmax", "sigmoid", "relu", "none", "tanh", "signed")
    return {
        f"{name}, {gate}": [(m, model(m, gate=gate)) for m in ORDERS]
        for name, model in (("BD-LRU", bd_lru), ("H-LRU", h_lru))
        for gate in gates
    }


@cache
def _by_state_size(size: SizeName) -> dict[str, list[tuple[float, Contender]]]:
    entries = [one for one in STATE_SIZES if one <= 1536 or size == "paper"]
    names = (*_named("BD-LRU", 1, 2, 4), *_named("H-LRU", 1, 4, 16))
    return {name: [(one, _fixed(CONTENDERS[name], one)) for one in entries] for name in names}


def _fixed(contender: Contender, state_size: int) -> Contender:
    """Return a model at one state size, without the variants of larger searches."""
    return Contender(contender.name, lambda _: contender.layer(state_size))


def _named(model: str, *orders: int) -> list[str]:
    return [f"{model} m={m}" for m in orders]


@cache
def _non_selective(size: SizeName) -> dict[str, list[tuple[float, Contender]]]:
    del size
    models = (("BD-LRU", bd_lru), ("H-LRU", h_lru))
    return {
        **{
            f"{name}, constant gates": [(m, model(m, selective=False)) for m in ORDERS]
            for name, model in models
        },
        # Such gates see one channel each, so there are as many blocks or channels as the width.
        **{
            f"{name}, pointwise gates": [
                (m, _fixed(model(m, selective="pointwise"), _WIDTH * m)) for m in ORDERS
            ]
            for name, model in models
        },
        **{
            f"convolution, {kind}": [
                (taps, _convolution(taps, depthwise=kind == "depthwise")) for taps in KERNEL_SIZES
            ]
            for kind in ("dense", "depthwise")
        },
    }


def _convolution(taps: int, *, depthwise: bool) -> Contender:
    return Contender(
        f"convolution of {taps}",
        lambda _: LayerSpec("conv", kernel_size=taps, depthwise=depthwise),
    )


FIGURES = {
    figure.name: figure
    for figure in (
        Figure(
            "fig1c",
            "accuracy and FLOPs of the recurrence per step",
            "FLOPs per step",
            _by_flops,
            _MIXED,
        ),
        Figure("fig1d", "accuracy and block size or order", "m", _by_order, _MIXED),
        Figure("fig2", "normalisations on compression", "m", _by_gate, (_COMPRESSION,)),
        Figure(
            "fig5",
            "accuracy and state size",
            "state size",
            _by_state_size,
            (_COMPRESSION, _COPYING),
        ),
        Figure(
            "fig6",
            "non-selective models on compression",
            "m, or taps of the convolution",
            _non_selective,
            (_COMPRESSION,),
        ),
    )
}
"""Name -> figure."""
