"""Figures of results: panels of lines, each the mean over runs with its range."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from typing import Any, NamedTuple

import polars as pl
import seaborn as sns  # type: ignore[import-untyped]
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from statemix_lab.bench.compared_layers import LOOKS
from statemix_lab.studies.result_text import rate_text

DPI = 150
"""Dots per inch of a stored picture."""


class Theme(NamedTuple):
    """Colours of a page: background, text, secondary text, borders, links, negative numbers."""

    paper: str
    ink: str
    muted: str
    line: str
    accent: str
    negative: str = "#b2182b"


LIGHT = Theme("#ffffff", "#1c2430", "#5b6573", "#dde2e9", "#0b62a3")
DARK = Theme("#12161c", "#e8ebf0", "#9aa4b2", "#2c3440", "#6bb8f5")

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_DASHES: tuple[Any, ...] = ("", (5, 1.5), (1.5, 1.2), (6, 1.5, 1.5, 1.5))
# Panels in a row.
_ACROSS = 3

CURVE: dict[str, Any] = {
    "line": pl.String,
    "family": pl.String,
    "run": pl.String,
    "x": pl.Float64,
    "y": pl.Float64,
}
"""Columns of curves: name of the line, name of its layer (for the colour), run, place and value."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes, with curves that have the columns of :data:`CURVE`.

    ``by_run`` draws each run alone, without a mean; ``rates`` draws medians and whole ranges of
    tokens per second. ``marks`` are vertical lines, ``dashes`` those of lines where they have a
    meaning, and ``limits`` the ends of the y axis, None those of the data.
    """

    title: str
    x_label: str
    curves: pl.DataFrame
    logarithmic: bool = True
    by_run: bool = False
    marks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rates: bool = False
    dashes: Mapping[str, Any] = field(default_factory=dict)
    limits: tuple[float, float] | None = (-0.02, 1.04)


def draw(
    panels: Sequence[Panel], y_label: str = "accuracy on test sequences", title: str = ""
) -> Figure:
    """Draw panels with one legend; accuracies have one y axis."""
    dashes = {name: style for panel in panels for name, style in panel.dashes.items()}
    curves = pl.concat([panel.curves.cast(pl.Schema(CURVE)) for panel in panels])
    families = dict(curves.select("line", "family").unique(maintain_order=True).iter_rows())
    names = list(families)
    looks = {
        "palette": dict(zip(names, series_colours(list(families.values())), strict=True)),
        "markers": {name: MARKERS[place % 10] for place, name in enumerate(names)},
        "dashes": {
            name: dashes.get(name, _DASHES[place // 10 % 4]) for place, name in enumerate(names)
        },
    }
    across = min(len(panels), _ACROSS)
    down = -(-len(panels) // across)
    columns = min(len(names), 2 * across)
    height = 3.6 * down + 0.25 * -(-len(names) // columns) + 0.6 * bool(title)
    with drawing():
        figure = Figure(figsize=(4.8 * across, height), layout="constrained")
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        grid = figure.subplots(down, across, squeeze=False, sharey=not panels[0].rates)
        for place, axes in enumerate(grid.flat):
            if place < len(panels):
                _fill(axes, panels[place], looks)
                axes.set_ylabel("" if place % across else y_label)
            else:
                axes.remove()
        handles: dict[str, Artist] = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        style: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 9}
        figure.legend(list(handles.values()), list(handles), ncols=columns, **style)
    return figure


def _fill(axes: Axes, panel: Panel, looks: Mapping[str, Any]) -> None:
    data = panel.curves.to_dict(as_series=False)
    common = {"data": data, "x": "x", "y": "y", "hue": "line", "ax": axes}
    if panel.curves.height and not panel.rates:
        thin = {"linewidth": 2.0} if panel.by_run else {"linewidth": 0.8, "alpha": 0.5}
        thin |= {"palette": looks["palette"], "legend": panel.by_run or False}
        sns.lineplot(**common, units="run", estimator=None, **thin)
    if panel.curves.height and not panel.by_run:
        sns.lineplot(
            **common,
            **looks,
            style="line",
            estimator="median" if panel.rates else "mean",
            errorbar=("pi", 100),
            err_kws={"alpha": 0.15, "linewidth": 0},
            linewidth=2.2,
            markersize=6.5,
            markeredgewidth=0,
        )
    if legend := axes.get_legend():
        legend.remove()
    if panel.logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(_ticks(sorted(set(data["x"])))))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    for number, (name, places) in enumerate(panel.marks.items()):
        style: dict[str, Any] = {
            "color": LIGHT.muted,
            "linestyle": (0, ((1, 2), (4, 3))[number % 2]),
        }
        for place in places:
            label = name if place == places[0] else None
            axes.axvline(place, linewidth=1.2, label=label, **style)
    if panel.rates:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rate_text(value)))
    elif panel.limits is not None:
        axes.set_ylim(panel.limits)
    axes.set_xlabel(panel.x_label)
    axes.set_title(panel.title, loc="left", fontsize=11.5)
    axes.grid(visible=True, axis="y", color=LIGHT.muted, alpha=0.18, linewidth=0.8)
    axes.tick_params(length=3, labelleft=True)
    sns.despine(ax=axes)


def _ticks(places: Sequence[float]) -> Sequence[float]:
    """Return places whose labels fit below a panel: all of them, or powers of 4 or 16."""
    base = 4.0
    while len(" ".join(f"{place:,.0f}" for place in places)) > 36:
        powers = [base**power for power in range(12)]
        places = [power for power in powers if places[0] <= power <= places[-1]]
        base *= base
    return places


def series_colours(families: Sequence[str]) -> list[str]:
    """Return a colour for each series, given the name of its layer, or any other name."""
    others = [name for name in dict.fromkeys(families) if name not in LOOKS]
    palette = sns.color_palette("husl", len(others), desat=0.8).as_hex()
    colours = dict(zip(others, palette, strict=True))
    colours |= {name: look.colour for name, look in LOOKS.items()}
    shades = {}
    for family in dict.fromkeys(families):
        colour, count = colours[family], families.count(family)
        # The ends stay away from black and white, so that lines can be seen on every page.
        dark, light = (sns.blend_palette([colour, end], 11)[3] for end in ("black", "white"))
        several = (
            sns.blend_palette([dark, colour, light], count).as_hex() if count > 1 else [colour]
        )
        shades[family] = iter(several)
    return [next(shades[family]) for family in families]


def curves(lines: Iterable[tuple[str, str, str, float, float]]) -> pl.DataFrame:
    """Return points (line, family, run, x, y) as a table of curves."""
    return pl.DataFrame(list(lines), schema=CURVE, orient="row")


@contextmanager
def drawing() -> Iterator[None]:
    """Set the style of matplotlib within this context."""
    words = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
    marks = ("axes.edgecolor", "xtick.color", "ytick.color")
    colours = dict.fromkeys(words, LIGHT.ink) | dict.fromkeys(marks, LIGHT.muted)
    # Text that readers can select and that takes the font of the page.
    vectors = {"svg.fonttype": "none", "svg.hashsalt": "statemix"}
    style = sns.axes_style("ticks", rc={**colours, **vectors, "font.size": 11})
    with style, sns.plotting_context("notebook", rc={"font.size": 11}):
        yield


def png(figure: Figure, dpi: int = DPI) -> bytes:
    """Render a figure as PNG."""
    stream = BytesIO()
    # Without the software version, equal results give equal files.
    figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()


def svg(figure: Figure) -> str:
    """Render a figure as SVG for a page; text and axes take the colours of the page."""
    stream = StringIO()
    with drawing():
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    for colour, name in ((LIGHT.ink, "ink"), (LIGHT.muted, "muted"), (LIGHT.line, "line")):
        text = text.replace(colour, f"var(--{name})")
    return text
