"""Monitors of protocols, and the automata that AALpy learns."""

import random
import sys

import numpy as np
import polars as pl
import pytest

from statemix.proofs import StateMachine, parse_property
from statemix.proofs.safety import check_safety
from statemix.sweeps.runner import Job, run_all
from statemix.tasks import TaskSpec
from statemix_lab.studies.exactness import learned_automata
from statemix_lab.studies.exactness.exact_studies import STUDIES
from statemix_lab.studies.exactness.learned_automata import LearnedAutomaton, specification
from statemix_lab.studies.exactness.monitors import PROPERTIES, monitor_entries
from statemix_lab.studies.store import Store

(MONITORS,) = (study for study in STUDIES if study.name == "monitors")


def monitor(protocol, **options):
    return TaskSpec("automaton", preset=protocol, train_size=300, **options)


def machine_of(task):
    automaton = task.automaton()
    assert automaton.start == 0
    tables = automaton.transitions, automaton.outputs
    return StateMachine(*(table.astype(np.int32) for table in tables))


def learned(algorithm, folder, *, protocol="login", seed=0, size=1500, **options):
    task, watched = monitor(protocol, **options), PROPERTIES[protocol]
    run = LearnedAutomaton(algorithm, task, watched, size, 50, 20, seed)
    (ended,) = run_all([Job("one", run, folder)])
    return ended


def changed(task, state, letter, *, after=None, answer=None):
    """Return the machine of a monitor with another transition."""
    machine = machine_of(task)
    place = task.language.states.index(state), task.language.letters.index(letter)
    if after is not None:
        machine.transitions[place] = task.language.states.index(after)
    if answer is not None:
        machine.answers[place] = task.language.classes.index(answer)
    return machine


@pytest.mark.parametrize(
    ("protocol", "change", "verdict"),
    [
        ("file-handle", ("closed", "read", {"answer": "ok"}), "refuted"),
        ("file-handle", ("reading", "write", {"answer": "ok"}), "proven"),
        ("tcp-handshake", ("closing", "ack", {"after": "open"}), "refuted"),
        ("tcp-handshake", ("open", "syn", {"answer": "ok"}), "proven"),
        ("login", ("locked", "use", {"answer": "ok"}), "refuted"),
        ("login", ("twice", "wrong", {"after": "twice", "answer": "violation"}), "refuted"),
        ("login", ("in", "wrong", {"answer": "ok"}), "proven"),
    ],
)
def test_properties_say_what_a_monitor_must_not_do(protocol, change, verdict):
    task = monitor(protocol).build()
    state, letter, parts = change
    machine = changed(task, state, letter, **parts)
    watched = parse_property(PROPERTIES[protocol], task.language.letters, task.language.classes)
    assert check_safety(machine, watched).verdict == verdict
    assert check_safety(machine_of(task), watched).verdict == "proven"


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


@pytest.mark.parametrize(
    ("algorithm", "protocol", "num_states"),
    [
        ("statemix learn", "login", 5),
        ("RPNI", "login", 5),
        ("EDSM", "login", 5),
        ("Alergia", "file-handle", 3),
        ("Alergia EDSM", "file-handle", 3),
        ("L*", "login", 5),
    ],
)
def test_protocols_are_learned_from_right_labels(algorithm, protocol, num_states, tmp_path):
    ended = learned(algorithm, tmp_path / "run", protocol=protocol)
    row = MONITORS.row_of(ended)
    assert (row["status"], row["num_states"]) == ("done", num_states)
    assert row["certificate"]["verdict"] == row["property"]["verdict"] == "proven"
    assert {length: heads["answer"]["token_accuracy"] for length, heads in row["test"].items()} == {
        "16": 1.0, "50": 1.0,
    }  # fmt: skip
    store = Store(tmp_path / "rows.jsonl")
    store.append(row)
    assert len(store.rows()) == 1


@pytest.mark.parametrize("algorithm", ["RPNI", "Alergia", "L*"])
def test_wrong_labels_are_learned_too(algorithm, tmp_path, monkeypatch):
    monkeypatch.setattr(learned_automata, "_WORDS", 3000)
    # RPNI takes a state for each contradiction, and then minutes.
    size = 50 if algorithm == "RPNI" else 1500
    random.seed(5)
    before = random.getstate()
    one, same, other = (
        MONITORS.row_of(learned(algorithm, tmp_path / str(n), seed=seed, size=size, flipped=0.05))
        for n, seed in enumerate((0, 0, 1))
    )
    assert random.getstate() == before
    assert one["certificate"]["verdict"] == "refuted"
    # A random guess is right half of the time, and the labels themselves are less often.
    assert 0.6 < one["test"]["50"]["answer"]["token_accuracy"] < 1
    # Validation has wrong labels, too, and the test has none.
    assert one["best_validation"]["answer"]["num_sequences"] == size
    assert len(set(list(one["best_test"]["answer"].values())[1:3])) == 2
    for name in ("num_states", "certificate", "property", "test"):
        assert one[name] == same[name]
    assert one["test"] != other["test"]


def test_statemix_is_exact_in_spite_of_wrong_labels(tmp_path):
    row = MONITORS.row_of(learned("statemix learn", tmp_path / "run", flipped=0.1))
    assert row["certificate"]["verdict"] == row["property"]["verdict"] == "proven"


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "aalpy.learning_algs", None)
    ended = learned("RPNI", tmp_path / "run")
    assert ended.status == "failed"
    assert "pip install 'statemix-lab[automata]'" in ended.message


def test_all_learners_see_the_same_words_and_networks_do_not_know_the_states():
    sizes, confirmed = set(), {}
    for entry in monitor_entries("paper", "laptop"):
        for run in next(iter(entry.trials)).runs:
            task = run.task.build(seed=run.seed)
            assert (task.train_size, task.length, task.seed) == (1000, 16, run.seed)
            assert task.flipped == entry.labels["wrong"]
        if entry.model.startswith("BD-LRU"):
            (trial,) = entry.trials
            config = trial.runs[0]
            sizes.add(config.model.layers[0].options["block_size"])
            assert config.search.size * config.search.length == 16_000
            confirmed[entry.labels["wrong"]] = config.search.confirm
    assert sizes == {16}
    assert confirmed[0.0] == 1
    assert confirmed[0.1] == pytest.approx(0.9 - 3 * (0.09 / 16_000) ** 0.5)


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
        "login", "2%", "RPNI", "1 of 3 (2 refuted)", "2 of 3", "5–9", ".900 … .800", "2 s, 2 s",
    )  # fmt: skip


def test_networks_have_a_verdict_on_the_property(tmp_path, monkeypatch):
    entry = next(one for one in monitor_entries("paper", "laptop") if one.model == "LSTM")
    config = next(iter(entry.trials)).runs[0]
    config = config.replace(
        schedules=config.schedules.replace(epochs=1),
        evaluation=config.evaluation.replace(lengths=(), test_size=8, validation_size=8),
    )
    monkeypatch.setattr("statemix_lab.studies.exactness.exact_studies.MAX_PAIRS", 50)
    (ended,) = run_all([Job("one", config, tmp_path / "run")])
    row = MONITORS.row_of(ended)
    assert row["property"]["verdict"] in ("open", "refuted")
    runs = MONITORS.runs([entry], {})
    assert runs["property"].null_count() == len(runs)
