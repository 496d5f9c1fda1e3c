"""The figure of eigenvalues on the page: from stored numbers alone, with what is missing."""

import json
import re

import pytest

from statemix.studies import complex_plane as drawing
from statemix.studies.higher_order import overview
from statemix.studies.higher_order import results_page as page
from statemix.studies.higher_order.run_spectra import SPECTRA
from statemix.studies.higher_order.spectra_drawing import lost, page_figures, panels
from statemix.studies.store import key

FIGURE = SPECTRA["fig7"]
POINTS = list(FIGURE.points("paper", "laptop"))


def key_of(line, m):
    (point,) = (point for point in POINTS if (point.line, point.x) == (line, m))
    ((trial,),) = point.cell.parts.values()
    return key(trial.runs[0])


def row(name, status):
    scores = {"product": {"token_accuracy": 0.5, "mad_accuracy": 0.5}}
    done = status == "done"
    return {
        "key": name,
        "status": status,
        "seed": 0,
        "time_s": 1.0,
        "best_test": scores if done else {},
        "test_at_best_validation": scores if done else {},
        "best_validation": scores if done else {},
        "environment": {
            "python": "3.11.2",
            "packages": {"statemix": "0.1.0", "torch": "2.13.0"},
            "cpu": "Example CPU",
            "cpu_count": 2,
        },
    }


@pytest.fixture
def rows():
    ended = {
        key_of("BD-LRU, softmax", 5): "done",
        key_of("BD-LRU, softmax", 2): "done",
        key_of("H-LRU, none", 16): "diverged",
    }
    return {name: row(name, status) for name, status in ended.items()}


@pytest.fixture
def spectra():
    name = key_of("BD-LRU, softmax", 5)
    found = {
        "key": name,
        "sequences": 2,
        "steps": [1, 4],
        "eigenvalues": [[[0.5, 0.0]], [[0.0, 0.5], [0.0, -0.5]]],
    }
    return {name: json.loads(json.dumps(found))}


def test_each_panel_has_a_row_for_every_m_that_says_what_it_lacks(rows, spectra):
    first, second, third, fourth = panels(POINTS, rows, spectra)
    assert [panel.title for panel in (first, second, third, fourth)] == [
        "(a) BD-LRU, softmax",
        "(b) BD-LRU, none",
        "(c) H-LRU, softmax",
        "(d) H-LRU, none",
    ]
    assert (first.family, third.family) == ("bd_lru", "h_lru")
    assert list(first.rows) == ["1", "2", "3", "4", "5", "6", "8", "16"]
    assert first.columns == second.columns == ["1", "4"]
    assert first.rows["5"] == [[[0.5, 0.0]], [[0.0, 0.5], [0.0, -0.5]]]
    assert first.rows["2"] == "eigenvalues not stored"
    assert first.rows["1"] == "not trained yet"
    assert fourth.rows["16"] == "diverged"
    assert lost(POINTS, rows) == ["H-LRU m=16, not normalised diverged"]


def test_runs_of_other_lengths_share_the_columns(rows, spectra):
    name = key_of("H-LRU, softmax", 2)
    spectra[name] = {
        "key": name,
        "sequences": 1,
        "steps": [4, 8],
        "eigenvalues": [[[0.1, 0.0]], [[0.2, 0.0]]],
    }
    first, _, third, _ = panels(POINTS, rows, spectra)
    assert first.columns == ["1", "4", "8"]
    assert first.rows["5"][2] == []
    assert third.rows["2"] == [[], [[0.1, 0.0]], [[0.2, 0.0]]]
    assert len(drawing.draw([first, third]).axes) == 2


def test_the_page_shows_the_figure_and_names_the_runs_that_were_lost(rows, spectra, monkeypatch):
    names = ("wide_light", "wide_dark", "narrow_light", "narrow_dark")
    monkeypatch.setattr(page.figures, "variants", lambda _: dict.fromkeys(names, b""))
    for module in (page, overview):
        monkeypatch.setattr(module, "TABLES", {})
    monkeypatch.setattr(page, "FIGURES", {})
    html = page.render(rows, spectra)
    assert '<h2 id="fig7-paper-laptop">fig7: eigenvalues of the learned transitions' in html
    (caption,) = re.findall(r"<figcaption>(Protocol[^<]*one run[^<]*)</figcaption>", html)
    assert caption.endswith("Without result: H-LRU m=16, not normalised diverged.")
    assert "Thick lines" not in caption
    # Not drawn for sizes and protocols without data, and not at all without stored eigenvalues.
    assert html.count('id="fig7-') == 2  # the heading and its picture
    assert 'id="fig7-' not in page.render(rows)


def test_the_pictures_are_drawn_from_the_numbers_alone(rows, spectra):
    (found,) = page_figures(rows, spectra)
    assert set(found["images"]) == {"wide_light", "wide_dark", "narrow_light", "narrow_dark"}
    beginnings = {image[:27] for image in found["images"].values()}
    assert beginnings == {"data:image/png;base64,iVBOR"}
    assert len(set(found["images"].values())) == 4
