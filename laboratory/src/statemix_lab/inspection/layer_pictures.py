"""The pictures of one run's layers, from stored numbers."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seaborn as sns  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from statemix.proofs.token_maps import BlockActions
from statemix.tasks.groups import components
from statemix.training.attempts import Attempt
from statemix_lab.inspection.layer_numbers import LayerNumbers, Sharpening
from statemix_lab.studies import complex_plane
from statemix_lab.studies.figure import LIGHT, Panel, curves, drawing
from statemix_lab.studies.figure import draw as draw_panels

# Gate maps: space before the input gates of a tile, between tiles, and between single columns, in
# widths of a gate; inches of a gate, and of the longest picture.
_WITHIN, _BETWEEN, _NARROW = 0.2, 0.6, 0.15
_GATE, _LONGEST = 0.16, 40.0
# Most labels along an axis of a mixing matrix.
_LABELS = 24
TALLEST = 32
"""Entries of the largest block whose maps can be seen in a picture."""

# Maps of tokens: blocks in a picture, and columns up to which the sources are written as numbers.
_BLOCKS, _WRITTEN = 4, 30
_ORDER = {"tracks": 0, "repeats": 1, "other": 2, "constant": 3, "idles": 4}


def pictures(
    layers: Sequence[LayerNumbers],
    tokens: Mapping[str, Sequence[int]],
    sharpened: Sequence[Sharpening] = (),
) -> Iterator[tuple[str, Figure]]:
    """Yield the pictures that suit the layers, by file name."""
    moments = {one["layer"]: one for one in sharpened if one["shown"]}
    for one in layers:
        if one["summary"] is None:
            continue
        number, title = one["layer"], f"layer {one['layer']}, {one['kind']} m={one['size']}"
        steps = [step + 1 - one["prepended"] for step in one["steps"]]
        spectra = complex_plane.Spectra(
            title=f"{title}: eigenvalues",
            family=one["name"],
            row_title="",
            column_title="time step",
            columns=["BOS" if step < 1 else str(step) for step in steps],
            rows={"": one["eigenvalues"]},
        )
        yield f"eigenvalues-{number}.png", complex_plane.draw([spectra])
        start = ["BOS"] * one["prepended"]
        labels = {name: start + [str(token) for token in row] for name, row in tokens.items()}
        name, first = next(iter(labels.items()))
        units = [f"{one['unit']} {unit}" for unit in one["shown"]]
        if not units:
            continue
        if one["gates"] is not None:
            heading = f"{title}: gates over time, input gates last"
            yield f"gates-{number}.png", draw_gates(one["gates"], units, labels, title=heading)
        heading = f"{title}: largest change of a state by an input of size 1"
        yield f"mixing-{number}.png", draw_mixing(one["mixing"], units, labels, title=heading)
        if one["block_attention"] is not None:
            heading = f"{title}: block attention matrix of {units[0]}"
            drawn = draw_block(one["block_attention"], first, title=heading)
            yield f"block-attention-{number}.png", drawn
        if number in moments:
            # The gates of each unit twice, one above the other.
            rows, strips = [], []
            for place, unit in enumerate(moments[number]["shown"]):
                for gates in (moments[number]["before"], moments[number]["after"]):
                    rows.append(gates["gates"][place])
                    temperature = gates["temperature"]
                    heat = f"τ = {temperature:.3g}" if temperature else "τ → 0"
                    strips.append(f"{one['unit']} {unit}, {heat}")
            heading = f"{title}: gates at two gate temperatures τ"
            drawn = draw_gates([rows], strips, {name: first}, title=heading)
            yield f"sharpening-{number}.png", drawn


def scale_of(arrays: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
    """Return one scale of colours for all finite entries: zero has the colour of the page."""
    finite = np.concatenate([values[np.isfinite(values)] for values in arrays])
    largest = float(np.abs(finite).max(initial=0.0)) or 1.0
    signed = float(finite.min(initial=0.0)) < 0
    colours = [LIGHT.paper, LIGHT.accent, LIGHT.ink]
    if signed:
        colours = [LIGHT.negative, LIGHT.paper, LIGHT.accent]
    palette = sns.blend_palette(colours, as_cmap=True)
    return {"cmap": palette, "vmin": -largest if signed else 0.0, "vmax": largest}


def _finish(figure: Figure, title: str, beside: Sequence[Axes] = ()) -> Figure:
    """Add the title, and the scale of colours beside some axes."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5)
    if beside:
        shown = beside[0].collections[0]
        bar = figure.colorbar(shown, ax=list(beside), fraction=0.02, pad=0.01, aspect=25)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8)
    return figure


def draw_gates(
    gates: Sequence[Sequence[Any]],
    units: Sequence[str],
    sequences: Mapping[str, Sequence[str]],
    *,
    title: str,
) -> Figure:
    """Draw a strip of tiles for each sequence and unit: one tile per token, as in Figure 1B.

    A tile of several rows is the transition, with the column of input gates on its right. Gates of
    columns are transposed: a row of the tile is where an entry goes, and the last row loads. A unit
    with a single row of gates, such as a channel of an H-LRU, has it drawn upright, the input gate
    at the bottom. Gates go by sequence, unit, position and row.
    """
    arrays = [np.array(rows, dtype=float) for sequence in gates for rows in sequence]
    scale = scale_of(arrays)
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
            one.fill(axes, scale, labels)
            if unit == units[0]:
                axes.set_title(sequence, loc="left", fontsize=10)
            axes.set_ylabel(unit, rotation=0, ha="right", va="center", fontsize=10)
            axes.set_xlim(0, longest)
        return _finish(figure, title, list(every))


class _Tiles:
    """A row of tiles as one grid: gates of shape (positions, rows, m+1), and gaps between them."""

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

    def fill(self, axes: Axes, scale: Mapping[str, Any], labels: Sequence[str]) -> None:
        """Draw the tiles, with labels below."""
        rows = self.grid.shape[0]
        # It shows between the tiles, from which gates of zero stand out.
        back = Rectangle((0, 0), self.end, rows, color=LIGHT.muted, linewidth=0, zorder=0)
        axes.add_patch(back)
        axes.pcolormesh(self.edges, np.arange(rows + 1), self.grid, rasterized=True, **scale)
        axes.invert_yaxis()
        axes.set_xticks(self.centres, list(labels), fontsize=8)
        axes.set_yticks([])
        axes.tick_params(length=0, pad=2)
        axes.spines[:].set_visible(False)


def draw_mixing(
    contributions: Sequence[Sequence[Any]],
    units: Sequence[str],
    sequences: Mapping[str, Sequence[str]],
    *,
    title: str,
) -> Figure:
    """Draw what each input adds to each state: a row of panels per sequence, one panel per unit."""
    arrays = [np.array(one, dtype=float) for sequence in contributions for one in sequence]
    scale, across, down = scale_of(arrays), len(units), len(contributions)
    with drawing():
        size = (max(3.1 * across + 0.9, 5.5), 3.2 * down + 0.7)
        figure = Figure(figsize=size, layout="constrained")
        every = list(figure.subplots(down, across, squeeze=False).flat)
        places = itertools.product(sequences.items(), units)
        for axes, values, ((name, labels), unit) in zip(every, arrays, places, strict=True):
            _fill_matrix(axes, values, labels, scale)
            axes.set_title(f"{name}, {unit}", loc="left", fontsize=10)
        for axes in every[::across]:
            axes.set_ylabel("state after token")
        for axes in every[-across:]:
            axes.set_xlabel("input of token")
        return _finish(figure, title, every)


def draw_block(
    matrix: Sequence[Sequence[float | None]], labels: Sequence[str], *, title: str
) -> Figure:
    """Draw a whole block attention matrix (Eq. 24) with lines between its blocks."""
    values = np.array(matrix, dtype=float)
    with drawing():
        figure = Figure(figsize=(8.4, 7.6), layout="constrained")
        axes = figure.subplots()
        _fill_matrix(axes, values, labels, scale_of([values]))
        rows, columns = (size // len(labels) for size in values.shape)
        axes.hlines(np.arange(1, len(labels)) * rows, *axes.get_xlim(), color=LIGHT.line, lw=0.6)
        axes.vlines(np.arange(1, len(labels)) * columns, *axes.get_ylim(), color=LIGHT.line, lw=0.6)
        # An input may have fewer entries than a state.
        axes.set_aspect(columns / rows)
        axes.set_ylabel("state after token")
        axes.set_xlabel("input of token")
        return _finish(figure, title, [axes])


def _fill_matrix(
    axes: Axes, values: NDArray[np.float64], names: Sequence[str], scale: Mapping[str, Any]
) -> None:
    """Draw a matrix, with labels in the middle of the blocks of a position."""
    sns.heatmap(values, ax=axes, cbar=False, square=True, rasterized=True, **scale)
    every = -(-len(names) // _LABELS)
    places = (np.arange(0, len(names), every) + 0.5) / len(names)
    shown = list(names)[::every]
    axes.set_xticks(places * values.shape[1], shown, fontsize=7, rotation=90)
    axes.set_yticks(places * values.shape[0], shown, fontsize=7, rotation=0)
    axes.tick_params(length=0, pad=2)


def by_role(found: Sequence[BlockActions]) -> list[BlockActions]:
    """Return blocks that track first, then those that repeat them, and idle ones last."""
    return sorted(found, key=lambda one: _ORDER[one["role"]])


def draw_actions(found: Sequence[BlockActions], *, title: str) -> Figure:
    """Draw the maps of a few blocks: a column per token, a row per entry; a load is empty."""
    shown = by_role(found)[:_BLOCKS]
    tables = [np.array(one["sources"]).T for one in shown]
    size, tokens = tables[0].shape
    width = min(max(0.24 * tokens + 1.9, 5.5), 14.0)
    with drawing():
        height = (0.24 * size + 0.55) * len(shown) + 0.6
        figure = Figure(figsize=(width, height), layout="constrained")
        every = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
        for axes, one, table in zip(every, shown, tables, strict=True):
            sns.heatmap(
                table + 1,
                mask=table < 0,
                annot=table if tokens <= _WRITTEN else None,
                annot_kws={"color": LIGHT.ink},
                ax=axes,
                cbar=False,
                cmap=sns.light_palette(LIGHT.accent, as_cmap=True),
                vmin=0,
                # The darker half of the colours would hide the numbers.
                vmax=2 * size,
                xticklabels=-(-tokens // _WRITTEN),
                yticklabels=1,
            )
            axes.set_title(f"block {one['block']}: {one['role']}", loc="left", fontsize=10)
            axes.tick_params(rotation=0)
            axes.set_ylabel("entry", fontsize=9)
        every[-1].set_xlabel("token", fontsize=9)
        return _finish(figure, title)


def draw_race(
    rows: Sequence[Mapping[str, Any]], group: str, attempts: Sequence[Attempt] = ()
) -> Figure:
    """Draw the share of each representation of a group; lines break between attempts."""
    held = [row for row in rows if row["representations"]]
    acting = next(part.name for part in components(group) if part.acts)
    points = []
    for name in held[0]["representations"]:
        label = f"{name}, the points" if name == acting else name
        points += [
            (label, label, str(row.get("attempt")), row["step"], row["representations"][name])
            for row in held
        ]
    marks = {
        "off the plateau": [one.left for one in attempts if one.left is not None],
        "passed": [one.ended for one in attempts if one.passed and one.ended is not None],
    }
    panel = Panel(
        f"representations of {group} in the transitions",
        "step",
        curves(points),
        logarithmic=False,
        by_run=True,
        marks={name: steps for name, steps in marks.items() if steps},
    )
    return draw_panels([panel], "share of the energy")
