"""The paper's figures, drawn from our runs."""

from collections.abc import Sequence

from statemix.studies.figures import Panel, Series
from statemix.studies.higher_order.cell_scores import CellScore
from statemix.studies.higher_order.paper_figures import Point


def panels(points: Sequence[tuple[Point, CellScore]]) -> list[Panel]:
    """Return the panels of a figure: accuracies of the chosen settings, one line per seed."""
    axes: dict[str, set[float]] = {}
    for point, _ in points:
        axes.setdefault(point.x_label, set()).add(point.x)
    titles = {point.panel: point.x_label for point, _ in points}
    return [
        _panel(title, x_label, sorted(axes[x_label]), points, first=place == 0)
        for place, (title, x_label) in enumerate(titles.items())
    ]


def _panel(
    title: str,
    x_label: str,
    xs: Sequence[float],
    points: Sequence[tuple[Point, CellScore]],
    *,
    first: bool,
) -> Panel:
    # One place needs room on both sides: an axis has a width.
    limits = (xs[0], xs[-1]) if len(xs) > 1 else (xs[0] / 2, xs[0] * 2)
    return Panel(
        title,
        x_label,
        "test accuracy" if first else "",
        _series([one for one in points if one[0].panel == title]),
        limits,
        x_ticks=_ticks(xs, limits),
        markers=True,
    )


def _ticks(xs: Sequence[float], limits: tuple[float, float]) -> list[float]:
    """Return the powers of four between the limits, or else the places themselves.

    Places that are small numbers are always their own ticks.
    """
    powers = [4.0**power for power in range(16) if limits[0] <= 4.0**power <= limits[1]]
    return powers if powers and xs[-1] > _LARGEST_ORDER else list(xs)


_LARGEST_ORDER = 64


def _series(points: Sequence[tuple[Point, CellScore]]) -> list[Series]:
    found = []
    for line in dict.fromkeys(point.line for point, _ in points):
        of = [(point, score) for point, score in points if point.line == line]
        values = {point.x: score.by_seed for point, score in of}
        most = max(map(len, values.values()))
        runs = [
            {x: seeds[number] for x, seeds in sorted(values.items()) if number < len(seeds)}
            for number in range(most)
        ]
        found.append(Series(line, of[0][0].cell.contender.layer(1).name, runs))
    return found
