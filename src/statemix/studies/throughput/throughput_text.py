"""Throughput as tables."""

from collections.abc import Sequence

from statemix.studies.table_text import Line, Table
from statemix.studies.throughput.points import Point
from statemix.studies.throughput.throughput_panels import SpeedPanel

LEGEND = """\
tokens/s: forward and backward of one layer, the median and the 20th to the 80th percentile over
rounds. x time of LSTM: the median over rounds of its time over that of an LSTM of the same width.
sequential, parallel: a loop over time, and the paper's scan; autotuned: the whole layer with the
paper's scan, compiled with max-autotune."""


def panel_table(panel: SpeedPanel) -> Table:
    """Lay out the points of a panel, a line for each."""
    symbol = panel.axis.label.split()[-1]
    head = ("layer", "parameters", symbol, "tokens/s", "p20 - p80", "x time of LSTM")
    return Table(
        head,
        tuple(
            Line((line.name, f"{point.num_parameters:,}", f"{x:,}", *_cells(point)))
            for line in panel.lines
            for x, point in line.points.items()
        ),
    )


def _cells(point: Point) -> tuple[str, ...]:
    if point.speed is None:
        return "–", "", point.missing
    low, median, high = map(rate_text, point.speed)
    ratio = "" if point.ratio is None else f"{point.ratio.p50:.3g}"
    return median, f"{low} - {high}", ratio


def commits(points: Sequence[Point]) -> str:
    """Return the commits of points in words.

    Example:
        >>> commits([])
        'no commit'
    """
    found = list(dict.fromkeys(point.commit for point in points))
    return f"commit{'s' * (len(found) > 1)} {', '.join(found)}" if found else "no commit"


def rate_text(value: float) -> str:
    """Write at most three digits, in thousands or millions.

    Example:
        >>> rate_text(950), rate_text(2000), rate_text(12_345), rate_text(2_470_000)
        ('950', '2k', '12.3k', '2.47M')
    """
    for power, unit in ((1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * power:
            return f"{float(f'{value / power:.3g}'):g}{unit}"
    return f"{value:.3g}"
