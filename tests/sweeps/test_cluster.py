"""A Ray cluster trains as processes of this machine do, and stops as they do."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.sweeps import cluster
from statemix.sweeps.runner import Job, run_all
from statemix.tasks import TaskSpec
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
)
from statemix.training.folder import read_status

ray = pytest.importorskip("ray", reason="Ray is not installed")


def run(epochs=2, rate=1e-3, **more):
    return RunConfig(
        task=TaskSpec("permutation", group="S_3", length=5, train_size=20),
        model=ModelConfig(layers=(LayerSpec("bd_lru", num_blocks=2, block_size=3),), hidden_size=8),
        batches=BatchConfig(size=8),
        optimizer=OptimizerConfig(learning_rate=rate),
        schedules=ScheduleConfig(epochs=epochs, learning_rate="constant"),
        evaluation=EvaluationConfig(test_size=10, validation_size=10),
        runtime=RuntimeConfig(num_threads=1, device="cpu"),
        **more,
    )


def jobs_in(folder, **configs):
    return [Job(name, config, folder / name) for name, config in configs.items()]


@pytest.fixture(scope="module")
def local():
    """A cluster of two processors."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("local")
def test_runs_end_as_they_do_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    configs = {"a": run(), "hot": run(rate=3e38), "b": run(seed=1)}
    events, told = [], []
    rows = run_all(
        jobs_in(Path("on"), **configs),
        ray="auto",
        on_event=lambda job, event: events.append((job.name, event.kind)),
        on_end=told.append,
    )
    here = run_all(jobs_in(Path("here"), **configs))
    for row, other in zip(rows, here, strict=True):
        # Whether a checkpoint was due before a run diverged depends on the clock.
        messages = [one.message.partition("; the last good")[0] for one in (row, other)]
        messages = [text.partition("; no good")[0] for text in messages]
        assert (row.status, messages[0], row.details) == (other.status, messages[1], "")
        statuses = [read_status(one.job.folder).status for one in (row, other)]
        assert statuses[0] == statuses[1]
    assert sorted(row.job.name for row in told) == ["a", "b", "hot"]
    assert {(name, "finished") for name in "ab"} < set(events)
    for name in "ab":
        files = [folder / name / "model.safetensors" for folder in (Path("on"), Path("here"))]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert not [path for path in Path("on").iterdir() if path.name.startswith(".shared")]


def endless(folder):
    """Two runs without an end and one that waits for them."""
    return jobs_in(folder, a=run(epochs=10**6), b=run(epochs=10**6, seed=1), c=run())


@pytest.mark.usefixtures("local")
def test_runs_under_way_are_saved_by_ctrl_c_and_the_same_call_resumes(tmp_path):
    jobs, seen, ended = endless(tmp_path / "on"), {}, []

    def stop_when_both(kind):
        def tell(job, event):
            if event.kind == kind:
                seen[job.name] = event.step
            if len(seen) == 2:
                raise KeyboardInterrupt

        return tell

    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, ray="auto", on_event=stop_when_both("evaluated"), on_end=ended.append)
    assert not ended
    assert_saved(jobs)
    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, ray="auto", on_event=stop_when_both("started"))
    assert min(seen.values()) > 0


def assert_saved(jobs):
    for job in jobs[:2]:
        assert read_status(job.folder).status == "interrupted"
        assert list((job.folder / "checkpoints").glob("step-*"))
    assert not jobs[2].folder.exists()


@pytest.mark.usefixtures("local")
def test_a_task_that_is_killed_is_a_failed_row_and_the_rest_goes_on(tmp_path):
    killed = []

    def kill(job, event):
        if job.name == "a" and event.kind == "evaluated" and not killed:
            killed.extend(owners(job.folder))
            os.kill(killed[0], signal.SIGKILL)

    jobs = jobs_in(tmp_path, a=run(epochs=10**6), b=run(), c=run(seed=1))
    rows = run_all(jobs, ray="auto", num_workers=2, on_event=kill)
    assert [row.status for row in rows] == ["failed", "done", "done"]
    assert rows[0].message == "its process died: WorkerCrashedError"
    assert len(killed) == 1


def owners(folder):
    """The processes that have a file in a folder open."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(folder) in os.readlink(file) for file in (process / "fd").iterdir()):
                yield int(process.name)


@pytest.mark.usefixtures("local")
def test_a_machine_that_does_not_see_the_folder_ends_the_call_and_stores_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(cluster.files, "make_folder", lambda *_: None)
    ended = []
    match = f"the machines of a cluster must share the folder {tmp_path / 'on'}, one does not"
    with pytest.raises(RequestError, match=f"^{match}$"):
        run_all(jobs_in(tmp_path / "on", a=run()), ray="auto", on_end=ended.append)
    assert not ended


@pytest.mark.usefixtures("local")
def test_a_run_that_ends_while_the_caller_is_busy_is_done(tmp_path):
    jobs = jobs_in(tmp_path, a=run(epochs=100), b=run())

    waited = []

    def wait_for_b(job, event):
        if job.name == "a" and event.kind == "evaluated" and not waited:
            waited.append(job)
            while not (tmp_path / "b" / "summary.json").exists():
                time.sleep(0.05)
            time.sleep(0.2)

    rows = run_all(jobs, ray="auto", num_workers=2, on_event=wait_for_b)
    assert [(row.status, row.message) for row in rows] == [("done", "")] * 2


def test_a_task_that_cannot_tell_saves_its_run(tmp_path):
    """As when Ray cancels it, or when the caller is gone."""
    (job,) = jobs_in(tmp_path, a=run(epochs=1000))

    class News:
        def put(self, told):
            content = told[1]
            if isinstance(content, tuple) or content.kind == "evaluated":
                raise ray.exceptions.TaskCancelledError

    work = (job.config.to_plain(), job.folder)
    with pytest.raises(KeyboardInterrupt):
        cluster._train(0, work, News(), 1e6)
    assert read_status(job.folder).status == "interrupted"
    assert list((job.folder / "checkpoints").glob("step-*"))


HANDLERS = """
import signal
from statemix.sweeps.cluster import connected
signal.signal(signal.SIGTERM, signal.default_int_handler)
with connected("local") as ray:
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    with connected("auto"):
        pass
    assert ray.is_initialized()
assert not ray.is_initialized()
"""


def test_ray_leaves_the_handlers_of_signals_alone_and_is_left_as_it_was():
    subprocess.run([sys.executable, "-c", HANDLERS], check=True)


def test_a_task_fits_on_a_machine_that_has_what_it_needs():
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
        {"Alive": True, "Resources": {}},
    ]
    assert cluster._most_threads(nodes, with_gpu=False) == 4
    assert cluster._most_threads(nodes, with_gpu=True) == 2


def test_a_cluster_that_cannot_be_reached_is_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for wrong in (address, "no such place", ""):
        match = f"^ray must be 'auto', 'local' or the address of a cluster, got '{wrong}': "
        with pytest.raises(RequestError, match=match):
            run_all(jobs_in(tmp_path, a=run()), ray=wrong)
    assert not list(tmp_path.iterdir())


def test_without_ray_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequestError, match=r"needs .*: pip install 'statemix\[sweep\]'"):
        run_all(jobs_in(tmp_path, a=run()), ray="auto")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ray": 3}, "ray must be a valid string, got 3"),
        ({"ray": "auto", "num_workers": 0}, "num_workers must be .*1, got 0"),
        ({"ray": "auto", "num_workers": "two"}, "num_workers must be a valid integer, got 'two'"),
    ],
)
def test_bad_requests_are_named(tmp_path, options, message):
    with pytest.raises(RequestError, match=f"^{message}$"):
        run_all(jobs_in(tmp_path, a=run()), **options)


@pytest.mark.parametrize("address", ["local", "10.0.0.1:6379"])
def test_what_no_machine_can_run_is_refused_before_the_cluster_is_asked(tmp_path, address):
    endless = run().replace(task=TaskSpec("permutation"), schedules=ScheduleConfig(epochs=2))
    with pytest.raises(RequestError, match=r"^schedules\.epochs must "):
        run_all(jobs_in(tmp_path, a=endless), ray=address)
    assert not list(tmp_path.iterdir())
