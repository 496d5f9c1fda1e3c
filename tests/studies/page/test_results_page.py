"""The page of results beside the paper's: its numbers, its links, and a real browser."""

import dataclasses
import itertools
import re

import pytest
from selenium.webdriver.common.by import By

from statemix.studies.figures import draw
from statemix.studies.higher_order import cell_text as text
from statemix.studies.higher_order import figure_drawing as drawing
from statemix.studies.higher_order import results_page as page
from statemix.studies.higher_order.cell_scores import score
from statemix.studies.higher_order.contenders import CONTENDERS
from statemix.studies.higher_order.paper_figures import FIGURES
from statemix.studies.higher_order.paper_tables import TABLES
from statemix.studies.higher_order.wrapper import WRAPPER
from statemix.studies.store import Store, key

ENVIRONMENT = {
    "python": "3.11.2",
    "packages": {"statemix": "0.1.0", "torch": "2.13.0"},
    "cpu": "Example CPU",
    "cpu_count": 2,
    "commit": "0123456789abcdef",
}
# Model -> accuracies of its three seeds on 250 words of S_3; the paper has .49, .38 and .32.
ACCURACIES = {
    "BD-LRU m=2": (0.5, 0.51, 0.52),
    "BD-LRU m=1": (0.29, 0.3, 0.25),
    "LSTM": (0.9, 0.95, None),
}


def row(config, value):
    scores = {"product": {"token_accuracy": value, "mad_accuracy": value}}
    return {
        "key": key(config),
        "status": "done" if value is not None else "diverged",
        "seed": config.seed,
        "time_s": 61.0,
        "best_test": scores if value is not None else {},
        "test_at_best_validation": scores if value is not None else {},
        "best_validation": scores if value is not None else {},
        "environment": ENVIRONMENT,
    }


@pytest.fixture
def rows():
    found = {}
    for cell in TABLES["table4"].cells("paper", "laptop"):
        if cell.column.name == "s3_250" and cell.model in ACCURACIES:
            (trial,) = cell.parts["S3-250"]
            for config, value in zip(trial.runs, ACCURACIES[cell.model], strict=True):
                found[key(config)] = row(config, value)
    return found


@pytest.fixture
def html(rows, monkeypatch):
    names = ("wide_light", "wide_dark", "narrow_light", "narrow_dark")
    monkeypatch.setattr(page.figures, "variants", lambda _: dict.fromkeys(names, b""))
    return page.render(rows)


def test_cells_are_coloured_by_agreement_above_the_papers_numbers(html):
    cells = re.findall(r'<td( class="\w+")?>(?:<a href="#([^"]*)">([^<]*)</a>)?<small>(.*?)<', html)
    assert len(cells) == 100
    filled = [cell for cell in cells if cell[2]]
    assert [(cell[0].strip(), cell[2], cell[3]) for cell in filled] == [
        ('class="partial"', ".950 (.925±.035) ?", ".32"),
        ('class="below"', ".300 (.280±.026) &lt;", ".38"),
        ('class="agrees"', ".520 (.510±.010) =", ".49"),
    ]
    assert all(cell[0] == "" for cell in cells if not cell[2])
    assert "2\nhave been measured" in html
    assert "and 1 agree within" in html


def test_every_link_leads_to_the_runs_of_its_cell(html, rows):
    links = re.findall(r'href="#([^"]+)"', html)
    places = re.findall(r' id="([^"]+)"', html)
    assert len(links) == 3
    assert set(links) <= set(places)
    assert len(set(places)) == len(places)
    for name, one in rows.items():
        assert (f"<code>{name}</code>" in html) == (one["status"] == "done")
    assert "2 of 3 runs; chosen: learning rate 0.001; without result: diverged" in html
    assert "1 min 1 s" in html
    assert "<td>0123456</td>" in html


def test_a_commit_whose_code_was_changed_is_marked(rows, monkeypatch):
    monkeypatch.setattr(page, "_figures", lambda _: [])
    more = [{"tree_clean": True}, {"tree_clean": False}, {"commit": None, "tree_clean": None}]
    changed = {
        name: one | {"environment": ENVIRONMENT | more[one["seed"]]} for name, one in rows.items()
    }
    html = page.render(changed)
    shown = re.findall(r"<td>seed (\d)</td><td>[^<]*</td><td>[^<]*</td><td>([^<]*)</td></tr>", html)
    assert set(shown) == {("0", "0123456"), ("1", "0123456+"), ("2", "")}
    assert html.count('a "+" after it') == 1


def test_a_claim_is_shown_with_what_decides_it(html):
    (section,) = re.findall(r'id="claims">(.*?)</div>', html, re.DOTALL)
    (shown,) = re.findall(r"<summary>(.*?)</summary>.*?m=2 \(", section, re.DOTALL)[:1]
    assert "<strong>open</strong>: accuracy rises from m = 1 to m = 2" in shown
    assert "<li>yes: BD-LRU m=2 (.520) beats BD-LRU m=1 (.300) on S3-250</li>" in section
    # The LSTM has two seeds.
    assert "LSTM (.9" not in section


def test_the_machines_are_named_once_with_their_runs(html):
    (machines,) = re.findall(r'<ul id="machines">(.*?)</ul>', html, re.DOTALL)
    assert machines.count("<li>") == 1
    assert "Example CPU, 2 cores: 9 runs" in machines


def test_a_size_is_shown_only_for_the_runs_that_it_adds(rows, monkeypatch):
    monkeypatch.setattr(page.figures, "variants", lambda _: {})
    monkeypatch.setattr(page, "FIGURES", {})
    assert page.render(rows).count('size "workstation"') == 0
    cells = TABLES["table4"].cells("paper", "workstation")
    (cell,) = (c for c in cells if (c.model, c.column.name) == ("BD-LRU m=2", "s3_250"))
    config = cell.parts["S3-250"][-1].runs[0]
    html = page.render(rows | {key(config): row(config, 0.61)})
    assert html.count('size "workstation"') == 1
    assert ".610 (.510±.010) &gt;" in html


@pytest.mark.parametrize(("protocol", "shown"), [("paper", ".875"), ("tuned", ".625")])
def test_a_run_is_shown_with_its_setting_and_the_score_that_counts(monkeypatch, protocol, shown):
    monkeypatch.setattr(page, "_figures", lambda _: [])
    cells = TABLES["table4"].cells(protocol, "laptop")
    (cell,) = (c for c in cells if (c.model, c.column.name) == ("LSTM", "s3_250"))
    known = {}
    # The last setting of "tuned" is that of "paper", whose section would be shown, too.
    settings = cell.parts["S3-250"][: -1 if protocol == "tuned" else None]
    for number, trial in enumerate(settings):
        config = trial.runs[number % 3]
        scores = {"product": {"token_accuracy": 0.625, "mad_accuracy": 0.5}}
        known[key(config)] = row(config, 0.875) | {"test_at_best_validation": scores}
    html = page.render(known)
    runs = re.findall(
        r"<code>(\w+)</code></th><td>([^<]+)</td><td>seed (\d)</td><td>([^<]+)<", html
    )
    assert runs == [
        (key(trial.runs[number % 3]), trial.setting, str(number % 3), shown)
        for number, trial in enumerate(settings)
    ]


def test_without_results_the_page_says_how_to_make_some(monkeypatch):
    assert "<code>statemix reproduce table4 --minutes 20</code>" in page.render({})


def test_every_model_stands_beside_the_price_of_its_layer(rows, html):
    def table_at(size):
        cells = TABLES["table4"].cells("paper", size)
        return text.table([score(cell, rows) for cell in cells if cell.model in ACCURACIES])

    found = table_at("laptop")
    assert found.head[:4] == ("model", "parameters", "FLOPs/token", "s3_250")
    lines = {line.cells[0]: line.cells for line in found.lines if not line.quiet}
    layer = CONTENDERS["BD-LRU m=2"].layer(192).build(hidden_size=128)
    size = sum(parameter.numel() for parameter in layer.parameters())
    flops = layer.flops_per_token(1).total
    assert lines["BD-LRU m=2"][1:3] == (f"{size:,}", f"{flops:,}")
    assert found.lines[1].cells[:3] == ("  paper", "", "")
    # Two state sizes.
    larger = CONTENDERS["BD-LRU m=2"].layer(768).build(hidden_size=128)
    most = sum(parameter.numel() for parameter in larger.parameters())
    lines = {line.cells[0]: line.cells for line in table_at("workstation").lines}
    assert lines["BD-LRU m=2"][1] == f"{size:,} to {most:,}"
    assert lines["LSTM"][1] == "132,096"
    assert f"<td>{size:,}</td><td>{flops:,}</td>" in html


def test_what_the_paper_leaves_open_has_its_table(rows, monkeypatch):
    monkeypatch.setattr(page, "_figures", lambda _: [])
    changed = next(c for c in WRAPPER.cells("paper", "laptop") if c.change == "start token")
    ((trial,),) = changed.parts.values()
    assert "wrapper" not in [s.table.name for s in page._sections({})]
    html = page.render(rows | {key(run): row(run, 0.875) for run in trial.runs})
    section = html[html.index('<h2 id="wrapper-paper-laptop">') :]
    assert ".875 (.875±.000)" in section
    assert "s3_250, start token" in section


def test_a_figure_has_a_line_per_model_and_a_run_per_seed(rows):
    figure = FIGURES["fig1d"]
    points = [
        (point, score(point.cell, rows))
        for point in figure.points("paper", "laptop")
        if point.cell.begun(rows)
    ]
    panel, mean = drawing.panels(points)
    assert (panel.title, panel.x_ticks, panel.x_limits) == ("S3-250", [1, 2], (1, 2))
    # Four of its five data sets have no runs.
    assert (mean.title, mean.series[0].runs) == ("mean over the five", [])
    (series,) = panel.series
    assert (series.label, series.family) == ("BD-LRU", "bd_lru")
    assert series.runs == [{1: 0.29, 2: 0.5}, {1: 0.3, 2: 0.51}, {1: 0.25, 2: 0.52}]
    assert len(draw([panel]).axes) == 1
    table = text.point_table(points)
    assert table.head == ("data", "x", "BD-LRU")
    assert [line.cells for line in table.lines] == [
        ("S3-250", "1", ".300 (.280±.026) "),
        ("S3-250", "2", ".520 (.510±.010) "),
        ("mean over the five", "1", ".300 (.280) ?"),
        ("mean over the five", "2", ".520 (.510) ?"),
    ]


def test_a_wide_axis_has_ticks_at_powers_of_four(rows):
    points = [
        (point, score(point.cell, rows))
        for point in FIGURES["fig1c"].points("paper", "laptop")
        if point.cell.begun(rows)
    ]
    panel = drawing.panels(points)[0]
    assert panel.x_ticks[:2] == [1024, 4096]
    assert panel.x_limits[0] <= 1024 < panel.x_limits[1]


@pytest.mark.parametrize(
    ("places", "limits", "ticks"),
    [
        ((2, 2), (1, 4), [2]),
        ((1152, 1152), (576, 2304), [1024]),
        ((1100, 3000), (1100, 3000), [1100, 3000]),
    ],
)
def test_the_axis_of_few_places_has_a_width_and_a_tick(rows, places, limits, ticks):
    begun = [p for p in FIGURES["fig1d"].points("paper", "laptop") if p.cell.begun(rows)][:2]
    points = [
        (dataclasses.replace(point, x=x), score(point.cell, rows))
        for point, x in zip(begun, places, strict=True)
    ]
    (panel,) = drawing.panels(points)
    assert (panel.x_limits, panel.x_ticks) == (limits, ticks)
    assert draw([panel]).axes[0].get_xlim() == limits


def test_a_browser_shows_tables_and_figures_without_complaint(rows, tmp_path, browser, emulate):
    page.write(rows, tmp_path / "index.html")
    for width, scheme in itertools.product((1200, 380), ("light", "dark")):
        emulate(width, scheme)
        browser.get((tmp_path / "index.html").as_uri())
        assert browser.get_log("browser") == []
        table = browser.find_element(By.CLASS_NAME, "results")
        assert table.is_displayed()
        assert ".520 (.510±.010) =" in table.text
        for picture in browser.find_elements(By.TAG_NAME, "img"):
            assert browser.execute_script("return arguments[0].naturalWidth > 0", picture)
        # Wide tables scroll in their own box; the page never scrolls sideways.
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    agrees, below = (
        browser.find_element(By.CSS_SELECTOR, f"td.{verdict}").value_of_css_property(
            "background-color"
        )
        for verdict in ("agrees", "below")
    )
    assert agrees != below


def test_a_store_is_what_the_page_is_made_from(rows, tmp_path):
    store = Store(tmp_path / "runs.jsonl")
    for one in rows.values():
        store.append(one)
    assert store.rows() == rows
