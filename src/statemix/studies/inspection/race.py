"""The race of representations: which part of a group the gates held during training."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure

from statemix.studies import figures
from statemix.studies.figures import Panel, Series
from statemix.studies.style import LIGHT, Theme
from statemix.tasks.irreps import components
from statemix.training.attempts import Attempt


def draw(
    rows: Sequence[Mapping[str, Any]],
    group: str,
    attempts: Sequence[Attempt] = (),
    *,
    theme: Theme = LIGHT,
) -> Figure:
    """Draw the share of each representation in the transitions against training steps.

    Lines break where an attempt of a search has failed: the next one begins with new weights. Marks
    show where attempts have left their plateau, and where one has passed its test.

    Args:
        rows: rows of a run's metrics; at least one holds representations.
        group: name of the group.
        attempts: attempts of the search, if there was one.
        theme: colours of the page.
    """
    held = [row for row in rows if row["representations"]]
    acting = next(part.name for part in components(group) if part.acts)
    series = []
    for name in held[0]["representations"]:
        label = f"{name}, the points" if name == acting else name
        series.append(Series(label, label, [_broken(held, name)]))
    marks = {
        "off the plateau": [one.left for one in attempts if one.left is not None],
        "passed": [one.ended for one in attempts if one.passed and one.ended is not None],
    }
    panel = Panel(
        f"representations of {group} in the transitions",
        "step",
        "share of the energy",
        series,
        (0, max(row["step"] for row in held)),
        # A line of one point cannot be seen.
        markers=1 in Counter(row["attempt"] for row in held).values(),
        marks={name: steps for name, steps in marks.items() if steps},
    )
    return figures.draw([panel], theme=theme)


def _broken(rows: Sequence[Mapping[str, Any]], name: str) -> dict[float, float]:
    """Return step -> share, with a NaN between two attempts."""
    run: dict[float, float] = {}
    for one, following in pairwise([*rows, rows[-1]]):
        run[one["step"]] = one["representations"][name]
        if one["attempt"] != following["attempt"]:
            run[(one["step"] + following["step"]) / 2] = math.nan
    return run
