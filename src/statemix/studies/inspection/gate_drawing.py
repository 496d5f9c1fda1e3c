"""Gate maps: the normalised gates of a few units over time, as in Figure 1B of the paper."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from statemix.studies.figure import LIGHT, drawing
from statemix.studies.inspection.heat import Heat

# Space before the input gates of a tile, between tiles, and between single columns, in widths of a
# gate.
_WITHIN, _BETWEEN, _NARROW = 0.2, 0.6, 0.15
# Inches of a gate, and of the longest picture.
_GATE, _LONGEST = 0.16, 40.0


def draw(
    gates: Sequence[Sequence[Any]],
    units: Sequence[str],
    sequences: Mapping[str, Sequence[str]],
    *,
    title: str,
) -> Figure:
    """Draw a strip of tiles for each sequence and unit: one tile per token.

    A tile of several rows is the transition, with the column of input gates on its right. A unit
    with a single row of gates, such as a channel of an H-LRU, has it drawn upright, the input gate
    at the bottom.

    Args:
        gates: sequence, unit, position, row -> gates, the input gate last; None is not finite.
        units: names of the units.
        sequences: name of each sequence -> label of each position.
        title: text above the picture.
    """
    arrays = [np.array(rows, dtype=float) for sequence in gates for rows in sequence]
    heat = Heat.of(arrays)
    tiles = [_Tiles(values) for values in arrays]
    longest = max(one.end for one in tiles)
    gate = min(_GATE, _LONGEST / longest)
    height = max(tiles[0].grid.shape[0] * gate, 0.3) + 0.3
    with drawing():
        size = (max(longest * gate + 1.9, 5.5), height * len(tiles) + 0.25 * len(gates) + 0.6)
        figure = Figure(figsize=size, layout="constrained")
        every = figure.subplots(len(tiles), 1, squeeze=False)[:, 0]
        places = itertools.product(sequences.items(), units)
        for axes, one, ((sequence, labels), unit) in zip(every, tiles, places, strict=True):
            one.fill(axes, heat, labels)
            if unit == units[0]:
                axes.set_title(sequence, loc="left", fontsize=10)
            axes.set_ylabel(unit, rotation=0, ha="right", va="center", fontsize=10)
            axes.set_xlim(0, longest)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5)
        heat.add_bar(figure, list(every))
    return figure


class _Tiles:
    """A row of tiles as one grid, in which empty columns separate them.

    Args:
        values: gates, shape (positions, rows, m+1).
    """

    def __init__(self, values: NDArray[np.float64]) -> None:
        upright = values.shape[1] == 1
        tiles = values.transpose(0, 2, 1) if upright else values
        length, rows, columns = tiles.shape
        gap = np.full((length, rows, 1), np.nan)
        parts, widths = [tiles], [1.0] * columns
        if not upright:
            parts = [tiles[..., :-1], gap, tiles[..., -1:]]
            widths.insert(-1, _WITHIN)
        between = _NARROW if upright else _BETWEEN
        parts.append(gap)
        widths.append(between)
        self.grid = np.concatenate(parts, axis=-1).transpose(1, 0, 2).reshape(rows, -1)
        self.edges = np.concatenate([[0.0], np.cumsum(widths * length)])
        self.centres = (np.arange(length) + 0.5) * sum(widths) - between / 2
        self.end = self.edges[-1] - between

    def fill(self, axes: Axes, heat: Heat, labels: Sequence[str]) -> None:
        """Draw the tiles, with labels below."""
        rows = self.grid.shape[0]
        # It shows between the tiles, from which gates of zero stand out.
        back = Rectangle((0, 0), self.end, rows, color=LIGHT.muted, linewidth=0, zorder=0)
        axes.add_patch(back)
        axes.pcolormesh(self.edges, np.arange(rows + 1), self.grid, rasterized=True, **heat.options)
        axes.invert_yaxis()
        axes.set_xticks(self.centres, list(labels), fontsize=8)
        axes.set_yticks([])
        axes.tick_params(length=0, pad=2)
        axes.spines[:].set_visible(False)
