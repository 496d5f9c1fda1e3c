"""Arrange points like Figure 3 of Dubinin et al.: three comparisons along one or two axes.

(A) BD-LRU of 128 blocks, (B) layers of hidden size 768, (C) layers of about 33M parameters. The
text of the paper does not state every axis. We draw A against the block size, and B and C against
the length and against the batch size.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statemix.bench.compared_layers import display_name
from statemix.studies.throughput.points import Point

_NUM_BLOCKS, _HIDDEN_SIZE, _NUM_PARAMETERS = 128, 768, 33_000_000
# Largest difference from that number of parameters: 5%.
_PARAMETER_TOLERANCE = _NUM_PARAMETERS // 20


class SpeedAxis(NamedTuple):
    """What varies along a panel.

    Attributes:
        label: label of the axis.
        x: returns the place of a point on the axis.
        others: returns the sizes that all points of a panel share, by name.
        option: option of the layers that varies; empty if no option does.
    """

    label: str
    x: Callable[[Point], int]
    others: Callable[[Point], Mapping[str, int]]
    option: str = ""


@dataclass(frozen=True)
class SpeedLine:
    """One line of a panel.

    Attributes:
        name: name in the legend.
        family: registered name of the layer.
        label: name of the layer; lines of equal labels share a colour.
        implementation: see :class:`Point`.
        points: place on the axis -> the point, in order.
    """

    name: str
    family: str
    label: str
    implementation: str
    points: Mapping[int, Point]


@dataclass(frozen=True)
class SpeedPanel:
    """One pair of axes.

    Attributes:
        letter: letter of the comparison in the paper.
        title: the comparison, and the sizes that all points share.
        axis: what varies.
        lines: lines of at least one point.
    """

    letter: str
    title: str
    axis: SpeedAxis
    lines: Sequence[SpeedLine]

    @property
    def points(self) -> list[Point]:
        """All points."""
        return [point for line in self.lines for point in line.points.values()]


class _Comparison(NamedTuple):
    """A group of panels.

    Attributes:
        letter: letter in the paper.
        title: what its layers have in common.
        holds: returns whether a point belongs to it.
        axes: axes of its panels.
    """

    letter: str
    title: str
    holds: Callable[[Point], bool]
    axes: Sequence[SpeedAxis]


def panels(points: Sequence[Point]) -> tuple[list[SpeedPanel], list[str]]:
    """Return the panels that can be drawn, and a line for each one that cannot.

    A panel shows the points of the commonest sizes, such as those of one batch size along the
    length. It is drawn if two of its points differ in their places.

    Args:
        points: points of one setting.
    """
    found, missing = [], []
    for comparison in _COMPARISONS:
        belonging = [point for point in points if comparison.holds(point)]
        for axis in comparison.axes:
            panel = _panel(comparison, axis, belonging)
            if panel is None:
                against = f"({comparison.letter}) {comparison.title}, against {axis.label}"
                missing.append(f"{against}: fewer than two places were measured")
            else:
                found.append(panel)
    return found, missing


def _panel(comparison: _Comparison, axis: SpeedAxis, points: Sequence[Point]) -> SpeedPanel | None:
    groups: dict[tuple[tuple[str, int], ...], list[Point]] = defaultdict(list)
    for point in points:
        groups[tuple(axis.others(point).items())].append(point)
    curves = {sizes: group for sizes, group in groups.items() if _places(axis, group) > 1}
    if not curves:
        return None
    sizes = max(curves, key=lambda sizes: (_places(axis, curves[sizes]), len(curves[sizes]), sizes))
    shared = ", ".join(f"{name} = {size:,}" for name, size in sizes)
    title = f"({comparison.letter}) {comparison.title}\n{shared}"
    return SpeedPanel(comparison.letter, title, axis, _lines(axis, curves[sizes]))


def _places(axis: SpeedAxis, points: Sequence[Point]) -> int:
    """Return the number of places at which something was timed."""
    return len({axis.x(point) for point in points if point.speed is not None})


def _lines(axis: SpeedAxis, points: Sequence[Point]) -> list[SpeedLine]:
    grouped: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in sorted(points, key=_order):
        grouped[_model(axis, point), point.hidden_size].append(point)
    names = {key: _name(axis, group[0]) for key, group in grouped.items()}
    counts = Counter(names.values())
    return [
        SpeedLine(
            # Layers that differ in other options only go by these.
            names[key] if counts[names[key]] == 1 else key[0],
            group[0].family,
            _label(axis, group[0]),
            group[0].implementation,
            {axis.x(point): point for point in sorted(group, key=axis.x)},
        )
        for key, group in grouped.items()
    ]


def _model(axis: SpeedAxis, point: Point) -> str:
    """Return the layer and its options without the one that varies."""
    return re.sub(rf" {axis.option}=\S+", "", point.provider) if axis.option else point.provider


def _label(axis: SpeedAxis, point: Point) -> str:
    return display_name(point.family) if axis.option else point.label


def _name(axis: SpeedAxis, point: Point) -> str:
    return ", ".join(filter(None, (_label(axis, point), point.implementation)))


def _order(point: Point) -> tuple[object, ...]:
    """Key of the order of lines: layers with a choice of implementations first, by size."""
    options = point.options
    size = options.get("block_size", options.get("order", 0))
    return "backend" not in options, point.family, size, point.implementation


def _is_of_128_blocks(point: Point) -> bool:
    return point.family == "bd_lru" and point.options.get("num_blocks") == _NUM_BLOCKS


def _is_of_hidden_size(point: Point) -> bool:
    """Whether the layer and, of our recurrences, also the state have the hidden size."""
    options = point.options
    units = options.get("num_channels", options.get("num_blocks", point.hidden_size))
    entries: int = units * options.get("block_size", 1)
    return point.hidden_size == entries == _HIDDEN_SIZE


def _is_of_33m_parameters(point: Point) -> bool:
    return abs(point.num_parameters - _NUM_PARAMETERS) <= _PARAMETER_TOLERANCE


_BLOCK_SIZE = SpeedAxis(
    "block size m",
    lambda point: int(point.options["block_size"]),
    lambda point: {"T": point.length, "B": point.batch_size, "width": point.hidden_size},
    "block_size",
)
_LENGTH = SpeedAxis("length T", lambda point: point.length, lambda point: {"B": point.batch_size})
_BATCH_SIZE = SpeedAxis(
    "batch size B", lambda point: point.batch_size, lambda point: {"T": point.length}
)

_COMPARISONS = (
    _Comparison("A", "BD-LRU of 128 blocks", _is_of_128_blocks, (_BLOCK_SIZE,)),
    _Comparison("B", "hidden size 768", _is_of_hidden_size, (_LENGTH, _BATCH_SIZE)),
    _Comparison("C", "about 33M parameters", _is_of_33m_parameters, (_LENGTH, _BATCH_SIZE)),
)
