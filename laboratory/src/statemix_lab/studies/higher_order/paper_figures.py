"""The paper's figures of accuracies: their panels, lines and points."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from statemix_lab.studies.higher_order.contenders import (
    CONTENDERS,
    ORDERS,
    STATE_SIZES,
    WIDTH,
    Contender,
    bd_lru,
    convolution,
    h_lru,
    layer_price,
    single,
)
from statemix_lab.studies.higher_order.paper_tables import SHORT_COMPRESSION, SHORT_COPYING, column
from statemix_lab.studies.higher_order.protocols import GRIDS, Column, at_state_size, cell
from statemix_lab.studies.study_entries import ProtocolName, SizeName, StudyEntry

KERNEL_SIZES = (2, 4, 8, 16, 32, 64)

Lines = dict[str, list[tuple[float, Contender]]]
"""Label of a line -> its points, as x and model."""


@dataclass(frozen=True)
class View:
    """Panels of a figure, one for each column; if ``sparse``, a laptop has three points a line."""

    title: str
    x_label: str
    lines: Lines | Callable[[SizeName], Lines]
    columns: Callable[[SizeName], tuple[Column, ...]]
    sparse: bool = True

    def entries(self, protocol: ProtocolName, size: SizeName) -> Iterator[StudyEntry]:
        """Yield the points, panel by panel: of all lines the ends first, then what lies between."""
        found = self.lines(size) if callable(self.lines) else self.lines
        most = 3 if self.sparse and size == "laptop" else None
        lines = {label: _ends_first(models)[:most] for label, models in found.items()}
        for panel in self.columns(size):
            name = panel.data[0].name if len(panel.data) == 1 else panel.name
            title = f"{name}, {self.title}" if self.title else name
            for place in range(max(map(len, lines.values()))):
                for line, models in lines.items():
                    for x, model in models[place : place + 1]:
                        labels: Any = {"panel": title, "x_label": self.x_label, "line": line}
                        yield from cell(model, panel, protocol, size, **labels, x=float(x))


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper: what it shows, and its panels."""

    title: str
    views: tuple[View, ...]

    def entries(self, protocol: ProtocolName, size: SizeName) -> Iterator[StudyEntry]:
        """Yield the points, panel by panel."""
        for view in self.views:
            yield from view.entries(protocol, size)


def _ends_first(models: list[tuple[float, Contender]]) -> list[tuple[float, Contender]]:
    """Return the points of a line: the first, the last, the middle, the quarters and so on."""
    found = dict.fromkeys((0, len(models) - 1))
    step = float(len(models) - 1)
    while len(found) < len(models):
        step /= 2
        found |= dict.fromkeys(int(n * step) for n in range(1, round((len(models) - 1) / step)))
    return [models[place] for place in found]


def _compression(size: SizeName) -> tuple[Column, ...]:
    return (SHORT_COMPRESSION if size == "laptop" else column("table3", "compression").first,)


def _copying(size: SizeName) -> tuple[Column, ...]:
    return (SHORT_COPYING if size == "laptop" else column("table3", "selective_copying").first,)


@cache
def _mixed(size: SizeName) -> tuple[Column, ...]:
    tasks = (
        column("table4", "s3_250").first,
        column("table4", "s4_3k").first,
        column("table3", "in_context_recall").first,
        *_copying(size),
        *_compression(size),
    )
    return (*tasks, Column("mean over the five", tuple(one.data[0] for one in tasks)))


@cache
def _by_flops(size: SizeName) -> Lines:
    found: Lines = {}
    for name, contender in CONTENDERS.items():
        # One layer for each model, so that the accuracy is that of the layer whose FLOPs are shown.
        one = at_state_size(contender, GRIDS[size].state_sizes[0])
        flops = layer_price(one.layer(0)).flops
        assert flops is not None
        found.setdefault(name.partition(" m=")[0], []).append((flops.transition, one))
    return found


_MODELS: dict[str, Callable[..., Contender]] = {"BD-LRU": bd_lru, "H-LRU": h_lru}
_GATES = ("softmax", "sigmoid", "relu", "none", "tanh", "signed")

_BY_ORDER: Lines = {name: [(m, CONTENDERS[f"{name} m={m}"]) for m in ORDERS] for name in _MODELS}
_BY_GATE: Lines = {
    f"{name}, {gate}": [(m, model(m, gate=gate)) for m in ORDERS]
    for name, model in _MODELS.items()
    for gate in _GATES
}


@cache
def _by_state_size(size: SizeName) -> Lines:
    entries = [one for one in STATE_SIZES if one <= 1536 or size == "paper"]
    names = [f"BD-LRU m={m}" for m in (1, 2, 4)] + [f"H-LRU m={m}" for m in (1, 4, 16)]
    found = {
        name: [(one, at_state_size(CONTENDERS[name], one)) for one in entries] for name in names
    }
    for name in ("Mamba2", "DeltaNet [-1,1]", "DeltaProduct_4 [-1,1]"):
        layers = CONTENDERS[name].choices(entries[:1], all_variants=GRIDS[size].all_variants)
        for layer in layers:
            line = f"{name}, {layer.options['d_conv']} taps" if name == "Mamba2" else name
            words = [f"{option}={value}" for option, value in layer.options.items()]
            one = single(" ".join([name, *words]), layer)
            found.setdefault(line, []).append((layer_price(one.layer(0)).state_size, one))
    return {line: sorted(points, key=lambda point: point[0]) for line, points in found.items()}


_CONSTANT: Lines = {
    **{
        f"{name}, constant gates": [(m, model(m, selective=False)) for m in ORDERS]
        for name, model in _MODELS.items()
    },
    **{
        f"convolution, {kind}": [(taps, convolution(taps, kind)) for taps in KERNEL_SIZES]
        for kind in ("dense", "depthwise")
    },
}


@cache
def _constant_by_parameters(size: SizeName) -> Lines:
    state = GRIDS[size].state_sizes[0]
    lines: Lines = {}
    for line, points in _CONSTANT.items():
        models = [at_state_size(contender, state) for _, contender in points]
        lines[line] = [(layer_price(one.layer(0)).num_parameters, one) for one in models]
    return lines


def _parameterisations(name: str) -> Lines:
    build = _MODELS[name]
    return {
        f"{name}, constant gates": _CONSTANT[f"{name}, constant gates"],
        # Such gates see one channel each, so there are as many blocks or channels as the width.
        f"{name}, pointwise gates": [
            (m, at_state_size(build(m, selective="pointwise"), WIDTH * m)) for m in ORDERS
        ],
        f"{name}, selective": _BY_ORDER[name],
        **{
            f"{name}, constant gates, {gate}": [
                (m, build(m, selective=False, gate=gate)) for m in ORDERS
            ]
            # The first line has softmax gates.
            for gate in _GATES[1:]
        },
    }


FIGURES = {
    "fig1c": PaperFigure(
        "accuracy and FLOPs of the recurrence per step",
        (View("", "FLOPs per step", _by_flops, _mixed, sparse=False),),
    ),
    "fig1d": PaperFigure(
        "accuracy and block size or order", (View("", "m", _BY_ORDER, _mixed, sparse=False),)
    ),
    "fig2": PaperFigure("normalisations on compression", (View("", "m", _BY_GATE, _compression),)),
    "fig5": PaperFigure(
        "accuracy and state size",
        (
            View(
                "",
                "entries of the state",
                _by_state_size,
                lambda size: (*_compression(size), *_copying(size)),
            ),
        ),
    ),
    "fig6": PaperFigure(
        "non-selective models on compression",
        (
            View("by m", "m, or taps of the convolution", _CONSTANT, _compression),
            View("by size", "parameters", _constant_by_parameters, _compression),
            View("H-LRU", "m", _parameterisations("H-LRU"), _compression),
            View("BD-LRU", "m", _parameterisations("BD-LRU"), _compression),
        ),
    ),
}
"""Name -> figure."""
