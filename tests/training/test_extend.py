"""Finished runs are extended, and weights of another run are the start of a new one."""

import shutil

import pytest
import torch

from statemix.errors import RequestError, SettingError
from statemix.tasks import TaskSpec
from statemix.training import load_config, load_model, load_outcome, train
from statemix.training.folder import read_metrics

CONSTANT = {"schedules.learning_rate": "constant", "evaluation.lengths": (9,)}


def left(folder):
    rows = read_metrics(folder)
    for row in rows:
        del row["time_s"]
    return rows, load_outcome(folder).weights


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_extended_run_is_the_longer_run(tiny, tmp_path, interrupted):
    short, long = (tiny(CONSTANT | {"schedules.epochs": epochs}) for epochs in (4, 7))

    def stop(event):
        if interrupted and event.kind == "step" and event.step == 8:
            raise KeyboardInterrupt

    whole = train(long, tmp_path / "whole")
    try:
        train(short, tmp_path / "run", on_event=stop)
    except KeyboardInterrupt:
        assert interrupted
    message = r"schedules\.epochs=4, not 7; extend the run or choose another folder$"
    with pytest.raises(RequestError, match=message):
        train(long, tmp_path / "run")
    found = train(long, tmp_path / "run", extend=True)
    assert left(tmp_path / "run") == left(tmp_path / "whole")
    assert (found.last, found.best_test) == (whole.last, whole.best_test)
    assert load_config(tmp_path / "run").schedules.epochs == 7
    # The same call finds it finished, with and without the flag.
    assert train(long, tmp_path / "run", extend=True) == train(long, tmp_path / "run")


def test_a_kill_while_a_run_is_extended_loses_nothing(tiny, tmp_path, monkeypatch):
    short, long = (tiny(CONSTANT | {"schedules.epochs": epochs}) for epochs in (4, 7))
    train(long, tmp_path / "whole")
    train(short, tmp_path / "run")

    def die(path, content):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("statemix.training.folder.write_file", die)
        with pytest.raises(SystemExit):
            train(long, tmp_path / "run", extend=True)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    train(long, tmp_path / "run", extend=True)
    assert left(tmp_path / "run") == left(tmp_path / "whole")
    # The shorter request still ends where it had ended.
    assert train(short, tmp_path / "copy").last.step == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedules.epochs": 3}, r"schedules\.epochs must be at least 4 to extend, got 3"),
        ({"schedules.epochs": 7, "batches.size": 4}, r"batches\.size=8, not 4"),
        ({"search.attempts": 2}, r"search\.attempts must be absent to extend a run without it"),
    ],
)
def test_what_is_no_extension_is_refused(tiny, tmp_path, changes, message):
    train(tiny(), tmp_path)
    with pytest.raises(RequestError, match=message):
        train(tiny(changes), tmp_path, extend=True)
    assert load_outcome(tmp_path).last.step == 12


def test_only_a_longer_request_names_extension(tiny, tmp_path):
    train(tiny(), tmp_path)
    for others in ({"epochs": 3}, {"epochs": 7, "learning_rate": "constant"}):
        changes = {f"schedules.{name}": value for name, value in others.items()}
        with pytest.raises(RequestError, match=r", not \S+; choose another folder$"):
            train(tiny(changes), tmp_path)


# Attempts that have failed after three steps.
FAILING = {"search.attempts": 1, "search.max_steps": 3, "search.plateau": 0.0}
FAILING |= {"search.every": 2, "search.tests": 2}


@pytest.mark.parametrize("confirm", [None, 1.0])
def test_more_attempts_follow_those_that_have_failed(fresh, tmp_path, confirm):
    accept = {"search.accept_last": 1.0 if confirm is None else 0.0, "search.confirm": confirm}
    few, more = (fresh(FAILING | accept | {"search.attempts": count}) for count in (1, 3))
    first = train(few, tmp_path / "run")
    assert [attempt.passed for attempt in first.attempts] == [False]
    with pytest.raises(RequestError, match=r"search\.attempts=1, not 3; extend the run or"):
        train(more, tmp_path / "run")
    found = train(more, tmp_path / "run", extend=True)
    assert len(found.attempts) == 3
    assert found.attempts[0] == first.attempts[0]
    assert found.attempts[1].began == first.last.step
    assert train(more, tmp_path / "run", extend=True) == found
    # Without a last test, the first run has also trained its failed attempt to the end.
    whole = train(more, tmp_path / "whole")
    assert (whole.weights == found.weights) is (confirm is not None)


def test_more_attempts_change_nothing_in_a_search_that_has_passed(fresh, tmp_path):
    passing = FAILING | {"search.accept_last": 0.0}
    few, more = (fresh(passing | {"search.attempts": count}) for count in (1, 3))
    first = train(few, tmp_path)
    found = train(more, tmp_path, extend=True)
    assert (found.weights, found.attempts) == (first.weights, first.attempts)
    with pytest.raises(SettingError, match=r"search\.attempts must be at least 3 to extend, got 1"):
        train(few, tmp_path, extend=True)


def test_a_finished_run_of_an_older_version_says_what_is_missing(tiny, tmp_path):
    train(tiny(), tmp_path)
    path = tmp_path / "state.json"
    for damage in (lambda: path.write_text(path.read_text() + " "), path.unlink):
        damage()
        with pytest.raises(RequestError, match=r"state\.json must hold a run's last state to exte"):
            train(tiny({"schedules.epochs": 7}), tmp_path, extend=True)
    assert load_outcome(tmp_path).last.step == 12


def test_a_run_starts_from_the_weights_of_another(tiny, tmp_path):
    train(tiny(), tmp_path / "first")
    config = tiny({"start_from": str(tmp_path / "first"), "optimizer.learning_rate": 1e-5}, seed=5)
    seen = []
    step = torch.optim.AdamW.step

    def watch(self, *arguments):
        seen.append(self.param_groups[0]["params"][0].detach().clone())
        return step(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", watch)
        train(config, tmp_path / "second")
    assert torch.equal(seen[0], next(load_model(tmp_path / "first").parameters()))
    # A start that was trained again is named by a warning.
    shutil.rmtree(tmp_path / "first")
    train(config, tmp_path / "second")
    train(tiny(seed=1), tmp_path / "first")
    with pytest.warns(UserWarning, match=f"have changed: weights of {tmp_path / 'first'}="):
        train(config, tmp_path / "second")


@pytest.mark.parametrize("kind", ["absent", "another network"])
def test_a_start_that_cannot_be_is_named_before_anything_is_written(tiny, tmp_path, kind):
    if kind == "another network":
        train(tiny({"model.hidden_size": 4}), tmp_path / "first")
    with pytest.raises(SettingError, match=r"^start_from must be a finished run with weights of"):
        train(tiny({"start_from": str(tmp_path / "first")}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("start_from", "run", {"search.attempts": 2}),
        ("schedules.first_length", 2, {"search.attempts": 2}),
        ("schedules.first_length", 2, {"objective.position_power": 1.0}),
    ],
)
def test_settings_that_exclude_each_other_are_named(fresh, name, value, other):
    with pytest.raises(SettingError, match=f"^{name} must be absent with {next(iter(other))}"):
        fresh({name: value} | other)


def test_a_run_whose_first_sequences_were_short_is_not_extended(fresh, tmp_path):
    config = fresh({"schedules.first_length": 2})
    train(config, tmp_path)
    longer = fresh({"schedules.first_length": 2, "schedules.num_steps": 9})
    with pytest.raises(SettingError, match=r"schedules\.first_length must be absent to extend"):
        train(longer, tmp_path, extend=True)


def test_first_sequences_without_labels_are_refused_before_anything_is_written(fresh, tmp_path):
    task = TaskSpec("copying", length=20)
    with pytest.raises(SettingError, match=r"schedules\.first_length must reach the labels"):
        train(fresh({"task": task, "schedules.first_length": 3}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
