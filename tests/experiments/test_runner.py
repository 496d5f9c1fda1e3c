"""Every job ends in a row, whatever happens to it or to its worker."""

import contextlib
import dataclasses
import multiprocessing
import signal
import threading

import pytest

from statemix.experiments import runner
from statemix.experiments.runner import Ended, run_all
from statemix.settings import RequestError
from statemix.training.folder import write_status


def fail_with(error, monkeypatch, at=None):
    """Training raises ``error``, if it is the job's turn."""
    train = runner.train

    def fail(config, folder, on_event):
        if at is None or folder.name == at:
            raise error
        return train(config, folder, on_event=on_event)

    monkeypatch.setattr(runner, "train", fail)


@pytest.mark.parametrize(
    ("error", "status", "traced"),
    [
        (FloatingPointError("loss is nan"), "diverged", False),
        (RequestError("folder must be empty"), "failed", False),
        (OSError(28, "No space left"), "failed", False),
        (KeyError("odd"), "failed", True),
        (AssertionError(), "failed", True),
        (MemoryError("odd"), "failed", True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_error_is_the_row_of_its_job_and_no_other(jobs, monkeypatch, error, status, traced):
    fail_with(error, monkeypatch, at=jobs[0].folder.name)
    told = []
    rows = run_all(jobs, on_end=told.append)
    assert rows == told
    assert [row.status for row in rows] == [status, "done"]
    assert rows[0].message == (str(error) or type(error).__name__)
    assert ("Traceback" in rows[0].details) == traced
    assert rows[1] == Ended(jobs[1], "done")


def test_an_unexpected_error_comes_back_from_a_worker_with_its_traceback(jobs, monkeypatch):
    fail_with(KeyError("odd"), monkeypatch)
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=runner._serve, args=(theirs,))
    thread.start()
    try:
        ours.send(jobs[0])
        assert ours.poll(60)
        row = ours.recv()
    finally:
        ours.close()
        thread.join()
        theirs.close()
    assert (row.job, row.status) == (jobs[0], "failed")
    assert "in fail\n" in row.details


@pytest.mark.parametrize("death", ["before its job", "with its job unread", "in its job"])
def test_a_worker_that_dies_fails_its_run_and_leaves_the_others_interrupted(
    jobs, monkeypatch, death
):
    ours, theirs = multiprocessing.Pipe()

    @contextlib.contextmanager
    def one_worker(count):
        if death == "before its job":
            theirs.close()
        yield [ours]
        ours.close()

    wait = runner.wait

    def die_then_wait(connections):
        if death == "in its job":
            assert theirs.recv() == jobs[0]
        theirs.close()
        return wait(connections)

    monkeypatch.setattr(runner, "_workers", one_worker)
    monkeypatch.setattr(runner, "wait", die_then_wait)
    rows = run_all(jobs, num_workers=2)
    assert [(row.status, row.started) for row in rows] == [("failed", True), ("interrupted", False)]
    assert rows[0].message == f"the process training {jobs[0].name} died"
    assert rows[1].message == "every worker process died"


def test_a_worker_that_dies_leaves_its_work_to_the_others(tiny, tmp_path, monkeypatch):
    jobs = dataclasses.replace(tiny, seeds=(0, 1)).jobs(tmp_path)
    pipes = [multiprocessing.Pipe() for _ in range(2)]
    pipes[0][1].close()

    @contextlib.contextmanager
    def workers(count):
        yield [ours for ours, _ in pipes]
        for ours, _ in pipes:
            ours.close()

    thread = threading.Thread(target=runner._serve, args=(pipes[1][1],))
    thread.start()
    monkeypatch.setattr(runner, "_workers", workers)
    rows = run_all(jobs, num_workers=2)
    thread.join()
    pipes[1][1].close()
    assert [row.status for row in rows] == ["failed", "done", "done", "done"]


def test_processes_that_end_at_once_are_no_raw_error(jobs, monkeypatch):
    monkeypatch.setattr(runner, "_serve", id)
    assert {row.status for row in run_all(jobs, num_workers=2)} == {"failed"}


def test_workers_may_be_started_from_any_thread(jobs, monkeypatch):
    rows = []
    monkeypatch.setattr(runner, "_serve", id)
    thread = threading.Thread(target=lambda: rows.extend(run_all(jobs, num_workers=2)))
    thread.start()
    thread.join()
    assert all("died" in row.message for row in rows)
    assert len(rows) == 2


def test_a_handler_that_python_did_not_install_is_left_alone(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("the handler was touched"))
    with runner._signals_ignored():
        pass


@pytest.mark.parametrize("ending", ["diverged", "failed"])
def test_runs_that_ended_badly_are_reported_unless_they_are_to_be_retried(jobs, ending):
    run_all(jobs)
    (jobs[0].folder / "summary.json").unlink()
    write_status(jobs[0].folder, ending, "the reason")
    assert run_all(jobs)[0] == Ended(jobs[0], ending, "the reason", started=False)
    other = {"diverged": "failed", "failed": "diverged"}[ending]
    assert run_all(jobs, retry=[other])[0].status == ending
    assert run_all(jobs, retry=[ending])[0] == Ended(jobs[0], "done")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "num_workers must be at least 1, got 0"),
        ({"retry": ["done"]}, r"retry must be among .* got \['done'\]"),
    ],
)
def test_bad_requests_are_named(jobs, options, message):
    with pytest.raises(RequestError, match=message):
        run_all(jobs, **options)


def test_jobs_must_not_share_a_folder(jobs):
    with pytest.raises(RequestError, match="got one folder twice"):
        run_all([jobs[0], dataclasses.replace(jobs[1], folder=jobs[0].folder)])


def test_a_fresh_start_removes_runs_and_nothing_else(jobs):
    jobs[0].folder.mkdir()
    (jobs[0].folder / "precious").touch()
    with pytest.raises(RequestError, match=r"must be empty or hold a run, got .* with 'precious'"):
        run_all(jobs, fresh=True)
    assert (jobs[0].folder / "precious").exists()


def test_a_fresh_start_removes_what_a_run_left_that_was_killed_as_it_began(jobs):
    jobs[0].folder.mkdir()
    for name in (".lock", "environment.json"):
        (jobs[0].folder / name).touch()
    assert [row.status for row in run_all(jobs, fresh=True)] == ["done", "done"]
