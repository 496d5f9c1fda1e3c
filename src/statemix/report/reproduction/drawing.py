"""The paper's figures, drawn from our runs."""

from collections.abc import Sequence

from statemix.experiments.reproduction.figures import Figure, Point
from statemix.experiments.reproduction.scores import CellScore
from statemix.report.figures import Panel, Series


def panels(figure: Figure, points: Sequence[tuple[Point, CellScore]]) -> list[Panel]:
    """Return the panels of a figure: accuracies of the chosen settings, one line per seed."""
    titles = dict.fromkeys(point.panel for point, _ in points)
    xs = sorted({point.x for point, _ in points})
    # One place needs room on both sides: an axis has a width.
    limits = (xs[0], xs[-1]) if len(xs) > 1 else (xs[0] / 2, xs[0] * 2)
    return [
        Panel(
            title,
            figure.x_label,
            "test accuracy" if place == 0 else "",
            _series([one for one in points if one[0].panel == title]),
            limits,
            x_ticks=_ticks(xs, limits),
            markers=True,
        )
        for place, title in enumerate(titles)
    ]


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
        values = {point.x: part.values for point, score in of for part in score.parts.values()}
        most = max(map(len, values.values()))
        runs = [
            {x: seeds[number] for x, seeds in sorted(values.items()) if number < len(seeds)}
            for number in range(most)
        ]
        found.append(Series(line, of[0][0].cell.contender.layer(1).name, runs))
    return found
