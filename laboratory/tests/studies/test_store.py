"""The results store: rows that survive kills, parallel writers and readers without the library."""

import dataclasses
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.sweeps.runner import Job, run_all
from statemix.tasks import TaskSpec
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
    load_outcome,
)
from statemix_lab.studies.store import Store, key, merged, row_of
from statemix_lab.studies.study import studies

ROOT = Path(__file__).parents[2]

TINY = RunConfig(
    task=TaskSpec("permutation", group="S_3", length=5, train_size=20),
    model=ModelConfig(layers=(LayerSpec("bd_lru", num_blocks=2, block_size=3),), hidden_size=8),
    batches=BatchConfig(size=8),
    schedules=ScheduleConfig(epochs=2),
    evaluation=EvaluationConfig(test_size=10, validation_size=10, lengths=(7,)),
    runtime=RuntimeConfig(num_threads=1, device="cpu"),
)


def row(name="a", status="done", **more):
    scores = {"product": {"token_accuracy": 0.5, "mad_accuracy": 0.25, "loss": None}}
    found = {"key": name, "status": status, "seed": 0, "environment": {}, "time_s": 1.5}
    if status == "done":
        names = ("best_test", "test_at_best_validation", "best_validation")
        found |= dict.fromkeys(names, scores)
    return found | more


def test_a_key_is_that_of_the_request():
    assert key(TINY) == key(TINY.replace(seed=0))
    assert key(TINY) != key(TINY.replace(seed=1))
    # Stored rows would be lost if the keys of a later version differed.
    assert key(TINY) == "2f46d0832b8fcab765c9"


def test_the_row_of_a_run_holds_its_request_scores_and_provenance(tmp_path, monkeypatch):
    (ended,) = run_all([Job("tiny", TINY, tmp_path / "run")])
    store = Store(tmp_path / "new" / "runs.jsonl")
    store.append(row_of(ended))
    (found,) = store.rows().values()
    outcome = load_outcome(tmp_path / "run")
    assert found["key"] == key(TINY)
    assert found["asked"] == TINY.asked()
    assert (found["status"], found["seed"], found["num_steps"]) == ("done", 0, 6)
    assert found["task"] == {"name": "permutation", "group": "S_3", "length": 5, "train_size": 20}
    assert list(found["test"]) == ["5", "7"]
    for name in ("best_test", "test_at_best_validation"):
        expected = getattr(outcome, name).test[5]["product"]
        assert found[name] == {"product": dataclasses.asdict(expected)}
    validation = outcome.test_at_best_validation.validation["product"]
    assert found["best_validation"] == {"product": dataclasses.asdict(validation)}
    assert found["num_parameters"] == outcome.num_parameters
    assert {"commit", "packages", "cpu"} <= found["environment"].keys()
    diverged = row_of(dataclasses.replace(ended, status="diverged", message="it must be finite"))
    assert (diverged["message"], diverged["best_test"]) == ("it must be finite", {})
    # JSON has no number for a loss that is not finite.
    scores = dataclasses.replace(outcome.last.test[5]["product"], loss=float("inf"))
    changed = dataclasses.replace(outcome.last, test={5: {"product": scores}})
    infinite = dataclasses.replace(outcome, last=changed)
    monkeypatch.setattr("statemix_lab.studies.store.load_outcome", lambda _: infinite)
    assert row_of(ended)["test"]["5"]["product"]["loss"] is None


def test_the_first_finished_row_counts_or_else_the_last(tmp_path):
    store = Store(tmp_path / "runs.jsonl")
    assert store.rows() == {}
    for one in (row("a", "failed"), row("a", n=1), row("a", "failed"), row("b", "diverged")):
        store.append(one)
    store.append(row("b", "failed"))
    store.append(row("a", n=2))
    found = store.rows()
    assert found == {"a": row("a", n=1), "b": row("b", "failed")}
    other = Store(tmp_path / "other.jsonl")
    other.append(row("b", n=2))
    other.append(row("a", n=3))
    assert merged([store.path, other.path]) == {"a": row("a", n=1), "b": row("b", n=2)}


def test_a_line_that_a_killed_writer_left_is_removed_by_the_next_one(tmp_path):
    store = Store(tmp_path / "runs.jsonl")
    store.append(row("a"))
    with store.path.open("a") as file:
        file.write('{"key": "b", "sta')
    assert list(store.rows()) == ["a"]
    store.append(row("c"))
    assert [json.loads(line)["key"] for line in store.path.read_text().splitlines()] == ["a", "c"]


@pytest.mark.parametrize("change", [b"\n%s", b"%s\n\n", b"%s  ", b"\xef\xbb\xbf%s"])
def test_what_editors_leave_between_rows_does_no_harm(tmp_path, change):
    store = Store(tmp_path / "runs.jsonl")
    before = change % (json.dumps(row("a")).encode() + b"\n")
    store.path.write_bytes(before)
    assert list(store.rows()) == ["a"]
    store.append(row("c"))
    assert list(store.rows()) == ["a", "c"]
    assert store.path.read_bytes().startswith(before)


def test_a_last_row_without_a_newline_counts_and_stays(tmp_path):
    store = Store(tmp_path / "runs.jsonl")
    store.path.write_text(json.dumps(row("a")) + "\n" + json.dumps(row("b")))
    assert list(store.rows()) == ["a", "b"]
    store.append(row("c"))
    assert list(store.rows()) == ["a", "b", "c"]


@pytest.mark.parametrize("content", ['{"mine": "no store"}', "my notes"])
def test_a_last_line_that_is_no_row_is_refused_and_stays(tmp_path, content):
    store = Store(tmp_path / "notes.json")
    store.path.write_text(content)
    with pytest.raises(RequestError, match=r"notes\.json:1 must be a row of a results store"):
        store.rows()
    with pytest.raises(RequestError, match=r"notes\.json:1 must be a row of a results store"):
        store.append(row("a"))
    assert store.path.read_text() == content


def test_a_later_call_reads_only_what_was_appended(tmp_path, monkeypatch):
    read, whole = [], Store._row
    monkeypatch.setattr(
        Store, "_row", lambda store, *line: read.append(line[0]) or whole(store, *line)
    )
    store, other = Store(tmp_path / "runs.jsonl"), Store(tmp_path / "runs.jsonl")
    store.append(row("a"))
    assert list(store.rows()) == ["a"]
    other.append(row("b"))
    assert list(store.rows()) == ["a", "b"]
    # An editor leaves no newline; the next writer adds it.
    store.path.write_text(store.path.read_text().rstrip() + "\n" + json.dumps(row("c")))
    assert list(store.rows()) == ["a", "b", "c"]
    assert (read.count(1), read.count(2)) == (1, 1)
    other.append(row("d"))
    assert list(store.rows()) == ["a", "b", "c", "d"]
    # A file that is shorter or another one is read anew.
    store.path.write_text(json.dumps(row("e")) + "\n")
    assert list(store.rows()) == ["e"]
    store.path.with_name("new").write_text("".join(json.dumps(row(n)) + "\n" for n in "fghi"))
    store.path.with_name("new").replace(store.path)
    assert list(store.rows()) == ["f", "g", "h", "i"]
    store.path.write_text(store.path.read_text() + "[]\n")
    with pytest.raises(RequestError, match=":5 must be a row"):
        store.rows()


NOT_A_NUMBER = {"product": {"token_accuracy": math.nan, "mad_accuracy": 0.5}}


def test_what_is_no_regular_file_is_no_store(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe"):
        with pytest.raises(RequestError, match="a results store must be a regular file, got '"):
            Store(tmp_path / name).rows()
    (tmp_path / "file").touch()
    assert Store(tmp_path / "file" / "runs.jsonl").rows() == {}


@pytest.mark.parametrize(
    ("line", "got"),
    [
        (b"{", "JSONDecodeError"),
        (b"[]", r"\[\]"),
        (b"[" * 100_000, "RecursionError"),
        ({"key": None}, "key=None"),
        ({"seed": "0"}, "seed='0'"),
        ({"time_s": "1"}, "time_s='1'"),
        ({"status": "weird"}, "status='weird'"),
        ({"language": {"scores": 1.0}}, "language="),
        ({"best_test": {}}, r"best_test=\{\}"),
        ({"best_validation": {"product": {"loss": 1.0}}}, "best_validation="),
        ({"test_at_best_validation": NOT_A_NUMBER}, "test_at_best_validation="),
    ],
)
def test_a_file_that_is_no_store_is_refused_with_its_line(tmp_path, line, got):
    path = tmp_path / "runs.jsonl"
    if isinstance(line, dict):
        line = json.dumps(row() | line).encode()
    path.write_bytes(json.dumps(row()).encode() + b"\n" + line + b"\n")
    wanted = rf"runs.jsonl:2 must be a row of a results store, got {got}"
    with pytest.raises(RequestError, match=wanted):
        Store(path).rows()


def test_nothing_is_written_while_another_writer_has_its_turn(tmp_path, monkeypatch):
    store = Store(tmp_path / "runs.jsonl")
    store.path.write_text('{"key": "b", "sta')
    # The lock of another writer, which has not finished its line; no wait for its end.
    monkeypatch.setattr("statemix_lab.studies.store.FileLock", partial(FileLock, timeout=0))
    with FileLock(f"{store.path}.lock"), pytest.raises(Timeout):
        store.append(row("a"))
    assert store.path.read_text() == '{"key": "b", "sta'
    store.append(row("a"))
    assert list(store.rows()) == ["a"]


def test_two_writers_lose_no_row_and_mix_no_line(tmp_path):
    path = tmp_path / "runs.jsonl"

    def write(name):
        for number in range(40):
            Store(path).append(row(f"{name}{number}", text="x" * 3000))

    with ThreadPoolExecutor(2) as writers:
        list(writers.map(write, "ab"))
    assert len(path.read_text().splitlines()) == len(Store(path).rows()) == 80


NAMES = ["exact-automata", "exact-factorial", "exact-groups", "exact-protocols", "larger-groups"]
NAMES += ["perfect-scores", "monitors", "fp-a5", "fp-budget", "fp-copy", "wrapper", "table6"]


@pytest.mark.parametrize("names", [NAMES, ["fig4", "duel"]], ids=["accuracies", "language"])
def test_every_stored_row_is_of_a_run_that_a_study_has(names):
    """A later change of the requests would lose weeks of training."""
    if "fig4" in names:
        pytest.importorskip("transformers", reason="transformers is not installed")
    listed = [study for name, study in studies().items() if name in names]
    known = {
        name
        for study in listed
        for size in study.sizes[:2]
        for entry in study.entries("paper", size)
        for _, _, name in entry.trials.runs
    }
    files = ["language"] if "fig4" in names else names
    stored = merged(ROOT / "results" / "reproduce" / f"{name}.jsonl" for name in files)
    assert stored
    assert set(stored) <= known
