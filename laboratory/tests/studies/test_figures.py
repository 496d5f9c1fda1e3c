"""The points of the paper's figures, and the order in which they are trained."""

import pytest

from statemix_lab.studies.higher_order.paper_figures import FIGURES
from statemix_lab.studies.higher_order.paper_tables import TABLES
from statemix_lab.studies.study_entries import plan

ORDERS = [1, 2, 3, 4, 5, 6, 8, 16]


@pytest.mark.parametrize(
    ("name", "panels", "lines", "line", "places"),
    [
        ("fig1c", 6, 6, "H-LRU", [408, 432, 448, 456, 480, 512, 576, 768]),
        ("fig1d", 6, 2, "BD-LRU", ORDERS),
        ("fig2", 1, 12, "BD-LRU, tanh", ORDERS),
        ("fig5", 2, 10, "DeltaNet [-1,1]", [3200, 5248, 9344]),
        ("fig6", 4, 18, "H-LRU, pointwise gates", ORDERS),
    ],
)
def test_a_figure_has_its_panels_lines_and_places(name, panels, lines, line, places):
    found = {}
    for entry in FIGURES[name].entries("paper", "paper"):
        labels = entry.labels
        found.setdefault((labels["panel"], labels["line"]), set()).add(labels["x"])
    assert len({panel for panel, _ in found}) == panels
    assert len({name for _, name in found}) == lines
    assert {tuple(sorted(xs)) for (_, name), xs in found.items() if name == line} == {tuple(places)}
    few = {one.labels["x"] for one in FIGURES["fig2"].entries("paper", "laptop")}
    assert few == {1, 4, 16}


@pytest.mark.parametrize("name", FIGURES)
def test_points_have_layers_that_can_be_built_and_runs_with_names_of_their_own(name, tmp_path):
    entries = list(FIGURES[name].entries("paper", "laptop"))
    for layer in {layer for entry in entries for layer in entry.layers}:
        assert layer.build(hidden_size=128, device="meta").hidden_size == 128
    assert not any(entry.published for entry in entries)
    planned = plan(entries, tmp_path)
    assert len({one.job.name for one in planned}) == len(planned)


def test_figures_begin_with_the_ends_of_all_lines_and_share_runs_with_the_tables():
    entries = list(FIGURES["fig2"].entries("paper", "workstation"))
    lines = list(dict.fromkeys(entry.labels["line"] for entry in entries))
    assert len(lines) == 12
    places = [(entry.labels["line"], entry.labels["x"]) for entry in entries[:24]]
    assert places == [(line, m) for m in (1, 16) for line in lines]
    table = {
        name
        for entry in TABLES["table3"].entries("paper", "workstation")
        for _, _, name in entry.trials.runs
    }
    shared = {
        entry.labels["line"]
        for entry in entries
        if {name for _, _, name in entry.trials.runs} <= table
    }
    # Softmax is the default, as in the tables.
    assert shared == {"BD-LRU, softmax", "H-LRU, softmax"}
