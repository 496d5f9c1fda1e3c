"""A study of one's own: published numbers and a section of the page from two files of a user."""

import json

import pytest

from statemix.cli.main import main
from statemix_lab.studies import study as catalogue
from statemix_lab.studies.study import Study, find_study, register_study

MODULE = """
import json
from pathlib import Path

from statemix.layers import LayerSpec
from statemix_lab.studies.study import register_study
from statemix_lab.studies.study_entries import StudyEntry, Number, Trials
from statemix_lab.studies.study import Study
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
    (tmp_path / "my_study.py").write_text(MODULE)
    numbers = {"LSTM": {"5": 0.2, "9": 0.9}, "BD-LRU m=2": {"9": 0.1}}
    (tmp_path / "numbers.json").write_text(json.dumps(numbers))
    yield tmp_path
    import sys

    sys.modules.pop("my_study", None)


def test_it_runs_and_has_a_table_a_figure_and_a_section(own, capsys):
    assert main(["reproduce", "mine", "--imports", "my_study", "--workers", "1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["trained", "on", "model", "seeds", "5", "9", "cost"] in lines
    assert any(line[:6] == ["S_3", "LSTM", "3", "of", "3", line[5]] for line in lines if line[5:])
    assert ["paper", ".20", ".90"] in lines
    assert (own / "reproduce" / "mine.png").read_bytes()[1:4] == b"PNG"
    command = ["report", "--imports", "my_study", "--results", "reproduce", "--output", "page.html"]
    assert main(command) == 0
    html = (own / "page.html").read_text()
    assert "Of 3 numbers of My paper we have measured 3 with at least three seeds" in html
    section = html[html.index('<h2 id="mine">') :]
    assert section.count("<svg") == 1
    assert "seed 2" in section
    # Nothing is repeated, and names that are printed choose runs.
    command = ["reproduce", "mine", "--imports", "my_study", "--workers", "1"]
    assert main([*command, "--columns", "S_3", "--models", "LSTM"]) == 0
    assert "3 runs, of which 3 are in" in capsys.readouterr().out


def test_names_are_unique_and_known(monkeypatch):
    monkeypatch.setattr(catalogue, "_REGISTERED", {})
    with pytest.raises(ValueError, match="study must have a new name, got 'table4'"):
        register_study(Study("table4", "", lambda *_: []))
    with pytest.raises(ValueError, match=r"study must be one of table3, table4, .*, got 'table5'"):
        find_study("table5")
