"""The race of representations: which part of a group the gates held during training."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from statemix.report import figures
from statemix.report.figures import Panel, Series
from statemix.report.style import LIGHT, Theme
from statemix.tasks.irreps import components


def draw(rows: Sequence[Mapping[str, Any]], group: str, *, theme: Theme = LIGHT) -> Figure:
    """Draw the share of each representation in the transitions against training steps.

    Where an attempt of a search has failed, the lines jump: the next one begins with new weights.

    Args:
        rows: rows of a run's metrics; at least one holds representations.
        group: name of the group.
        theme: colours of the page.
    """
    held = [row for row in rows if row["representations"]]
    acting = next(part.name for part in components(group) if part.acts)
    series = []
    for name in held[0]["representations"]:
        run = {row["step"]: row["representations"][name] for row in held}
        label = f"{name}, the points" if name == acting else name
        series.append(Series(label, label, [run]))
    title = f"representations of {group} in the transitions"
    limits = (0, max(row["step"] for row in held))
    return figures.draw([Panel(title, "step", "share of the energy", series, limits)], theme=theme)
