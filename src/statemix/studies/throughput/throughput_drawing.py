"""Draw throughput: a row of panels for each comparison, with its legend beside it."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import seaborn as sns  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from statemix.studies.figure import LIGHT, MARKERS, drawing, series_colours
from statemix.studies.throughput.points import Setting
from statemix.studies.throughput.throughput_panels import SpeedLine, SpeedPanel
from statemix.studies.throughput.throughput_text import commits, rate_text

# Inches of a panel, of the legend beside a row, of a line in it, and of the title of a row.
_WIDTH, _HEIGHT, _LEGEND, _ENTRY, _TITLE = 3.9, 3.1, 2.9, 0.21, 0.8
# Dashes by implementation; our kernels and layers without a choice are solid.
_DASHES: Mapping[str, Any] = {
    "sequential": (0, (1, 1.4)),
    "parallel": (0, (4, 1.6)),
    "autotuned": (0, (6, 1.5, 1.2, 1.5)),
}


def draw(setting: Setting, panels: Sequence[SpeedPanel]) -> Figure:
    """Draw panels of one setting: lines are medians, bands span the 20th to the 80th percentile.

    Args:
        setting: device, threads and dtype, for the title.
        panels: at least one, those of a comparison next to each other.
    """
    rows = [list(row) for _, row in groupby(panels, key=lambda panel: panel.letter)]
    heights = [max(_HEIGHT, _TITLE + _ENTRY * len(_legend(row))) for row in rows]
    width = _WIDTH * max(map(len, rows)) + _LEGEND
    with drawing():
        figure = Figure(figsize=(width, sum(heights) + 0.7), layout="constrained")
        figure.suptitle(_caption(setting, panels), x=0.01, ha="left", fontsize=11)
        parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)
        for part, row in zip(parts[:, 0], rows, strict=True):
            _draw_row(part, row, columns=max(map(len, rows)))
    return figure


def _caption(setting: Setting, panels: Sequence[SpeedPanel]) -> str:
    points = [point for panel in panels for point in panel.points]
    return (
        "Training throughput of one layer, forward and backward (Figure 3 of Dubinin et al.)\n"
        f"{setting.title}, {commits(points)}"
    )


def _legend(row: Sequence[SpeedPanel]) -> dict[str, SpeedLine]:
    """Return the lines of a row by their names."""
    return {line.name: line for panel in row for line in panel.lines if _drawn(line)}


def _drawn(line: SpeedLine) -> bool:
    return any(point.speed is not None for point in line.points.values())


def _draw_row(part: SubFigure, row: Sequence[SpeedPanel], *, columns: int) -> None:
    lines = _legend(row)
    styles = _styles(list(lines.values()))
    grid = part.subplots(1, columns + 1, width_ratios=[_WIDTH] * columns + [_LEGEND])
    for axes in grid[len(row) :]:
        axes.set_axis_off()
    for place, (axes, panel) in enumerate(zip(grid, row, strict=False)):
        if place:
            axes.sharey(grid[0])
        _fill(axes, panel, styles)
    grid[0].set_ylabel("tokens per second", fontsize=10)
    handles: dict[str, Any] = {}
    for axes in grid[: len(row)]:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    # In the empty place next to the last panel.
    grid[len(row)].legend(
        [handles[name] for name in lines],
        list(lines),
        loc="upper left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0,
        frameon=False,
        fontsize=9,
        handlelength=3.4,
    )


def _styles(lines: Sequence[SpeedLine]) -> dict[str, dict[str, Any]]:
    """Return colour and marker by layer and dashes by implementation, by name of the line."""
    layers = {(line.family, line.label): line.family for line in lines}
    colours = dict(zip(layers, series_colours(list(layers.values())), strict=True))
    markers = {layer: MARKERS[place % len(MARKERS)] for place, layer in enumerate(layers)}
    return {
        line.name: {
            "color": colours[line.family, line.label],
            "marker": markers[line.family, line.label],
            "linestyle": _DASHES.get(line.implementation, "solid"),
        }
        for line in lines
    }


def _fill(axes: Axes, panel: SpeedPanel, styles: Mapping[str, Mapping[str, Any]]) -> None:
    for line in panel.lines:
        if _drawn(line):
            _draw_line(axes, line, styles[line.name])
    xs = sorted({panel.axis.x(point) for point in panel.points})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(xs))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rate_text(value)))
    axes.set_xlabel(panel.axis.label, fontsize=10)
    axes.set_title(panel.title, loc="left", fontsize=10.5)
    axes.grid(visible=True, axis="y", color=LIGHT.muted, alpha=0.18, linewidth=0.8)
    axes.tick_params(length=3, labelsize=9)
    sns.despine(ax=axes)


def _draw_line(axes: Axes, line: SpeedLine, style: Mapping[str, Any]) -> None:
    speeds = {x: point.speed for x, point in line.points.items() if point.speed is not None}
    low = [speed.p20 for speed in speeds.values()]
    high = [speed.p80 for speed in speeds.values()]
    axes.fill_between(list(speeds), low, high, color=style["color"], alpha=0.15, linewidth=0)
    medians = [speed.p50 for speed in speeds.values()]
    axes.plot(list(speeds), medians, **style, linewidth=1.9, markersize=5.5, label=line.name)
