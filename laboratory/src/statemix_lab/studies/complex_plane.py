"""Eigenvalues in the complex plane: a frame with the unit circle for every step and model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from statemix_lab.studies.figure import LIGHT, drawing, series_colours

Points = Sequence[Sequence[float]]
"""Eigenvalues as pairs (real part, imaginary part)."""

# Least and largest half-width of a frame, in units of the circle's radius.
_REACH = (1.15, 3.0)
# Size of a frame in inches, in a single row and in many, and the part of it that shows eigenvalues.
_SINGLE, _FRAME, _SHOWN = 1.5, 0.82, 0.92


@dataclass(frozen=True)
class Spectra:
    """A panel: frames in rows and columns. A row may be a text that says why it has none."""

    title: str
    family: str
    row_title: str
    column_title: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Points] | str]


def draw(panels: Sequence[Spectra]) -> Figure:
    """Draw panels, two side by side."""
    across = min(len(panels), 2)
    down = -(-len(panels) // across)
    rows = max(len(panel.rows) for panel in panels)
    frame = _FRAME if rows > 1 else _SINGLE
    width = max(len(panel.columns) for panel in panels) * frame + 1.0
    colours = series_colours([panel.family for panel in panels])
    with drawing():
        # A narrow figure would cut off the titles.
        size = (max(width * across, 5.2), (rows * frame + 1.1) * down)
        figure = Figure(figsize=size, layout="constrained")
        all_axes = list(figure.subplots(down, across, squeeze=False).flat)
        for axes, panel, colour in zip(all_axes, panels, colours, strict=False):
            _fill(axes, panel, colour)
        for axes in all_axes[len(panels) :]:
            axes.remove()
    return figure


def _fill(axes: Axes, panel: Spectra, colour: str) -> None:
    frames = [points for row in panel.rows.values() if not isinstance(row, str) for points in row]
    parts = [abs(part) for points in frames for point in points for part in point]
    half = float(np.clip(1.05 * max(parts, default=0.0), *_REACH))
    title = f"{panel.title} (frames to ±{half:.2g})" if half > _REACH[0] else panel.title
    axes.set_title(title, loc="left", fontsize=11.5)
    count = len(panel.columns)
    for y, row in enumerate(panel.rows.values()):
        if isinstance(row, str):
            place = ((count - 1) / 2, y)
            axes.annotate(row, place, ha="center", va="center", color=LIGHT.muted, fontsize=9)
            continue
        for x, points in enumerate(row):
            _draw_frame(axes, x, y, half, points, colour)
    axes.set_xlim(-0.55, count - 0.45)
    axes.set_ylim(len(panel.rows) - 0.45, -0.55)
    axes.set_aspect("equal")
    axes.set_xticks(range(count), panel.columns)
    axes.set_yticks(range(len(panel.rows)), list(panel.rows))
    axes.set_xlabel(panel.column_title)
    axes.set_ylabel(panel.row_title)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_frame(axes: Axes, x: float, y: float, half: float, points: Points, colour: str) -> None:
    side = _SHOWN / 2
    corner = (x - side, y - side)
    axes.add_patch(Rectangle(corner, _SHOWN, _SHOWN, fill=False, ec=LIGHT.line, lw=0.9))
    axes.add_patch(Circle((x, y), side / half, fill=False, ec=LIGHT.muted, lw=0.9))
    axes.hlines(y, x - side, x + side, color=LIGHT.line, lw=0.7, zorder=0)
    axes.vlines(x, y - side, y + side, color=LIGHT.line, lw=0.7, zorder=0)
    if points:
        places = np.clip(np.asarray(points, dtype=float), -half, half) * _SHOWN / 2 / half
        # Rows run downwards, imaginary parts upwards. Many points must not hide where most of them
        # are, and thousands of points would make a page large unless they are rasterised.
        opacity = min(1.0, max(0.25, 6 / math.sqrt(len(places))))
        style: dict[str, Any] = {
            "color": colour,
            "alpha": opacity,
            "linewidths": 0,
            "rasterized": True,
        }
        axes.scatter(x + places[:, 0], y - places[:, 1], s=5.0, zorder=2, **style)
