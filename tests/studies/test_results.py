"""Rows report the contents of the run folders and how every run ended."""

import dataclasses
import json

import pytest

from statemix.studies import results
from statemix.studies.runner import Ended, run_all
from statemix.training import load_outcome
from statemix.training.folder import read_metrics


@pytest.fixture
def finished(tiny, tmp_path):
    """Both runs of the tiny suite, and their rows."""
    ended = run_all(tiny.jobs(tmp_path))
    return results.rows(tiny, tmp_path, ended)


def test_rows_are_plain_and_hold_the_scores_of_the_folders(tiny, tmp_path, finished):
    assert json.loads(json.dumps(finished)) == finished
    for row, job in zip(finished, tiny.jobs(tmp_path), strict=True):
        outcome = load_outcome(job.folder)
        assert (row["status"], row["message"], row["seed"]) == ("done", "", 0)
        assert list(row["test"]) == ["16", "24", "40"]
        for length, heads in outcome.last.test.items():
            stored = row["test"][str(length)]["product"]
            assert stored["token_accuracy"] == heads["product"].token_accuracy
            assert stored["num_sequences"] == heads["product"].num_sequences
        for name in ("best_test", "test_at_best_validation"):
            selected = getattr(outcome, name).test[16]["product"]
            assert row[name]["product"] == dataclasses.asdict(selected)
        assert row["num_parameters"] == outcome.num_parameters
        assert row["time_s"] == outcome.time_s
    assert [row["network"] for row in finished] == ["BD-LRU m=3", "LSTM"]
    assert finished[0]["task"] == {"name": "permutation", "group": "S_3", "train_size": 20}
    assert finished[0]["layers"] == [{"name": "bd_lru", "num_blocks": 2, "block_size": 3}]


def test_a_loss_that_is_not_finite_is_none(tiny, tmp_path, finished, monkeypatch):
    outcome = load_outcome(tiny.jobs(tmp_path)[0].folder)
    scores = dataclasses.replace(outcome.last.test[24]["product"], loss=float("inf"))
    last = dataclasses.replace(outcome.last, test={24: {"product": scores}})
    changed = dataclasses.replace(outcome, last=last)
    monkeypatch.setattr("statemix.studies.results.load_outcome", lambda _: changed)
    found = results.rows(tiny, tmp_path)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found[0]["test"]["24"]["product"] == dataclasses.asdict(scores) | {"loss": None}


def test_curves_are_the_rows_of_the_metrics(tiny, tmp_path, finished):
    for row, job in zip(finished, tiny.jobs(tmp_path), strict=True):
        metrics = read_metrics(job.folder)
        assert row["curve"]["step"] == [line["step"] for line in metrics] == [3, 6]
        assert row["curve"]["epoch"] == [1, 2]
        assert row["curve"]["accuracy"] == {
            "product": [line["test"]["16"]["product"]["token_accuracy"] for line in metrics]
        }


def test_folders_alone_give_the_same_rows(tiny, tmp_path, finished):
    assert results.rows(tiny, tmp_path) == finished


def test_runs_without_a_result_are_rows_too(tiny, tmp_path):
    first, second = tiny.jobs(tmp_path)
    ended = [Ended(first, "diverged", "loss is nan"), Ended(second, "failed", "disk full")]
    rows = results.rows(tiny, tmp_path, ended)
    assert [(row["status"], row["message"]) for row in rows] == [
        ("diverged", "loss is nan"),
        ("failed", "disk full"),
    ]
    for row in rows:
        assert row["test"] == {}
        assert row["curve"] == {"step": [], "epoch": None, "accuracy": {}}
        assert row["time_s"] is None


def test_runs_that_never_began_are_missing(tiny, tmp_path):
    assert {row["status"] for row in results.rows(tiny, tmp_path)} == {"missing"}


@pytest.mark.parametrize("file", ["summary.json", "metrics.jsonl", "config.json"])
def test_a_damaged_file_costs_its_own_row_only(tiny, tmp_path, finished, file):
    (tiny.jobs(tmp_path)[0].folder / file).write_text("{")
    rows = results.rows(tiny, tmp_path)
    assert rows[0]["status"] == "failed"
    assert rows[0]["message"]
    assert rows[0]["test"] == {}
    assert rows[1] == finished[1]


def test_the_environment_is_that_of_the_first_run_that_began(tiny, tmp_path, finished):
    jobs = tiny.jobs(tmp_path)
    (jobs[0].folder / "environment.json").unlink()
    found = results.environment(jobs)
    assert found == json.loads((jobs[1].folder / "environment.json").read_text())
    assert found["packages"]["torch"]
    assert results.environment(tiny.jobs(tmp_path / "elsewhere")) is None
