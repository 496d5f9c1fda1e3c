"""The race of representations: which part of a group the gates held during training."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from statemix.studies.figure import Panel, curves
from statemix.studies.figure import draw as draw_panels
from statemix.tasks.groups import components
from statemix.training.attempts import Attempt


def draw(
    rows: Sequence[Mapping[str, Any]],
    group: str,
    attempts: Sequence[Attempt] = (),
) -> Figure:
    """Draw the share of each representation in the transitions against training steps.

    Lines break where an attempt of a search has failed: the next one begins with new weights. Marks
    show where attempts have left their plateau, and where one has passed its test.

    Args:
        rows: rows of a run's metrics; at least one holds representations.
        group: name of the group.
        attempts: attempts of the search, if there was one.
    """
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
