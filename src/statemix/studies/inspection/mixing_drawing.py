"""The generalised block attention matrix: what each input adds to each state."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from statemix.studies.figure import LIGHT, drawing
from statemix.studies.inspection.heat import Heat

# Most labels along an axis.
_LABELS = 24


def draw(
    contributions: Sequence[Sequence[Any]],
    units: Sequence[str],
    sequences: Mapping[str, Sequence[str]],
    *,
    title: str,
) -> Figure:
    """Draw the size of every contribution: a row of panels per sequence, one panel per unit.

    Args:
        contributions: sequence, unit, position of the state, position of the input -> size; None
            is not finite.
        units: names of the units.
        sequences: name of each sequence -> label of each position.
        title: text above the picture.
    """
    arrays = [[np.array(one, dtype=float) for one in sequence] for sequence in contributions]
    heat = Heat.of([one for sequence in arrays for one in sequence])
    down, across = len(arrays), len(units)
    with drawing():
        size = (max(3.1 * across + 0.9, 5.5), 3.2 * down + 0.7)
        figure = Figure(figsize=size, layout="constrained")
        every = figure.subplots(down, across, squeeze=False)
        rows = zip(every, arrays, sequences.items(), strict=True)
        for row, sequence, (name, labels) in rows:
            for axes, values, unit in zip(row, sequence, units, strict=True):
                axes.imshow(values, interpolation="nearest", **heat.options)
                _label(axes, labels)
                axes.set_title(f"{name}, {unit}", loc="left", fontsize=10)
            row[0].set_ylabel("state after token")
        for axes in every[-1]:
            axes.set_xlabel("input of token")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5)
        heat.add_bar(figure, list(every.flat))
    return figure


def draw_block(
    matrix: Sequence[Sequence[float | None]],
    labels: Sequence[str],
    *,
    title: str,
) -> Figure:
    """Draw a whole block attention matrix (Eq. 24) with lines between its blocks.

    Args:
        matrix: rows of the entries of all states, columns of the entries of all inputs.
        labels: label of each position.
        title: text above the picture.
    """
    values = np.array(matrix, dtype=float)
    heat = Heat.of([values])
    with drawing():
        figure = Figure(figsize=(8.4, 7.6), layout="constrained")
        axes = figure.subplots()
        rows, columns = (size / len(labels) for size in values.shape)
        # An input may have fewer entries than a state.
        aspect = columns / rows
        axes.imshow(values, aspect=aspect, interpolation="nearest", **heat.options)
        for place in range(1, len(labels)):
            axes.axhline(place * rows - 0.5, color=LIGHT.line, linewidth=0.6)
            axes.axvline(place * columns - 0.5, color=LIGHT.line, linewidth=0.6)
        _label(axes, labels, rows, columns)
        axes.set_ylabel("state after token")
        axes.set_xlabel("input of token")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5)
        heat.add_bar(figure, [axes])
    return figure


def _label(axes: Axes, names: Sequence[str], rows: float = 1.0, columns: float = 1.0) -> None:
    every = -(-len(names) // _LABELS)
    places = np.arange(0, len(names), every) + 0.5
    shown = list(names)[::every]
    axes.set_xticks(places * columns - 0.5, shown, fontsize=7, rotation=90)
    axes.set_yticks(places * rows - 0.5, shown, fontsize=7)
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
