"""Style of figures and pages: colours of the page, and colour, marker and dashes of series."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import seaborn as sns  # type: ignore[import-untyped]

from statemix.studies.colours import series_colours


@dataclass(frozen=True)
class Theme:
    """Colours of a page.

    Attributes:
        paper: background.
        ink: text.
        muted: secondary text and lines.
        line: borders of tables.
        soft: background of a highlighted column.
        accent: links and buttons.
    """

    paper: str
    ink: str
    muted: str
    line: str
    soft: str
    accent: str


LIGHT = Theme("#ffffff", "#1c2430", "#5b6573", "#dde2e9", "#f4f6f9", "#0b62a3")
DARK = Theme("#12161c", "#e8ebf0", "#9aa4b2", "#2c3440", "#1a2029", "#6bb8f5")

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))


@dataclass(frozen=True)
class SeriesStyle:
    """Style of one series. Marker and dashes identify it without colour."""

    colour: str
    marker: str
    dashes: Any


def series_styles(families: Sequence[str], theme: Theme) -> list[SeriesStyle]:
    """Styles for any number of series of a figure.

    Args:
        families: as in :func:`series_colours`.
        theme: colours of the page.
    """
    colours = series_colours(families, theme.paper)
    return [
        SeriesStyle(
            colour,
            _MARKERS[place % len(_MARKERS)],
            _DASHES[place // len(_MARKERS) % len(_DASHES)],
        )
        for place, colour in enumerate(colours)
    ]


@contextmanager
def drawing(theme: Theme) -> Iterator[None]:
    """Set matplotlib's style for a page within this context."""
    colours = {
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.muted,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
    }
    style = sns.axes_style("ticks", rc=colours | {"font.size": 11})
    with style, sns.plotting_context("notebook", rc={"font.size": 11}):
        yield
