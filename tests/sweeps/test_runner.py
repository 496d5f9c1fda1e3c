"""Many runs: each ends in its own row, whatever happens to the others."""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from statemix.errors import RequestError
from statemix.interrupts import SIGNALS
from statemix.layers import LayerSpec
from statemix.sweeps import runner
from statemix.sweeps.runner import Job, run_all
from statemix.tasks import TaskSpec
from statemix.training import RunConfig, load_outcome, train
from statemix.training.folder import read_status

BD_LRU = LayerSpec("bd_lru", num_blocks=2, block_size=3)


def run(layer=BD_LRU, epochs=2, rate=1e-3, **more):
    return RunConfig(
        task=TaskSpec("permutation", group="S_3", length=5, train_size=20),
        model={"layers": [layer], "hidden_size": 8},
        batches={"size": 8},
        optimizer={"learning_rate": rate},
        schedules={"epochs": epochs, "learning_rate": "constant"},
        evaluation={"test_size": 10, "validation_size": 10},
        runtime={"num_threads": 1, "device": "cpu"},
        **more,
    )


def jobs_in(folder, **configs):
    return [Job(name, config, folder / name) for name, config in configs.items()]


@pytest.fixture
def jobs(tmp_path):
    return jobs_in(tmp_path, one=run(), two=run(seed=1))


def mixed(folder):
    """Two runs that end well around one that diverges and one of a user's layer that raises."""
    imports = ("statemix_toys",)
    return jobs_in(
        folder,
        first=run(),
        hot=run(rate=3e38),
        odd=run(LayerSpec("raising", at=3), imports=imports),
        last=run(LayerSpec("solver"), imports=imports),
    )


ENDINGS = {"first": "done", "hot": "diverged", "odd": "failed", "last": "done"}


def test_runs_that_diverge_or_raise_end_in_rows_and_the_others_are_done(toys, tmp_path):
    jobs = mixed(tmp_path)
    told, events = [], []

    def call(**more):
        told.clear()
        events.clear()
        rows = run_all(
            jobs,
            on_event=lambda job, event: events.append((job.name, event.kind)),
            on_end=told.append,
            **more,
        )
        assert [row.job for row in rows] == jobs
        assert {row.job.name: row for row in told} == {row.job.name: row for row in rows}
        assert {row.job.name: row.status for row in rows} == ENDINGS
        for job in jobs:
            assert read_status(job.folder).status == ENDINGS[job.name]
        return {row.job.name: row for row in rows}

    rows = call()
    assert {name for name, kind in events if kind == "step"} == set(ENDINGS)
    assert rows["hot"].message.startswith("loss must be finite, got nan at step ")
    assert rows["hot"].details == rows["first"].details == rows["first"].message == ""
    assert rows["odd"].message == "no such neuron"
    assert rows["odd"].details.startswith("Traceback")
    assert "in _map" in rows["odd"].details
    assert all(row.started for row in rows.values())

    # A repeated call trains nothing and reports the failures again.
    again = call()
    assert not {kind for _, kind in events} & {"started", "step"}
    assert [again[n].message for n in ("hot", "odd")] == [rows[n].message for n in ("hot", "odd")]
    assert not any(row.started for row in again.values())

    # With ``retry``, only the failed runs are tried again.
    call(retry=("diverged",))
    assert {name for name, kind in events if kind == "started"} == {"hot"}


def test_a_worker_killed_is_a_failed_row_and_the_rest_goes_on(toys, tmp_path):
    raising = run(LayerSpec("raising", at=3), imports=("statemix_toys",))
    jobs = jobs_in(tmp_path, doomed=run(epochs=10_000), one=run(), odd=raising)
    pids = set()

    def kill(job, event):
        if job.name == "doomed" and event.kind == "step" and not pids:
            (worker,) = (p for p in multiprocessing.active_children() if owns(p.pid, job.folder))
            pids.add(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)

    rows = run_all(jobs, num_workers=2, on_event=kill)
    assert [row.status for row in rows] == ["failed", "done", "failed"]
    assert [row.message for row in rows] == ["its process died", "", "no such neuron"]
    assert rows[2].details.startswith("Traceback")
    assert read_status(jobs[0].folder).status == "interrupted"
    # Results do not depend on the process.
    assert load_outcome(jobs[1].folder).weights == train(run(), tmp_path / "here").weights


def owns(pid, folder):
    """Whether a process has a file in a folder open."""
    with contextlib.suppress(OSError):
        return any(str(folder) in os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_runs_of_this_process_and_the_same_call_resumes(tmp_path, number):
    def stop(job, event):
        if (job.name, event.kind, event.step) == ("two", "step", 4):
            signal.raise_signal(number)

    jobs = jobs_in(tmp_path / "run", one=run(), two=run(seed=1), three=run(seed=2))
    rows = []
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, on_event=stop, on_end=rows.append)
    assert [row.status for row in rows] == ["done", "interrupted"]
    assert not jobs[2].folder.exists()
    assert [row.status for row in run_all(jobs)] == ["done"] * 3
    whole = train(run(seed=1), tmp_path / "whole")
    assert load_outcome(jobs[1].folder).weights == whole.weights


SCRIPT = """
import json, sys
from pathlib import Path
from statemix.sweeps.runner import Job, run_all
from statemix.training import config_from_plain

if __name__ == "__main__":
    configs, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    jobs = [Job(name, config_from_plain(asked), out / name) for name, asked in configs.items()]
    try:
        run_all(jobs, num_workers=2, on_event=lambda job, _: print(job.name, flush=True))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_a_signal_to_the_parent_saves_every_run_under_way(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    configs = {"a": run(epochs=100_000).asked(), "b": run(epochs=100_000, seed=1).asked()}
    command = [sys.executable, tmp_path / "script.py", json.dumps(configs), tmp_path]
    names = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if names != {"a", "b"} and names | {line.strip()} == {"a", "b"}:
                process.send_signal(signal.SIGTERM)
            names.add(line.strip())
    assert (process.returncode, line.strip()) == (0, "interrupted")
    for name in "ab":
        assert read_status(tmp_path / name).status == "interrupted"
        assert list((tmp_path / name / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_workers": 0}, "num_workers must be greater than or equal to 1, got 0"),
        ({"num_workers": 5}, r"num_workers must be in 1\.\.4 .*, got 5"),
        ({"checkpoint_every_s": float("nan")}, "checkpoint_every_s must be a finite number"),
    ],
)
def test_bad_requests_are_named(jobs, monkeypatch, changes, message):
    monkeypatch.setattr("statemix.training.devices.available_processors", lambda: 1)
    with pytest.raises(RequestError, match=f"^{message}"):
        run_all(jobs, **changes)
    twice = [jobs[0], dataclasses.replace(jobs[1], folder=jobs[0].folder / ".." / "one")]
    with pytest.raises(RequestError, match="jobs must have distinct folders"):
        run_all(twice)
    assert not jobs[0].folder.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runtime": {"num_threads": 5}}, r"runtime.num_threads must be in 1\.\.4"),
        ({"runtime": {"device": "cuda"}}, "runtime.device must be available"),
        ({"task": TaskSpec("permutation", length=0)}, "task: length must be at least 1"),
    ],
)
def test_one_job_that_cannot_run_is_one_error_and_none_starts(jobs, monkeypatch, changes, message):
    monkeypatch.setattr("statemix.training.devices.available_processors", lambda: 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    impossible = dataclasses.replace(jobs[1], config=jobs[1].config.replace(**changes))
    told = []
    with pytest.raises(RequestError, match=f"^{message}"):
        run_all([jobs[0], impossible], num_workers=2, on_end=told.append)
    assert (told, jobs[0].folder.exists()) == ([], False)


def test_a_folder_of_another_run_is_a_failed_row(jobs):
    run_all(jobs[:1])
    (row,) = run_all([dataclasses.replace(jobs[0], config=run(seed=5))])
    assert row.status == "failed"
    assert "seed=its default, not 5" in row.message
    assert row.details == ""


def test_a_run_of_another_process_is_left_to_it_and_resumed_later(jobs):
    jobs = [*jobs, *jobs_in(jobs[0].folder.parent, three=run(seed=2))]
    jobs[1].folder.mkdir(parents=True)
    with FileLock(jobs[1].folder / ".statemix.lock"):
        rows = run_all(jobs)
    assert [row.status for row in rows] == ["done", "interrupted", "done"]
    assert rows[1].message.startswith("another process is using ")
    assert [row.status for row in run_all(jobs)] == ["done"] * 3


def test_without_a_worker_left_no_run_blames_the_time(jobs, monkeypatch):
    monkeypatch.setattr(runner, "_serve", id)
    third = dataclasses.replace(jobs[0], folder=jobs[0].folder.with_name("three"))
    rows = run_all([*jobs, third], num_workers=2, until=time.monotonic() + 3600)
    assert [row.status for row in rows] == ["failed", "failed", "interrupted"]
    assert (rows[2].message, rows[2].started) == ("every worker process died", False)
    # No run begins after the time.
    rows = run_all(jobs, until=time.monotonic())
    expected = [("interrupted", "the time was up", False)] * 2
    assert [(row.status, row.message, row.started) for row in rows] == expected
