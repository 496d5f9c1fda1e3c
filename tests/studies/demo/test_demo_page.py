"""The page is one file, follows the results, and renders in a real browser."""

import itertools
import json
import re

import pytest
from selenium.webdriver.common.by import By

from statemix.studies import results
from statemix.studies.demo import demo_figure as figure
from statemix.studies.demo import demo_page as page
from statemix.studies.demo import demo_suite as demo

COMMAND = "statemix demo"


@pytest.fixture
def without_pictures(monkeypatch):
    """Skip drawing, which takes far longer than most of these tests."""
    names = ("wide_light", "wide_dark", "narrow_light", "narrow_dark")
    monkeypatch.setattr(figure, "images", lambda _: dict.fromkeys(names, b""))


@pytest.fixture
def html(summary, without_pictures):
    return page.render(summary, COMMAND)


def test_page_holds_every_network_and_every_run(html):
    table, runs = re.findall(r"<tbody>(.*?)</tbody>", html, re.DOTALL)
    assert re.findall(r'<th scope="row">(.*?)<small>(.*?)</small>', table) == [
        ("BD-LRU m=3", "64 blocks of 3"),
        ("BD-LRU m=2", "64 blocks of 2"),
        ("BD-LRU m=1", "64 blocks of 1, diagonal"),
        ("LSTM", "128 units"),
    ]
    assert re.findall(r'<th scope="row">(.*?)</th>', runs) == [
        f"{name}, seed {seed}"
        for seed in (0, 1)
        for name in ("BD-LRU m=3", "BD-LRU m=2", "BD-LRU m=1", "LSTM")
    ]


def test_page_sets_means_ranges_and_the_papers_numbers_side_by_side(html):
    row = re.search(r">BD-LRU m=2<.*?</tr>", html, re.DOTALL)[0]
    assert "<td>.525<small>.500–.550</small></td>" in row
    assert '<td class="paper">.49</td>' in row


def test_page_needs_nothing_else(summary):
    html = page.render(summary, COMMAND)
    links = re.findall(r'(?:src|href|srcset|url)\s*[=(]\s*"?([^">)\s]+)', html)
    assert links
    assert all(link.startswith("data:") for link in links)
    assert "<script" not in html


def test_words_follow_the_results(summary, html, set_accuracy):
    flawless = "BD-LRU m=3 makes no error in any test word"
    assert flawless in html
    set_accuracy(summary["runs"][0], {16: 0.7, 16384: 0.2})
    worse = page.render(summary, COMMAND)
    assert flawless not in worse
    assert "seed 0: .700 and .200" in worse


def test_the_protocol_and_the_differences_are_on_the_page(html):
    assert "AdamW, learning rate 0.001" in html
    assert "The gates are sharpened during training" in html
    assert "In the grey span the gates are sharpened" in html


def test_gates_that_keep_their_temperature_are_not_said_to_sharpen(summary, without_pictures):
    summary["setting"]["sharpening"] = None
    assert "sharpened" not in page.render(summary, COMMAND)


def test_another_group_has_its_own_page(without_pictures, tmp_path):
    suite = demo.SUITES["S_5"]
    missing = {"certificate": None, "attempts": None}
    rows = [{**row, **missing} for row in results.rows(suite, tmp_path)]
    html = page.render(demo.summarize(suite, rows), COMMAND)
    assert "S<sub>5</sub>" in html
    assert "fresh words in every batch" in html
    assert "BD-LRU m=5, seed 1 is missing: not trained yet" in html
    assert "BD-LRU m=5 by the recipe exact: no start token" in html
    assert "One protocol for all networks" not in html


def test_a_group_that_the_paper_lacks_has_no_column_of_the_papers(without_pictures, tmp_path):
    suite = demo.SUITES["A_5"]
    missing = {"certificate": None, "attempts": [False] * 3}
    rows = [{**row, **missing} for row in results.rows(suite, tmp_path)]
    html = page.render(demo.summarize(suite, rows), COMMAND)
    assert "A<sub>5</sub>" in html
    assert 'class="paper"' not in html
    assert "The paper has no results on this group." in html
    assert "(attempts of the seeds: 3, none of which passed, 3, none of which passed)" in html


def test_runs_without_a_result_are_listed_with_their_reason(summary, html, lose):
    assert 'id="missing"' not in html
    lose(summary["runs"][7], "diverged", "loss is <nan>")
    lose(summary["runs"][2], "failed", "disk full")
    lose(summary["runs"][6], "failed", "disk full")
    html = page.render(summary, COMMAND)
    missing = re.search(r'<ul id="missing">(.*?)</ul>', html, re.DOTALL)[1]
    assert re.findall("<li>(.*?)</li>", missing) == [
        "BD-LRU m=1, seed 0 failed: disk full",
        "BD-LRU m=1, seed 1 failed: disk full",
        "LSTM, seed 1 diverged: loss is &lt;nan&gt;",
    ]
    assert "3 of 8 runs have no result" in html
    table, runs = re.findall(r"<tbody>(.*?)</tbody>", html, re.DOTALL)
    lstm = re.search(r">LSTM<.*?</tr>", table, re.DOTALL)[0]
    assert "<small>1 of 2 diverged</small>" in lstm
    assert "<td>.400<small></small></td>" in lstm
    diagonal = re.search(r">BD-LRU m=1<.*?</tr>", table, re.DOTALL)[0]
    assert diagonal.count("<td>failed</td>") == 6
    assert runs.count("<td>failed</td>") == 12
    assert runs.count("<td>diverged</td>") == 6


def test_a_page_without_any_result_is_made(summary, lose):
    for run in summary["runs"]:
        lose(run, "failed", "disk full")
    assert "8 of 8 runs have no result" in page.render(summary, COMMAND)


def test_text_is_escaped(summary, without_pictures):
    assert "<b>" not in page.render(summary, "statemix demo --output '<b>'")


def test_three_files_are_written_and_nothing_else(summary, tmp_path, without_pictures):
    paths = page.write(summary, tmp_path, COMMAND)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    assert {path.name for path in paths} == {"index.html", "learning.png", "summary.json"}
    assert json.loads((tmp_path / "summary.json").read_text())["runs"] == summary["runs"]


def test_browser_shows_picture_and_table_without_complaint(summary, tmp_path, browser, emulate):
    page.write(summary, tmp_path, COMMAND)
    for width, scheme in itertools.product((1200, 380), ("light", "dark")):
        emulate(width, scheme)
        browser.get((tmp_path / "index.html").as_uri())
        check(browser, width, scheme)


def check(browser, width, scheme):
    assert browser.get_log("browser") == []
    picture = browser.find_element(By.ID, "learning")
    assert browser.execute_script(
        "const image = arguments[0]; return image.complete && image.naturalWidth > 0", picture
    )
    assert picture.size["width"] > 0.8 * min(width, 1000)
    assert picture.size["height"] > 200
    table = browser.find_element(By.ID, "accuracy")
    assert table.is_displayed()
    assert "BD-LRU m=3" in table.text
    # Wide tables scroll in their own box; the page never scrolls sideways.
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
