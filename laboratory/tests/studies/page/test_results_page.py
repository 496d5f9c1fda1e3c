"""The page of results: its sentences agree with its tables, and it is one file."""

import re
from pathlib import Path

import pytest

from statemix_lab.studies.page import render_page
from statemix_lab.studies.store import merged
from statemix_lab.studies.study import studies

ROOT = Path(__file__).parents[3]


def test_a_page_without_results_says_how_to_make_some(tmp_path):
    html = render_page(studies().values(), {}, tmp_path)
    assert "No results yet" in html
    assert "Of 196 numbers of Dubinin et al. we have measured none" in html
    assert "Of 108 numbers of Movahedi et al. we have measured none" in html
    assert "<section" not in html


@pytest.mark.slow
def test_the_page_of_the_committed_results(tmp_path):
    folder = ROOT / "results" / "reproduce"
    html = render_page(studies().values(), merged(sorted(folder.glob("*.jsonl"))), folder)
    # Nothing is loaded from elsewhere.
    assert not re.findall(r'(?:src|href)="(?!#|data:)', html)
    links = re.findall(r'<a href="#([^"]+)"', html)
    headings = re.findall(r'<h2 id="([^"]+)"', html)
    assert links == headings
    assert len(set(headings)) == len(headings)
    for name in ("table4-paper-laptop", "claims", "fig7-paper-laptop", "exact-groups"):
        assert name in headings
    # A figure is one picture, whose text has the colour of the page.
    assert "data:image/png" not in re.sub(r"<image[^>]*>", "", html)
    assert 'fill="var(--ink)"' in html or "fill: var(--ink)" in html
    # Published numbers stand also where there are no runs, and the page says so.
    assert "also where we have no runs" in html
    assert "Cells without runs are empty" not in html
