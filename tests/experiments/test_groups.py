"""Runs of one shape train as replicas, or alone; nobody can tell from what they leave."""

import dataclasses
import gc
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from statemix.errors import RequestError
from statemix.experiments.groups import grouped
from statemix.experiments.runner import Job, run_all
from statemix.experiments.store import key, row_of
from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
    load_outcome,
)
from statemix.training.folder import read_status
from statemix.training.stack import Stack

BD_LRU = LayerSpec("bd_lru", num_blocks=2, block_size=3)


def run(layer=BD_LRU, rate=1e-3, **more):
    settings = {
        "task": TaskSpec("permutation", group="S_3", length=5, train_size=20),
        "model": ModelConfig(layers=(layer,), hidden_size=8),
        "batches": BatchConfig(size=8),
        "optimizer": OptimizerConfig(learning_rate=rate),
        "schedules": ScheduleConfig(epochs=2, learning_rate="constant"),
        "evaluation": EvaluationConfig(test_size=10, validation_size=10),
        "runtime": RuntimeConfig(num_threads=1, device="cpu", precision="64-true"),
    }
    return RunConfig(**(settings | more))


def jobs_in(folder, **configs):
    return [Job(name, config, folder / name) for name, config in configs.items()]


def together(folder):
    """The number of replicas that the folder's environment names."""
    return json.loads((folder / "environment.json").read_text()).get("replicas", 1)


def names(groups):
    return [[job.name for job in group] for group in groups]


def test_jobs_of_one_shape_start_with_the_first_of_them():
    small = LayerSpec("bd_lru", num_blocks=2, block_size=2)
    jobs = jobs_in(
        Path("x"),
        a=run(),
        small=run(small),
        b=run(seed=1),
        c=run(rate=0.01),
        again=run(small, seed=2),
        d=run(seed=2),
    )
    assert names(grouped(jobs, 1)) == [["a"], ["small"], ["b"], ["c"], ["again"], ["d"]]
    assert names(grouped(jobs, 2)) == [["a", "b"], ["small", "again"], ["c", "d"]]
    assert names(grouped(jobs, 3)) == [["a", "b", "c"], ["small", "again"], ["d"]]
    assert names(grouped(jobs, 9)) == [["a", "b", "c", "d"], ["small", "again"]]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_replicas_leave_what_single_runs_leave(tmp_path, num_workers):
    configs = {"a": run(), "b": run(seed=1), "c": run(rate=0.01), "hot": run(rate=1e300)}
    jobs = jobs_in(tmp_path / "replicas", **configs)
    told, events = [], []
    rows = run_all(
        jobs,
        num_workers=num_workers,
        replicas=4,
        on_event=lambda job, event: events.append((job.name, event.kind)),
        on_end=told.append,
    )
    single = run_all(jobs_in(tmp_path / "single", **configs))
    assert [row.status for row in rows] == ["done", "done", "done", "diverged"]
    assert sorted(told, key=lambda row: row.job.name) == rows
    assert {name for name, kind in events if kind == "step"} == set(configs)
    for row, other in zip(rows, single, strict=True):
        assert (row.status, row.message, row.details) == (other.status, other.message, "")
        assert read_status(row.job.folder) == read_status(other.job.folder)
        assert together(row.job.folder) == 4
        stored, expected = row_of(row), row_of(other)
        assert stored["key"] == key(row.job.config)
        for name in ("ended_utc", "time_s", "environment"):
            del stored[name], expected[name]
        assert_near(stored, expected)
    # A repeated call trains nothing.
    again = run_all(jobs, replicas=4)
    assert not any(row.started for row in again)


def assert_near(found, expected):
    """Plain data agree up to rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_near(found[name], expected[name])
    else:
        near = isinstance(expected, float)
        assert found == (pytest.approx(expected, rel=1e-5) if near else expected)


def test_runs_that_cannot_be_stacked_train_one_by_one_and_say_why(tmp_path):
    lstm = LayerSpec("lstm")
    jobs = jobs_in(tmp_path, a=run(lstm), one=run(), b=run(lstm, seed=1), two=run(seed=1))
    events = []
    rows = run_all(jobs, replicas=5, on_event=lambda *event: events.append(event))
    assert [row.status for row in rows] == ["done"] * 4
    assert [together(job.folder) for job in jobs] == [1, 2, 1, 2]
    messages = [(job.name, event.text) for job, event in events if event.kind == "message"]
    ((name, text),) = messages
    assert name == "a"
    assert text.startswith("2 runs train one by one: model must be one that vmap can batch: ")


TOYS = ("statemix_toys",)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_group_that_fails_is_tried_run_by_run(toys, tmp_path, num_workers):
    """The layer counts its calls in training mode: the first two are trials, the third a step."""
    raising = LayerSpec("raising", at=3)
    configs = {"a": run(raising, imports=TOYS), "b": run(raising, imports=TOYS, seed=1)}
    jobs = jobs_in(tmp_path, **configs, well=run())
    rows = run_all(jobs, num_workers=num_workers, replicas=3)
    assert [row.status for row in rows] == ["failed", "failed", "done"]
    for row in rows[:2]:
        assert row.message == "no such neuron"
        assert row.details.startswith("Traceback")
        assert read_status(row.job.folder).status == "failed"
        assert together(row.job.folder) == 2


def test_a_failure_of_the_group_alone_costs_no_run(tmp_path, monkeypatch):
    """Memory may suffice for each but not for all."""

    def fail(self, gradient):
        raise MemoryError("not enough for all")

    update = "statemix.training.stacked_optimizer.StackedAdamW.update"
    with monkeypatch.context() as patch:
        patch.setattr(update, fail)
        texts = []
        jobs = jobs_in(tmp_path / "run", a=run(), b=run(seed=1))
        rows = run_all(
            jobs,
            replicas=2,
            on_event=lambda job, event: texts.append(event.text) if event.text else None,
        )
    assert [row.status for row in rows] == ["done", "done"]
    assert texts.count("trains alone: not enough for all") == 2
    whole = run_all(jobs_in(tmp_path / "whole", a=run(), b=run(seed=1)))
    for row, other in zip(rows, whole, strict=True):
        assert load_outcome(row.job.folder).weights == load_outcome(other.job.folder).weights


def test_an_interrupt_saves_all_replicas_and_the_same_call_resumes(tmp_path):
    jobs = jobs_in(tmp_path, a=run(), b=run(seed=1), other=run(LayerSpec("lstm")))

    def stop(job, event):
        if (job.name, event.kind, event.step) == ("b", "step", 4):
            raise KeyboardInterrupt

    rows = []
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, replicas=2, on_event=stop, on_end=rows.append)
    assert [(row.job.name, row.status) for row in rows] == [
        ("a", "interrupted"),
        ("b", "interrupted"),
    ]
    assert not jobs[2].folder.exists()
    steps = [list((job.folder / "checkpoints").iterdir())[-1].name for job in jobs[:2]]
    assert steps == ["step-000000004"] * 2
    assert [row.status for row in run_all(jobs, replicas=2)] == ["done"] * 3


def test_when_the_time_is_up_every_replica_is_saved(tmp_path, monkeypatch):
    long = {"schedules": ScheduleConfig(epochs=100_000)}
    jobs = jobs_in(tmp_path, a=run(**long), b=run(seed=1, **long))
    began = set()
    clock = SimpleNamespace(monotonic=lambda: 3600.0 * (len(began) == 2))
    monkeypatch.setattr("statemix.experiments.runner.time", clock)

    def on_event(job, event):
        if event.kind == "step" and event.step > 5:
            began.add(job.name)

    rows = run_all(jobs, replicas=2, until=1800.0, on_event=on_event)
    assert [row.status for row in rows] == ["interrupted"] * 2
    for job in jobs:
        assert read_status(job.folder).status == "interrupted"
        assert list((job.folder / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        (0, "replicas must be greater than or equal to 1, got 0"),
        ("two", "replicas must be a valid integer, got 'two'"),
    ],
)
def test_a_bad_number_is_named(tmp_path, replicas, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        run_all(jobs_in(tmp_path, a=run()), replicas=replicas)


def test_a_folder_of_another_run_fails_alone(tmp_path):
    jobs = jobs_in(tmp_path, a=run(), b=run(seed=1))
    run_all([dataclasses.replace(jobs[0], config=run(seed=5))])
    rows = run_all(jobs, replicas=2)
    assert [row.status for row in rows] == ["failed", "done"]
    assert "seed=5, not 0 by default" in rows[0].message


@pytest.mark.parametrize("after", [1, 3])
def test_an_error_of_the_caller_is_not_taken_for_that_of_a_run(tmp_path, after):
    """Such as a full disk under the results store."""
    ended = []

    def store(row):
        ended.append(row.job.name)
        if len(ended) == after:
            raise OSError("No space left on device")

    jobs = jobs_in(tmp_path, hot=run(rate=1e300), a=run(), b=run(seed=1))
    with pytest.raises(OSError, match="No space left"):
        run_all(jobs, replicas=3, on_end=store)
    assert len(ended) == after


def test_the_stack_that_failed_is_not_kept_while_its_runs_train_alone(tmp_path, monkeypatch):
    def alive():
        return [thing for thing in gc.get_objects() if type(thing) is Stack]

    def fail(self, gradient):
        raise MemoryError("too much for all")

    kept = []
    monkeypatch.setattr("statemix.training.stacked_optimizer.StackedAdamW.update", fail)
    jobs = jobs_in(tmp_path, a=run(), b=run(seed=1))

    def count(job, event):
        if event.kind == "step":
            kept.append(len(alive()))

    rows = run_all(jobs, replicas=2, on_event=count)
    assert [row.status for row in rows] == ["done", "done"]
    assert set(kept) == {0}
