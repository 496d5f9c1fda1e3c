"""The page of results, its numbers, tables and pictures, and a study of one's own."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from statemix.cli.main import main
from statemix.errors import RequestError
from statemix_lab.studies import result_text as numbers
from statemix_lab.studies import study as catalogue
from statemix_lab.studies.complex_plane import Spectra, draw
from statemix_lab.studies.page import render_page
from statemix_lab.studies.result_text import Line, Table
from statemix_lab.studies.store import merged
from statemix_lab.studies.study import Study, find_study, register_study, studies

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        # Only perfection is written as one.
        (numbers.accuracy_text, 1.0, "1.000"),
        (numbers.accuracy_text, 1 - 1e-9, ".999"),
        (numbers.accuracy_text, 1 / 6, ".167"),
        (numbers.published_text, None, "–"),
        (numbers.published_text, 0.494, ".494"),
        (numbers.published_text, 0.9, ".90"),
        (numbers.duration_text, 0.4, "0 s"),
        (numbers.duration_text, 3599.4, "59 min 59 s"),
        (numbers.duration_text, 3599.6, "1 h 0 min"),
        (numbers.rate_text, 0.5, "0.5"),
        (numbers.rate_text, 999.6, "1k"),
        (numbers.rate_text, 999_600, "1M"),
    ],
)
def test_numbers_are_rounded_for_readers(write, value, text):
    assert write(value) == text


def test_tables_are_aligned_as_text_and_show_verdicts_on_a_page():
    lines = (Line(("LSTM", ".500 =")), Line(("  paper", ".50"), quiet=True), Line(("a<b", "– ?")))
    table = Table(("model", "s3"), lines)
    assert table.as_text().splitlines() == [
        "model    s3",
        "LSTM     .500 =",
        "  paper  .50",
        "a<b      – ?",
    ]
    html = table.as_html()
    assert '<td class="agrees">.500 =</td>' in html
    assert '<tr class="quiet"><th scope="row">  paper</th>' in html
    assert '<th scope="row">a&lt;b</th><td class="partial">' in html


def panel(rows, columns=("1", "4"), title="(a) BD-LRU"):
    return Spectra(title, "bd_lru", "m", "time step", columns, rows)


def points_of(axes):
    marks = [part for part in axes.collections if isinstance(part, PathCollection)]
    return [np.asarray(part.get_offsets()) for part in marks]


def test_eigenvalues_lie_in_the_frame_of_their_row_and_column():
    rows = {"2": [[[0.5, 0.0]], [[0.0, 1.0]]], "5": [[[-1.0, 0.0], [1.0, 0.0]], []], "16": "lost"}
    (axes,) = draw([panel(rows)]).axes
    first, second, third = points_of(axes)
    scale = 0.92 / 2 / 1.15
    np.testing.assert_allclose(first, [[0.5 * scale, 0.0]])
    # Imaginary parts point upwards, though rows run downwards.
    np.testing.assert_allclose(second, [[1.0, -scale]])
    np.testing.assert_allclose(third, [[-scale, 1.0], [scale, 1.0]])
    assert axes.yaxis_inverted()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2", "5", "16"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]
    # A row without eigenvalues says why.
    (text,) = axes.texts
    assert (text.get_text(), text.get_position()) == ("lost", (0.5, 2))
    assert len(draw([panel(rows, title=name) for name in "abc"]).axes) == 3


def test_a_page_without_results_says_how_to_make_some(tmp_path):
    html = render_page(studies().values(), {}, tmp_path)
    assert "No results yet" in html
    assert "Of 196 numbers of Dubinin et al. we have measured none" in html
    assert "Of 108 numbers of Movahedi et al. we have measured none" in html
    assert "<section" not in html


def test_the_page_of_committed_results():
    folder = ROOT / "results" / "reproduce"
    names = ("table4", "claims", "fig7", "exact-groups")
    rows = merged(sorted(folder.glob("*.jsonl")))
    html = render_page([find_study(name) for name in names], rows, folder)
    # Nothing is loaded from elsewhere.
    assert not re.findall(r'(?:src|href)="(?!#|data:)', html)
    headings = re.findall(r'<h2 id="([^"]+)"', html)
    assert re.findall(r'<a href="#([^"]+)"', html) == headings
    assert len(set(headings)) == len(headings)
    assert {"table4-paper-laptop", "claims", "fig7-paper-laptop", "exact-groups"} <= set(headings)
    # A figure is one picture, whose text has the colour of the page.
    assert "data:image/png" not in re.sub(r"<image[^>]*>", "", html)
    assert 'fill="var(--ink)"' in html or "fill: var(--ink)" in html
    # Published numbers stand also where there are no runs, and the page says so.
    assert "also where we have no runs" in html


MODULE = """
import json
from pathlib import Path

from statemix.layers import LayerSpec
from statemix_lab.studies.study import Study, register_study
from statemix_lab.studies.study_entries import StudyEntry, Number, Trials
from statemix.tasks import TaskSpec
from statemix.training import EvaluationConfig, ModelConfig, RunConfig, ScheduleConfig

PUBLISHED = json.loads(Path(__file__).with_name("numbers.json").read_text())
LAYERS = {"LSTM": LayerSpec("lstm"), "BD-LRU m=2": LayerSpec("bd_lru", num_blocks=2, block_size=2)}


def entries(protocol, size):
    for model, layer in LAYERS.items():
        config = RunConfig(
            task=TaskSpec("permutation", group="S_3", length=5, train_size=20),
            model=ModelConfig(layers=(layer,), hidden_size=8),
            schedules=ScheduleConfig(epochs=2),
            evaluation=EvaluationConfig(test_size=8, validation_size=8, lengths=(9,)),
        )
        number = {int(length): Number(value) for length, value in PUBLISHED[model].items()}
        yield StudyEntry("S_3", model, Trials.seeded(config, range(3)), published=number)


register_study(
    Study("mine", "words of S_3", lambda *some: list(entries(*some)), paper="My paper")
)
"""


@pytest.fixture
def own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "_REGISTERED", {})
    monkeypatch.setattr(catalogue, "_own", dict)
    (tmp_path / "my_study.py").write_text(MODULE)
    published = {"LSTM": {"5": 0.2, "9": 0.9}, "BD-LRU m=2": {"9": 0.1}}
    (tmp_path / "numbers.json").write_text(json.dumps(published))
    yield tmp_path
    sys.modules.pop("my_study", None)


def test_a_study_of_ones_own_has_a_table_a_figure_and_a_section(own, capsys):
    command = ["reproduce", "mine", "--imports", "my_study", "--workers", "1"]
    assert main(command) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["trained", "on", "model", "seeds", "5", "9", "cost"] in lines
    assert any(line[:5] == ["S_3", "LSTM", "3", "of", "3"] for line in lines)
    assert ["paper", ".20", ".90"] in lines
    assert (own / "reproduce" / "mine.png").read_bytes()[1:4] == b"PNG"
    report = ["report", "--imports", "my_study", "--results", "reproduce", "--output", "page.html"]
    assert main(report) == 0
    html = (own / "page.html").read_text()
    assert "Of 3 numbers of My paper we have measured 3 with at least three seeds" in html
    section = html[html.index('<h2 id="mine">') :]
    assert section.count("<svg") == 1
    assert "seed 2" in section
    # Nothing is repeated, and names that are printed choose runs.
    assert main([*command, "--columns", "S_3", "--models", "LSTM"]) == 0
    assert "3 runs, of which 3 are in" in capsys.readouterr().out


def test_names_are_unique_and_known(monkeypatch):
    monkeypatch.setattr(catalogue, "_REGISTERED", {})
    with pytest.raises(ValueError, match="study must have a new name, got 'table4'"):
        register_study(Study("table4", "", lambda *_: []))
    with pytest.raises(RequestError, match=r"study must be one of table3, table4, .*, got 'tab'"):
        find_study("tab")
