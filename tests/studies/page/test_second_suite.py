"""A paper's table from invented rows: networks x tasks, published numbers next to ours.

It uses only the generic parts of the report.
"""

import re

import pytest

from statemix.studies import figures
from statemix.studies import html as page
from statemix.studies import table_text as tables
from statemix.studies.figures import Panel, Series
from statemix.studies.style import LIGHT
from statemix.studies.table_text import Entry, Pivot

SIZES = (1, 2, 3, 4, 5, 6, 8, 16)
NETWORKS = [
    *[(f"BD-LRU m={m}", "bd_lru") for m in SIZES],
    *[(f"H-LRU m={m}", "h_lru") for m in SIZES],
    ("LSTM", "lstm"),
    *[(f"Invented {n}", f"invented {n}") for n in range(8)],
]
TASKS = ("copying", "S_4", "S_5")
TEMPLATE = """{% extends "page.html.j2" %}
{% from "parts.html.j2" import picture, score %}
{% block title %}A table{% endblock %}
{% block content %}{{ picture(images, "chart", "a chart") }}
<table>{% for network in pivot.lines %}<tr><th>{{ network }}</th>
{% for task in pivot.columns %}{{ score(pivot[network, task]) }}{% endfor %}</tr>{% endfor %}
</table>{% endblock %}"""


@pytest.fixture(scope="module")
def rows():
    """One invented run per network, task and seed; the LSTM diverges on S_5."""
    return [
        {
            "network": network,
            "family": family,
            "task": task,
            "seed": seed,
            "status": "diverged" if (network, task) == ("LSTM", "S_5") else "done",
            "accuracy": 1 - place / 30 - task_place / 100 - seed / 500,
        }
        for place, (network, family) in enumerate(NETWORKS)
        for task_place, task in enumerate(TASKS)
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def pivot(rows):
    return Pivot(
        Entry(
            row["network"],
            row["task"],
            row["accuracy"] if row["status"] == "done" else None,
            row["status"],
        )
        for row in rows
    )


@pytest.fixture(scope="module")
def panel(rows):
    series = []
    for network, family in NETWORKS:
        runs = [
            {
                TASKS.index(row["task"]): row["accuracy"]
                for row in rows
                if (row["network"], row["seed"], row["status"]) == (network, seed, "done")
            }
            for seed in (0, 1)
        ]
        series.append(Series(network, family, runs))
    return Panel("Invented", "task", "accuracy", series, (-0.2, 2.2), markers=True)


def test_the_table_has_every_network_and_the_papers_numbers(pivot):
    table = tables.comparison(pivot, "network", {("LSTM", "S_4"): 0.37})
    cells = {line.cells[0]: line.cells[1:] for line in table.lines}
    assert table.head == ("network", *TASKS)
    assert cells["BD-LRU m=1"] == (".999 (.998–1.000)", ".989 (.988–.990)", ".979 (.978–.980)")
    assert cells["LSTM"][2] == "diverged"
    assert cells["  paper"] == ("–", ".37", "–")
    assert set(cells) == {"  paper", *(network for network, _ in NETWORKS)}
    assert len(table.as_text().splitlines()) == 1 + len(NETWORKS) + 1


def test_the_figure_has_a_distinct_line_for_each_of_25_networks(panel):
    figure = figures.draw([panel])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [n for n, _ in NETWORKS]
    drawn = [line for line in figure.axes[0].lines if not line.get_label().startswith("_")]
    assert len(drawn) == 25
    assert len({line.get_color() for line in drawn}) == 25


def test_the_page_needs_a_template_only(pivot, panel):
    images = page.data_uris({"wide_light": figures.png(figures.draw([panel], theme=LIGHT), 30)})
    images |= dict.fromkeys(("wide_dark", "narrow_light", "narrow_dark"), "data:,")
    html = page.templates().from_string(TEMPLATE).render(pivot=pivot, images=images)
    assert re.findall("<th>(.*?)</th>", html) == [network for network, _ in NETWORKS]
    assert "<td>.979<small>.978–.980</small></td>" in html
    assert "<td>diverged</td>" in html
    assert "<title>A table</title>" in html
    assert f"--paper: {LIGHT.paper}" in html
    assert html.count("data:image/png;base64,") == 1
