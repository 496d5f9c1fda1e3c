"""The pictures of the H-LRU paper's figures in the documentation, from committed rows."""

from measurement_tables import RESULTS, study_rows

from statemix_lab.studies import throughput
from statemix_lab.studies.figure import draw, png
from statemix_lab.studies.study import find_study
from statemix_lab.studies.throughput import read


def pictures() -> dict[str, bytes]:
    """Return the figures at size "laptop", as PNG by name."""
    found = {}
    for name in ("fig1c", "fig1d", "fig2"):
        study = find_study(name)
        panels = study.panels(study.runs(study.entries("paper", "laptop"), study_rows()))
        found[name] = png(draw(panels, title=study.title))
    points = read([RESULTS / "bench" / "figure3-f0bf39e.jsonl"])
    speeds, _ = throughput.speed_panels(points)
    title = throughput.caption(points[0].setting, points)
    found["fig3"] = png(draw([one.drawn() for one in speeds], "tokens per second", title))
    return found
