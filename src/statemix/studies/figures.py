"""Figures of results: panels of series with their spread, for light, dark and narrow pages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO

import numpy as np
import seaborn as sns  # type: ignore[import-untyped]
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from statemix.studies.style import DARK, LIGHT, SeriesStyle, Theme, drawing, series_styles

# Least distance between two names at the ends of lines, as a fraction of the panel's height.
_NAME_GAP = 0.06
# Fraction of the panel's width from which a line ends at the edge of the panel.
_EDGE = 0.95
# Beyond this number, names do not fit next to the lines and go into a legend below.
_MOST_NAMES = 12
# Dots per inch of the stored picture, and of its copies in a page.
DPI, PAGE_DPI = 150, 110


@dataclass(frozen=True)
class Series:
    """One line of a panel: the mean over some runs.

    Attributes:
        label: name shown.
        family: name of its layer, or another name; determines the colour.
        runs: x -> y of each run; a line breaks at a NaN. A series without runs is not drawn.
    """

    label: str
    family: str
    runs: Sequence[Mapping[float, float]]

    @property
    def xs(self) -> list[float]:
        """The x values common to all runs."""
        return [x for x in self.runs[0] if all(x in run for run in self.runs)] if self.runs else []


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: text above the panel.
        x_label: label of the x axis.
        y_label: label of the y axis; empty if the left neighbour has it.
        series: lines of the panel. In all panels of a figure a label has the same family.
        x_limits: ends of the x axis.
        x_ticks: ticks of a logarithmic x axis; empty means a linear axis.
        markers: whether to mark every point of the means.
        level: height and name of a horizontal line.
        span: begin, end and name of a grey span.
        marks: name -> places of vertical lines; the name stands above the last one.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_limits: tuple[float, float]
    x_ticks: Sequence[float] = ()
    markers: bool = False
    level: tuple[float, str] | None = None
    span: tuple[float, float, str] | None = None
    marks: Mapping[str, Sequence[float]] = field(default_factory=dict)


def draw(panels: Sequence[Panel], *, theme: Theme = LIGHT, stacked: bool = False) -> Figure:
    """Draw panels of accuracies side by side.

    Thick lines are means over runs, thin lines single runs; bands span the worst to the best.

    Args:
        panels: at least one.
        theme: colours of the page.
        stacked: stack the panels vertically, for a narrow screen.
    """
    series = {one.label: one.family for panel in panels for one in panel.series}
    styles = dict(zip(series, series_styles(list(series.values()), theme), strict=True))
    in_legend = len(series) > _MOST_NAMES
    # Height of the legend in inches; it has four names per row, two on a narrow page.
    legend = 0.25 * -(-len(series) // (2 if stacked else 4)) if in_legend else 0.0
    count = len(panels)
    size = (5.2, 4.1 * count + legend) if stacked else (6.2 * count, 4.5 + legend)
    with drawing(theme):
        figure = Figure(figsize=size, layout="constrained")
        grid = (count, 1) if stacked else (1, count)
        for panel, axes in zip(
            panels, figure.subplots(*grid, sharey=True, squeeze=False).flat, strict=True
        ):
            _fill(axes, panel, styles, theme)
            if not in_legend:
                _name_lines(axes, theme)
        if in_legend:
            handles: dict[str, Artist] = {}
            # Those with markers say most.
            for _, axes in sorted(
                zip(panels, figure.axes, strict=True), key=lambda one: not one[0].markers
            ):
                for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                    handles.setdefault(label, handle)
            figure.legend(
                list(handles.values()),
                list(handles),
                loc="outside lower center",
                ncols=2 if stacked else 4,
                frameon=False,
                fontsize=9,
            )
    return figure


def png(figure: Figure, dpi: int) -> bytes:
    """Render a figure as PNG."""
    stream = BytesIO()
    # Without the software version, equal results give equal files.
    figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()


def variants(draw_one: Callable[..., Figure]) -> dict[str, bytes]:
    """Render a figure for every kind of page: wide_light, wide_dark, narrow_light, narrow_dark.

    Args:
        draw_one: draws the figure, given ``theme`` and ``stacked``.
    """
    return {
        f"{shape}_{name}": png(draw_one(theme=theme, stacked=shape == "narrow"), PAGE_DPI)
        for shape in ("wide", "narrow")
        for name, theme in (("light", LIGHT), ("dark", DARK))
    }


def _fill(axes: Axes, panel: Panel, styles: Mapping[str, SeriesStyle], theme: Theme) -> None:
    for series in panel.series:
        if series.runs:
            _draw_series(axes, series, styles[series.label], markers=panel.markers)
    if panel.x_ticks:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(list(panel.x_ticks)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(*panel.x_limits)
    axes.set_ylim(-0.02, 1.04)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title, loc="left", fontsize=12.5, pad=20)
    if panel.span is not None:
        _mark_span(axes, *panel.span, theme.muted)
    if panel.level is not None:
        _mark_level(axes, *panel.level, theme.muted)
    for number, (name, places) in enumerate(panel.marks.items()):
        _mark_places(axes, places, name, number, theme.muted)
    axes.grid(visible=True, axis="y", color=theme.muted, alpha=0.18, linewidth=0.8)
    axes.tick_params(length=3, labelleft=True)
    sns.despine(ax=axes)


def _draw_series(axes: Axes, series: Series, style: SeriesStyle, *, markers: bool) -> None:
    for run in series.runs:
        axes.plot(list(run), list(run.values()), color=style.colour, linewidth=0.8, alpha=0.55)
    xs = series.xs
    columns = [[run[x] for run in series.runs] for x in xs]
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    axes.fill_between(xs, low, high, color=style.colour, alpha=0.15, linewidth=0)
    (line,) = axes.plot(
        xs,
        [sum(column) / len(column) for column in columns],
        color=style.colour,
        linestyle=style.dashes,
        linewidth=2.4,
        marker=style.marker if markers else None,
        label=series.label,
        zorder=3,
    )
    line.set(markersize=6.5, clip_on=False)


def _mark_span(axes: Axes, begin: float, end: float, name: str, muted: str) -> None:
    axes.axvspan(begin, end, color=muted, alpha=0.10, linewidth=0)
    axes.annotate(
        name,
        ((begin + end) / 2, 1.01),
        xycoords=axes.get_xaxis_transform(),
        ha="center",
        color=muted,
        fontsize=9.5,
    )


def _mark_level(axes: Axes, value: float, name: str, muted: str) -> None:
    axes.axhline(value, color=muted, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.annotate(
        name,
        (0.995, value),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, -5) if value > 0.1 else (0, 4),
        textcoords="offset points",
        ha="right",
        va="top" if value > 0.1 else "bottom",
        color=muted,
        fontsize=9.5,
    )


def _mark_places(axes: Axes, places: Sequence[float], name: str, number: int, muted: str) -> None:
    for place in places:
        axes.axvline(place, color=muted, linestyle=(0, ((1, 2), (4, 3))[number % 2]), linewidth=1.2)
    # Neighbours write away from each other.
    axes.annotate(
        name,
        (places[-1], 1.01),
        xycoords=axes.get_xaxis_transform(),
        xytext=(-3 if number % 2 == 0 else 3, 0),
        textcoords="offset points",
        ha="right" if number % 2 == 0 else "left",
        color=muted,
        fontsize=9.5,
    )


def _name_lines(axes: Axes, theme: Theme) -> None:
    """Write the name of each series at the end of its line, without overlaps."""
    named = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    ends = [(float(np.asarray(line.get_ydata())[-1]), line) for line in named]
    ends.sort(key=lambda end: end[0])
    places = _apart([value for value, _ in ends])
    for (value, line), place in zip(ends, places, strict=True):
        end = float(np.asarray(line.get_xdata())[-1])
        # Within the panel, the way to the name must not look like data.
        to_fraction = axes.transScale + axes.transLimits
        inside = to_fraction.transform((end, value))[0] < _EDGE
        axes.annotate(
            str(line.get_label()),
            (end, value),
            xytext=(1.05, place),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            color=theme.ink,
            fontsize=10.5,
            arrowprops={
                "arrowstyle": "-",
                "color": line.get_color(),
                "linestyle": "dotted" if inside else "solid",
                "linewidth": 1.0 if inside else 1.8,
                "shrinkA": 0,
                "relpos": (0, 0.5),
            },
        )


def _apart(values: Sequence[float]) -> list[float]:
    """Spread ascending places: push them up until apart, then down from the top of the panel."""
    places: list[float] = []
    for value in values:
        places.append(max(value, places[-1] + _NAME_GAP) if places else value)
    top = 1.04
    for index in reversed(range(len(places))):
        places[index] = min(places[index], top)
        top = places[index] - _NAME_GAP
    return places
