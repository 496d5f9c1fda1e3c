"""The pictures of the H-LRU paper's figures in the documentation, from committed rows."""

from measurement_tables import RESULTS

from statemix.studies.figure import draw, png
from statemix.studies.store import merged
from statemix.studies.study import find_study

FIGURES = ("fig1c", "fig1d")


def pictures() -> dict[str, bytes]:
    """Return the figures at size "laptop", as PNG by name."""
    rows = merged(sorted((RESULTS / "reproduce").glob("*.jsonl")))
    found = {}
    for name in FIGURES:
        study = find_study(name)
        panels = study.panels(study.runs(study.entries("paper", "laptop"), rows))
        found[name] = png(draw(panels, title=study.title))
    return found
