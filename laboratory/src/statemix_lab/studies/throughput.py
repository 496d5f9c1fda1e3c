"""Figure 3 of Dubinin et al. from the rows of ``statemix bench layers``.

It has three comparisons: (A) BD-LRU of 128 blocks, (B) layers of hidden size 768, (C) layers of
about 33M parameters. The text of the paper does not state every axis. We draw A against the block
size, and B and C against the length and against the batch size.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
_DASHES = {"sequential": (1, 1.4), "parallel": (4, 1.6), "autotuned": (6, 1.5, 1.2, 1.5)}
_SIZES: Mapping[str, Callable[[Point], int]] = {
    "m": lambda point: point.layer.block_size or 1,
    "T": lambda point: point.length,
    "B": lambda point: point.batch_size,
    "width": lambda point: point.hidden_size,
}


class _Axis(NamedTuple):
    """What varies along a panel: a label that ends with the symbol of a size.

    All points of a panel share some other sizes. The option of the layers that varies is empty if
    no option does.
    """

    label: str
    shared: tuple[str, ...]
    option: str = ""

    def place(self, point: Point) -> int:
        return _SIZES[self.label.split()[-1]](point)


class _Comparison(NamedTuple):
    """A group of panels: its letter in the paper, what its layers have in common, and its axes."""

    letter: str
    title: str
    holds: Callable[[Point], bool]
    axes: Sequence[_Axis]


@dataclass(frozen=True)
class SpeedPanel:
    """One pair of axes: the comparison of the paper, and lines of at least one point.

    A line is its name in the legend -> place on the axis -> the point, in order.
    """

    letter: str
    title: str
    label: str
    lines: Mapping[str, Mapping[int, Point]]

    @property
    def points(self) -> list[Point]:
        """All points."""
        return [point for line in self.lines.values() for point in line.values()]

    def drawn(self) -> Panel:
        """Return the panel of the figure: medians, and the 20th to the 80th percentile."""
        points = [
            (name, point.layer.name, quantile, float(x), speed)
            for name, line in self.lines.items()
            for x, point in line.items()
            for quantile, speed in (point.speed._asdict().items() if point.speed else ())
        ]
        dashes = {
            name: _DASHES.get(point.implementation, "")
            for name, line in self.lines.items()
            for point in line.values()
        }
        return Panel(self.title, self.label, curves(points), rates=True, dashes=dashes)

    def table(self) -> Table:
        """Lay out the points, a line for each."""
        symbol = self.label.split()[-1]
        head = ("layer", "parameters", symbol, "tokens/s", "p20 - p80", "x time of LSTM")
        lines = [
            Line((name, f"{point.num_parameters:,}", f"{x:,}", *_speed_texts(point)))
            for name, line in self.lines.items()
            for x, point in line.items()
        ]
        return Table(head, tuple(lines))


def _speed_texts(point: Point) -> tuple[str, ...]:
    if point.speed is None:
        return "–", "", point.missing
    low, median, high = map(rate_text, point.speed)
    return median, f"{low} - {high}", "" if point.ratio is None else f"{point.ratio.p50:.3g}"


def speed_panels(points: Sequence[Point]) -> tuple[list[SpeedPanel], list[str]]:
    """Return the panels that points of one setting make, and a line for each that cannot be drawn.

    A panel shows the points of the commonest sizes, such as those of one batch size along the
    length. It is drawn if two of its points differ in their places.
    """
    panels, missing = [], []
    for comparison in _COMPARISONS:
        belonging = [point for point in points if comparison.holds(point)]
        for axis in comparison.axes:
            title = f"({comparison.letter}) {comparison.title}"
            sizes, group = _commonest(axis, belonging)
            if _places(axis, group) < 2:
                missing.append(
                    f"{title}, against {axis.label}: fewer than two places were measured"
                )
                continue
            shared = ", ".join(
                f"{name} = {size:,}" for name, size in zip(axis.shared, sizes, strict=True)
            )
            lines = _lines_of(axis, group)
            panels.append(SpeedPanel(comparison.letter, f"{title}\n{shared}", axis.label, lines))
    return panels, missing


def _places(axis: _Axis, points: Sequence[Point]) -> int:
    """Return the number of places at which something was timed."""
    return len({axis.place(point) for point in points if point.speed is not None})


def _commonest(axis: _Axis, points: Sequence[Point]) -> tuple[tuple[int, ...], list[Point]]:
    """Return the shared sizes with the most places, then points, and the points that have them."""
    groups: dict[tuple[int, ...], list[Point]] = defaultdict(list)
    for point in points:
        groups[tuple(_SIZES[name](point) for name in axis.shared)].append(point)
    return max(
        groups.items(),
        key=lambda item: (_places(axis, item[1]), len(item[1]), item[0]),
        default=((), []),
    )


def _lines_of(axis: _Axis, points: Sequence[Point]) -> dict[str, dict[int, Point]]:
    groups: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in sorted(points, key=_order):
        # The layer and its options without the one that varies.
        varying = rf" {axis.option}=\S+" if axis.option else "$"
        groups[re.sub(varying, "", point.provider), point.hidden_size].append(point)
    names = {key: _name(axis, group[0]) for key, group in groups.items()}
    counts = Counter(names.values())
    return {
        # Layers that differ in other options only go by these.
        names[key] if counts[names[key]] == 1 else key[0]: {
            axis.place(point): point for point in sorted(group, key=axis.place)
        }
        for key, group in groups.items()
    }


def _name(axis: _Axis, point: Point) -> str:
    label = display_name(point.layer.name) if axis.option else point.label
    return ", ".join(filter(None, (label, point.implementation)))


def _order(point: Point) -> tuple[object, ...]:
    """Key of the order of lines: layers with a choice of implementations first, by size."""
    layer = point.layer
    chosen = "backend" in layer.model_fields_set
    return not chosen, layer.name, layer.block_size or layer.order or 0, point.implementation


def _is_wide(point: Point) -> bool:
    """Whether the layer and, of our recurrences, also the state have a hidden size of 768."""
    layer = point.layer
    units = layer.num_channels or layer.num_blocks or point.hidden_size
    return point.hidden_size == units * (layer.block_size or 1) == 768


_ALONG_SEQUENCES = (_Axis("length T", ("B",)), _Axis("batch size B", ("T",)))
_COMPARISONS = (
    _Comparison(
        "A",
        "BD-LRU of 128 blocks",
        lambda point: point.layer.name == "bd_lru" and point.layer.num_blocks == 128,
        (_Axis("block size m", ("T", "B", "width"), "block_size"),),
    ),
    _Comparison("B", "hidden size 768", _is_wide, _ALONG_SEQUENCES),
    _Comparison(
        "C",
        "about 33M parameters",
        # At most 5% more or less.
        lambda point: abs(point.num_parameters - 33_000_000) <= 33_000_000 // 20,
        _ALONG_SEQUENCES,
    ),
)


def caption(setting: Setting, points: Sequence[Point]) -> str:
    """Return the title of a figure: what was measured, where, and with which code."""
    versions = list(dict.fromkeys(point.version for point in points))
    commits = f"commit{'s' * (len(versions) > 1)} {', '.join(versions)}"
    return (
        "Training throughput of one layer, forward and backward (Figure 3 of Dubinin et al.)\n"
        f"{setting.title}, {commits}"
    )
