"""Figure 3 of Dubinin et al. from the rows of ``statemix bench layers``.

It has three comparisons: (A) BD-LRU of 128 blocks, (B) layers of hidden size 768, (C) layers of
about 33M parameters. The text of the paper does not state every axis. We draw A against the block
size, and B and C against the length and against the batch size.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from statemix_lab.bench.compared_layers import display_name
from statemix_lab.studies.figure import Panel, curves
from statemix_lab.studies.result_text import Line, Table, rate_text
from statemix_lab.studies.throughput_rows import Point, Setting

LEGEND = """\
tokens/s: forward and backward of one layer, the median and the 20th to the 80th percentile over
rounds. x time of LSTM: the median over rounds of its time over that of an LSTM of the same width.
sequential, parallel: a loop over time, and the paper's scan; autotuned: the whole layer with the
paper's scan, compiled with max-autotune."""

# Dashes by implementation; our kernels, and layers without a choice, have solid lines.
_DASHES = {
    "sequential": (1, 1.4),
    "parallel": (4, 1.6),
    "autotuned": (6, 1.5, 1.2, 1.5),
}
_NUM_BLOCKS, _HIDDEN_SIZE, _NUM_PARAMETERS = 128, 768, 33_000_000
# Largest difference from that number of parameters: 5%.
_PARAMETER_TOLERANCE = _NUM_PARAMETERS // 20


class SpeedAxis(NamedTuple):
    """What varies along a panel: a label whose last word is a symbol, and the place of a point.

    ``others`` returns the sizes that all points of a panel share, by name. ``option`` is the option
    of the layers that varies; empty if no option does.
    """

    label: str
    x: Callable[[Point], int]
    others: Callable[[Point], Mapping[str, int]]
    option: str = ""


class SpeedLine(NamedTuple):
    """One line of a panel: name in the legend, and place on the axis -> the point, in order."""

    name: str
    points: Mapping[int, Point]


@dataclass(frozen=True)
class SpeedPanel:
    """One pair of axes: the comparison of the paper, and lines of at least one point."""

    letter: str
    title: str
    axis: SpeedAxis
    lines: Sequence[SpeedLine]

    @property
    def points(self) -> list[Point]:
        """All points."""
        return [point for line in self.lines for point in line.points.values()]

    def drawn(self) -> Panel:
        """Return the panel of the figure: medians, and the 20th to the 80th percentile."""
        points = [
            (line.name, point.layer.name, quantile, float(x), speed)
            for line in self.lines
            for x, point in line.points.items()
            for quantile, speed in (point.speed._asdict().items() if point.speed else ())
        ]
        dashes = {
            line.name: _DASHES.get(point.implementation, "")
            for line in self.lines
            for point in line.points.values()
        }
        return Panel(self.title, self.axis.label, curves(points), rates=True, dashes=dashes)

    def table(self) -> Table:
        """Lay out the points, a line for each."""
        symbol = self.axis.label.split()[-1]
        head = ("layer", "parameters", symbol, "tokens/s", "p20 - p80", "x time of LSTM")
        lines = [
            Line((line.name, f"{point.num_parameters:,}", f"{x:,}", *_speed_texts(point)))
            for line in self.lines
            for x, point in line.points.items()
        ]
        return Table(head, tuple(lines))


def _speed_texts(point: Point) -> tuple[str, ...]:
    if point.speed is None:
        return "–", "", point.missing
    low, median, high = map(rate_text, point.speed)
    ratio = "" if point.ratio is None else f"{point.ratio.p50:.3g}"
    return median, f"{low} - {high}", ratio


class _Comparison(NamedTuple):
    """A group of panels: its letter in the paper, what its layers have in common, and its axes."""

    letter: str
    title: str
    holds: Callable[[Point], bool]
    axes: Sequence[SpeedAxis]


def speed_panels(points: Sequence[Point]) -> tuple[list[SpeedPanel], list[str]]:
    """Return the panels that points of one setting make, and a line for each that cannot be drawn.

    A panel shows the points of the commonest sizes, such as those of one batch size along the
    length. It is drawn if two of its points differ in their places.
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

    def places(sizes: Any) -> int:
        """Return the number of places at which something was timed."""
        return len({axis.x(point) for point in groups[sizes] if point.speed is not None})

    sizes = max(groups, key=lambda sizes: (places(sizes), len(groups[sizes]), sizes), default=None)
    if sizes is None or places(sizes) < 2:
        return None
    shared = ", ".join(f"{name} = {size:,}" for name, size in sizes)
    title = f"({comparison.letter}) {comparison.title}\n{shared}"
    return SpeedPanel(comparison.letter, title, axis, list(_lines_of(axis, groups[sizes])))


def _lines_of(axis: SpeedAxis, points: Sequence[Point]) -> Iterator[SpeedLine]:
    grouped: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in sorted(points, key=_order):
        # The layer and its options without the one that varies.
        model = (
            re.sub(rf" {axis.option}=\S+", "", point.provider) if axis.option else point.provider
        )
        grouped[model, point.hidden_size].append(point)
    names = {key: _name(axis, group[0]) for key, group in grouped.items()}
    counts = Counter(names.values())
    for key, group in grouped.items():
        # Layers that differ in other options only go by these.
        name = names[key] if counts[names[key]] == 1 else key[0]
        yield SpeedLine(name, {axis.x(point): point for point in sorted(group, key=axis.x)})


def _name(axis: SpeedAxis, point: Point) -> str:
    label = display_name(point.layer.name) if axis.option else point.label
    return ", ".join(filter(None, (label, point.implementation)))


def _order(point: Point) -> tuple[object, ...]:
    """Key of the order of lines: layers with a choice of implementations first, by size."""
    layer = point.layer
    chosen = "backend" in layer.model_fields_set
    return not chosen, layer.name, layer.block_size or layer.order or 0, point.implementation


def _is_of_hidden_size(point: Point) -> bool:
    """Whether the layer and, of our recurrences, also the state have the hidden size."""
    layer = point.layer
    units = layer.num_channels or layer.num_blocks or point.hidden_size
    return point.hidden_size == units * (layer.block_size or 1) == _HIDDEN_SIZE


_BLOCK_SIZE = SpeedAxis(
    "block size m",
    lambda point: point.layer.block_size or 1,
    lambda point: {"T": point.length, "B": point.batch_size, "width": point.hidden_size},
    "block_size",
)
_LENGTH = SpeedAxis("length T", lambda point: point.length, lambda point: {"B": point.batch_size})
_BATCH_SIZE = SpeedAxis(
    "batch size B", lambda point: point.batch_size, lambda point: {"T": point.length}
)

_COMPARISONS = (
    _Comparison(
        "A",
        f"BD-LRU of {_NUM_BLOCKS} blocks",
        lambda point: point.layer.name == "bd_lru" and point.layer.num_blocks == _NUM_BLOCKS,
        (_BLOCK_SIZE,),
    ),
    _Comparison("B", f"hidden size {_HIDDEN_SIZE}", _is_of_hidden_size, (_LENGTH, _BATCH_SIZE)),
    _Comparison(
        "C",
        "about 33M parameters",
        lambda point: abs(point.num_parameters - _NUM_PARAMETERS) <= _PARAMETER_TOLERANCE,
        (_LENGTH, _BATCH_SIZE),
    ),
)


def caption(setting: Setting, points: Sequence[Point]) -> str:
    """Return the title of a figure: what was measured, where, and with which code."""
    found = list(dict.fromkeys(point.version for point in points))
    commits = f"commit{'s' * (len(found) > 1)} {', '.join(found)}"
    return (
        "Training throughput of one layer, forward and backward (Figure 3 of Dubinin et al.)\n"
        f"{setting.title}, {commits}"
    )
