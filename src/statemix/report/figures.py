"""The demo's picture: how the networks learn, and how far what they learnt reaches."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import seaborn as sns  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from statemix.experiments.summary import Summary
from statemix.report.tables import accuracy_text, label, lengths, models

# The palette of Okabe and Ito, told apart by every kind of colour vision, and the same hues
# lightened for a dark page. Markers carry the same information without colour.
_COLOURS = {
    False: ["#0072B2", "#009E73", "#E69F00", "#B5508F", "#D55E00", "#56B4E9"],
    True: ["#56B4E9", "#2DC79A", "#F2B632", "#E58FC0", "#FF8A4C", "#8FD3FF"],
}
_MARKERS = ["o", "s", "^", "D", "v", "P"]
# Least distance of two names, in accuracy.
_NAME_GAP = 0.065
_INK = {False: ("#1c2430", "#667080", "#ffffff"), True: ("#e8ebf0", "#9aa4b2", "#12161c")}


def learning_figure(summary: Summary, *, dark: bool = False, stacked: bool = False) -> Figure:
    """Draw token accuracy against training time, and against word length on a logarithmic axis.

    Thick lines are means over seeds, thin ones single seeds; bands reach from the worst seed to the
    best.

    Args:
        summary: the results of a suite.
        dark: draw for a dark page.
        stacked: put the panels above each other, for a narrow screen.
    """
    ink, muted, paper = _INK[dark]
    style = {
        "figure.facecolor": paper,
        "axes.facecolor": paper,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": muted,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "font.size": 11,
    }
    with sns.axes_style("ticks", rc=style), sns.plotting_context("notebook", rc={"font.size": 11}):
        figure = Figure(figsize=(5.2, 8.2) if stacked else (12.4, 4.5), layout="constrained")
        rows, columns = (2, 1) if stacked else (1, 2)
        left, right = figure.subplots(rows, columns, sharey=True)
        for position, key in enumerate(models(summary)):
            colour, marker = _COLOURS[dark][position], _MARKERS[position]
            _draw_curve(left, summary, key, colour)
            _draw_reach(right, summary, key, colour, marker)
        _finish_curve(left, summary, muted)
        _finish_reach(right, summary)
        _name_lines(left, summary["setting"]["duration"], ink)
        _name_lines(right, lengths(summary)[-1], ink)
        for axes in (left, right):
            _mark_chance(axes, summary["setting"]["chance"], muted)
            axes.set_ylim(-0.02, 1.04)
            axes.grid(visible=True, axis="y", color=muted, alpha=0.18, linewidth=0.8)
            axes.tick_params(length=3)
            sns.despine(ax=axes)
    return figure


def png(figure: Figure, dpi: int) -> bytes:
    """Render a figure."""
    stream = BytesIO()
    # No software version inside: equal results give equal files.
    figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()


def _line_name(model: str, m: int | None) -> str:
    return label(model, m) + (", diagonal" if m == 1 else "")


def _draw_curve(axes: Axes, summary: Summary, key: tuple[str, int | None], colour: str) -> None:
    curves = [curve for curve in summary["curves"] if (curve["model"], curve["m"]) == key]
    _draw_seeds(
        axes,
        curves[0]["position"],
        [curve["accuracy"] for curve in curves],
        colour=colour,
        name=_line_name(*key),
    )


def _draw_reach(
    axes: Axes, summary: Summary, key: tuple[str, int | None], colour: str, marker: str
) -> None:
    runs = [run for run in summary["runs"] if (run["model"], run["m"]) == key]
    xs = lengths(summary)
    _draw_seeds(
        axes,
        xs,
        [[run["accuracy"][str(x)] for x in xs] for run in runs],
        colour=colour,
        name=_line_name(*key),
        marker=marker,
    )


def _draw_seeds(
    axes: Axes,
    xs: Sequence[float],
    seeds: list[list[float]],
    *,
    colour: str,
    name: str,
    marker: str | None = None,
) -> None:
    """Draw the mean of the seeds, the band that they fill and, thinly, each of them."""
    columns = list(zip(*seeds, strict=True))
    low, high = [min(c) for c in columns], [max(c) for c in columns]
    axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    for seed in seeds:
        axes.plot(xs, seed, color=colour, linewidth=0.8, alpha=0.55)
    mean = [sum(c) / len(c) for c in columns]
    (line,) = axes.plot(xs, mean, color=colour, linewidth=2.4, marker=marker, label=name, zorder=3)
    line.set(markersize=6.5, clip_on=False)


def _finish_curve(axes: Axes, summary: Summary, muted: str) -> None:
    setting = summary["setting"]
    begin, end, inverse = setting["sharpen"]
    if inverse != 1.0:
        axes.axvspan(begin, end, color=muted, alpha=0.10, linewidth=0)
        axes.annotate(
            "gates sharpen",
            ((begin + end) / 2, 1.01),
            xycoords=axes.get_xaxis_transform(),
            ha="center",
            color=muted,
            fontsize=9.5,
        )
    axes.set_xlim(0, setting["duration"])
    axes.set_xlabel(setting["unit"])
    axes.set_ylabel("token accuracy on test words")
    axes.set_title(
        f"Learning {_math(setting['group'])} from "
        + (f"{setting['train_size']:,} examples" if setting["train_size"] else "fresh words")
        + f" of length {setting['train_length']}",
        loc="left",
        fontsize=12.5,
        pad=20,
    )


def _finish_reach(axes: Axes, summary: Summary) -> None:
    ticks = lengths(summary)
    axes.set_xscale("log", base=2)
    axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(labelleft=True)
    axes.set_xlabel("word length")
    axes.set_title(
        "Accuracy on words longer than those trained on", loc="left", fontsize=12.5, pad=20
    )


def _mark_chance(axes: Axes, chance: float, muted: str) -> None:
    axes.axhline(chance, color=muted, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.annotate(
        f"guessing {accuracy_text(chance)}",
        (0.995, chance),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, -5) if chance > 0.1 else (0, 4),
        textcoords="offset points",
        ha="right",
        va="top" if chance > 0.1 else "bottom",
        color=muted,
        fontsize=9.5,
    )


def _name_lines(axes: Axes, end: float, ink: str) -> None:
    """Write each network's name at the end of its line, apart from its neighbours."""
    named = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    place = -1.0
    for line in sorted(named, key=lambda line: float(np.asarray(line.get_ydata())[-1])):
        value = float(np.asarray(line.get_ydata())[-1])
        place = max(value, place + _NAME_GAP)
        axes.annotate(
            str(line.get_label()),
            (end, value),
            xytext=(1.05, place),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            color=ink,
            fontsize=10.5,
            arrowprops={
                "arrowstyle": "-",
                "color": line.get_color(),
                "linewidth": 1.8,
                "shrinkA": 0,
                "relpos": (0, 0.5),
            },
        )


def _math(group: str) -> str:
    name, _, index = group.partition("_")
    return f"${name}_{{{index}}}$"
