"""Monitors of protocols, and the automata that AALpy learns."""

import sys

import numpy as np
import polars as pl
import pytest

from statemix.proofs import StateMachine, parse_property
from statemix.proofs.safety import check_safety
from statemix.studies.exactness import learned_automata
from statemix.studies.exactness.exact_studies import STUDIES
from statemix.studies.exactness.learned_automata import LearnedAutomaton, specification
from statemix.studies.exactness.monitors import PROPERTIES, monitor_entries
from statemix.studies.runner import Job, run_all
from statemix.studies.store import Store
from statemix.tasks import TaskSpec

(MONITORS,) = (study for study in STUDIES if study.name == "monitors")


def monitor(protocol, **options):
    return TaskSpec("automaton", preset=protocol, train_size=300, **options)


def machine_of(task):
    automaton = task.automaton()
    assert automaton.start == 0
    tables = automaton.transitions, automaton.outputs
    return StateMachine(*(table.astype(np.int32) for table in tables))


def learned(algorithm, folder, *, seed=0, **options):
    watched = PROPERTIES["login"]
    run = LearnedAutomaton(algorithm, monitor("login", **options), watched, 50, 20, seed)
    (ended,) = run_all([Job("one", run, folder)])
    return ended


@pytest.mark.parametrize("protocol", PROPERTIES)
def test_protocols_keep_their_properties_and_others_do_not(protocol):
    task = monitor(protocol).build()
    watched = parse_property(PROPERTIES[protocol], task.language.letters, task.language.classes)
    machine = machine_of(task)
    assert check_safety(machine, watched).verdict == "proven"
    # A monitor that finds everything ok breaks the property.
    ok = task.language.classes.index("ok")
    careless = StateMachine(machine.transitions, np.full_like(machine.answers, ok))
    assert check_safety(careless, watched).verdict == "refuted"


@pytest.mark.parametrize("protocol", PROPERTIES)
def test_specification_is_kept_by_the_automaton_alone(protocol):
    task = monitor(protocol).build()
    machine, wanted = machine_of(task), specification(task)
    assert check_safety(machine, wanted).verdict == "proven"
    for place in np.ndindex(machine.answers.shape):
        answers = machine.answers.copy()
        answers[place] = 1 - answers[place]
        result = check_safety(StateMachine(machine.transitions, answers), wanted)
        assert result.verdict == "refuted"
        assert task.automaton().answers(result.word)[-1] != result.answers[-1]


def test_specification_says_nothing_of_words_that_cannot_occur():
    task = TaskSpec("automaton", rules="start: a\na x b\na y -\nb x a\nb y b").build()
    machine = StateMachine(
        np.array([[1, 2], [0, 1], [2, 2]], np.int32), np.array([[1, 0], [0, 1], [0, 0]], np.int32)
    )
    assert check_safety(machine, specification(task)).verdict == "proven"


@pytest.mark.parametrize("algorithm", ["RPNI", "L*"])
def test_protocols_are_learned_from_right_labels(algorithm, tmp_path):
    ended = learned(algorithm, tmp_path / "run")
    row = MONITORS.row_of(ended)
    assert (row["status"], row["num_states"]) == ("done", 5)
    assert row["certificate"]["verdict"] == row["property"]["verdict"] == "proven"
    assert {length: heads["answer"]["token_accuracy"] for length, heads in row["test"].items()} == {
        "16": 1.0, "50": 1.0,
    }  # fmt: skip
    store = Store(tmp_path / "rows.jsonl")
    store.append(row)
    assert len(store.rows()) == 1


@pytest.mark.parametrize("algorithm", ["RPNI", "L*"])
def test_wrong_labels_are_learned_too(algorithm, tmp_path, monkeypatch):
    monkeypatch.setattr(learned_automata, "_WORDS", 2000)
    rows = [
        MONITORS.row_of(learned(algorithm, tmp_path / str(seed), seed=seed, flipped=0.1))
        for seed in (0, 1)
    ]
    for row in rows:
        assert row["certificate"]["verdict"] == "refuted"
        task = monitor("login").build()
        assert len(task.automaton().answers(row["certificate"]["word"])) > 0
        assert 0.5 < row["test"]["50"]["answer"]["token_accuracy"] < 1
    assert rows[0]["num_states"] != rows[1]["num_states"]


def test_the_most_frequent_label_of_a_word_counts(monkeypatch):
    task = monitor("login", flipped=0.2, length=4).build()
    data = {}
    monkeypatch.setattr(
        learned_automata._aalpy("learning_algs"),
        "run_RPNI",
        lambda words, *_, **__: data.update(words),
    )
    with pytest.raises(AttributeError):
        learned_automata._by_rpni(task)
    # Each of the first calls has some 50 labels, so most are right.
    for letter in range(task.vocab_size):
        assert data[letter,] == task.automaton().answers([letter])[0]
    assert max(map(len, data)) == 4


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "aalpy.learning_algs", None)
    ended = learned("RPNI", tmp_path / "run")
    assert ended.status == "failed"
    assert "pip install 'statemix[automata]'" in ended.message


def test_every_learner_sees_the_same_words():
    for entry in monitor_entries("paper", "laptop"):
        for trial in entry.trials:
            assert [run.seed for run in trial.runs] == [0, 1, 2]
            for run in trial.runs:
                task = run.task.build(seed=run.seed)
                assert (task.train_size, task.seed) == (1000, run.seed)
                assert task.flipped == entry.labels["wrong"]
                assert task.language.letters == monitor(entry.column).build().language.letters


def test_table_counts_seeds_and_states():
    line = {"column": "login", "wrong": 0.02, "model": "RPNI", "status": "done", "attempts": []}
    tests = [{"length": 16, "accuracy": 0.9}, {"length": 1024, "accuracy": 0.8}]
    runs = pl.DataFrame(
        [
            line | {"certificate": "refuted", "property": "proven", "num_states": 7},
            line | {"certificate": "proven", "property": "refuted", "num_states": 5},
            line | {"certificate": "refuted", "property": "proven", "num_states": 9},
        ]
    ).with_columns(seconds=pl.lit(2.0), tests=pl.lit(tests))
    attempts = pl.List(pl.Struct({"passed": pl.Boolean, "steps": pl.Int64, "plateau": pl.Int64}))
    table = MONITORS.table(runs.with_columns(pl.col("attempts").cast(attempts)), [])
    (found,) = table.lines
    assert found.cells == (
        "login", "2%", "RPNI", "1 of 3", "2 of 3", "5–9", ".900 … .800", "2 s, 2 s",
    )  # fmt: skip


def test_networks_have_a_verdict_on_the_property(tmp_path, monkeypatch):
    entry = next(one for one in monitor_entries("paper", "laptop") if one.model == "LSTM")
    config = next(iter(entry.trials)).runs[0]
    config = config.replace(
        schedules=config.schedules.replace(epochs=1),
        evaluation=config.evaluation.replace(lengths=(), test_size=8, validation_size=8),
    )
    monkeypatch.setattr("statemix.studies.exactness.exact_studies.MAX_PAIRS", 50)
    (ended,) = run_all([Job("one", config, tmp_path / "run")])
    row = MONITORS.row_of(ended)
    assert row["property"]["verdict"] in ("open", "refuted")
    runs = MONITORS.runs([entry], {})
    assert runs["property"].null_count() == len(runs)
