"""Killed, interrupted or damaged runs end bit-identical to undisturbed runs."""

import json
import multiprocessing
import random
import shutil
import signal

import pytest

from statemix.interrupts import SIGNALS
from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import (
    AttributeSchedule,
    OptimizerConfig,
    RunConfig,
    RuntimeConfig,
    SearchConfig,
    load_config,
    train,
)
from statemix.training.folder import read_status
from statemix.training.settings import Assignments

# Runs in a process of its own and kills it, as kill -9 does: at the n-th event, or half way through
# the n-th file that a checkpoint writes, or between a checkpoint's last file and its renaming.
KILLED = """
import os, signal
from pathlib import Path
from statemix import files as storage
from statemix.training import train

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def count(_):
    global events
    events -= 1
    if events == 0:
        die()

write, rename = storage.write_synced, Path.rename

def write_half(path, content):
    global files
    files -= 1
    if files == 0:
        path.write_bytes(content[:len(content) // 2])
        die()
    write(path, content)

def rename_never(self, target):
    global renames
    renames -= 1
    if renames == 0:
        die()
    return rename(self, target)

storage.write_synced, Path.rename = write_half, rename_never
train(config, folder, on_event=count, checkpoint_every_s=0.0)
"""

WEIGHTS = ("model", "best_test", "best_validation")
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["statemix.training", "lightning_fabric"])


def run_killed(config, folder, *, events=0, files=0, renames=0):
    """Return whether the run was killed before its end."""
    moments = {"events": events, "files": files, "renames": renames}
    process = processes.Process(
        target=exec, args=(KILLED, {"config": config, "folder": folder, **moments})
    )
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def result(folder):
    """Return everything that a run leaves, except its times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    for record in (*rows, summary):
        del record["time_s"]
    del summary["cpu_s"], summary["state_sha256"]
    return rows, summary, [(folder / f"{name}.safetensors").read_bytes() for name in WEIGHTS]


@pytest.fixture
def config(tiny) -> RunConfig:
    sharpen = AttributeSchedule(
        "gate_temperature", end=1 / 8, begin=0.5, finish=0.9, curve="reciprocal"
    )
    return tiny(
        {
            "schedules.attributes": (sharpen,),
            "schedules.warmup_steps": 2,
            "evaluation.lengths": (10, 20),
        }
    )


@pytest.fixture
def whole(config, tmp_path):
    """The result of the undisturbed run."""
    train(config, tmp_path / "whole")
    return result(tmp_path / "whole")


@pytest.mark.parametrize("tests", [{"accept": 1.0}, {"accept": 0.0, "confirm": 1.0}])
def test_killed_during_a_search(config, tmp_path, tests):
    search = SearchConfig(
        attempts=3,
        max_steps=7,
        plateau=0.999,
        every=2,
        tests=2,
        accept_last=1.0,
        length=9,
        size=8,
        attributes=Assignments(gate_temperature=0.5),
        **tests,
    )
    config = config.replace(search=search)
    assert len(train(config, tmp_path / "whole").attempts) == 3
    moments, kills = random.Random(0), 0
    while run_killed(config, tmp_path / "run", events=moments.randint(6, 30)):
        kills += 1
        assert kills < 50
    assert kills >= 2
    assert result(tmp_path / "run") == result(tmp_path / "whole")


def test_killed_again_and_again_at_random_events(config, whole, tmp_path):
    moments = random.Random(0)
    kills = 0
    while run_killed(config, tmp_path / "run", events=moments.randint(3, 14)):
        kills += 1
        assert kills < 50
    assert kills >= 2
    assert result(tmp_path / "run") == whole


@pytest.mark.parametrize(
    "moment",
    [
        *({"files": n} for n in (1, 3, 34)),
        *({"renames": n} for n in (1, 8)),
    ],
    ids=str,
)
def test_killed_inside_a_save(config, whole, tmp_path, moment):
    assert run_killed(config, tmp_path / "run", **moment)
    status = read_status(tmp_path / "run")
    assert status is None or status.status == "interrupted"
    train(config, tmp_path / "run")
    assert read_status(tmp_path / "run").status == "done"
    assert result(tmp_path / "run") == whole


def test_killed_on_fresh_examples(fresh, tmp_path):
    train(fresh(), tmp_path / "whole")
    assert run_killed(fresh(), tmp_path / "run", events=9)
    train(fresh(), tmp_path / "run")
    assert result(tmp_path / "run") == result(tmp_path / "whole")


@pytest.mark.parametrize(
    ("kind", "number"), zip(["step", "evaluated", "saved"], [*SIGNALS, SIGNALS[0]], strict=True)
)
def test_interrupted_twice(config, whole, tmp_path, kind, number):
    """A signal saves a checkpoint at its step, even where an evaluation is due."""

    def interrupt(event):
        if event.kind == kind and event.step == stop:
            signal.raise_signal(number)

    for stop in (3, 7 if kind == "step" else 9):
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", on_event=interrupt, checkpoint_every_s=saves(kind))
        steps = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
        assert max(steps) == f"step-{stop:09d}"
        assert read_status(tmp_path / "run").status == "interrupted"
    train(config, tmp_path / "run")
    assert result(tmp_path / "run") == whole


def test_interrupted_at_every_step(config, whole, tmp_path):
    """One call makes one step, and the next is interrupted before it makes any."""
    calls = 0

    def interrupt(event):
        if event.kind == ("step" if calls % 2 else "started"):
            signal.raise_signal(SIGNALS[calls // 2 % 2])

    for calls in range(24):  # noqa: B007  interrupt reads it
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", on_event=interrupt, checkpoint_every_s=1000.0)
    train(config, tmp_path / "run")
    assert result(tmp_path / "run") == whole


def test_reported_numbers_survive_an_interrupt_between_two_rows(toys, tiny, tmp_path):
    changes = {
        "model.layers": (LayerSpec("solver", iterations=2),),
        "task": TaskSpec("ragged", train_size=20),
        "evaluation.every": 2,
        "imports": ("statemix_toys",),
    }
    config = tiny(changes)
    train(config, tmp_path / "whole")

    def interrupt(event):
        if event.kind == "step" and event.step == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", on_event=interrupt, checkpoint_every_s=1000.0)
    train(config, tmp_path / "run")
    assert result(tmp_path / "run") == result(tmp_path / "whole")
    rows = result(tmp_path / "run")[0]
    assert [row["train"]["backbone.blocks.0.mixer.iterations"] for row in rows] == [2, 2]


def test_interrupted_where_an_evaluation_is_due(config, whole, tmp_path):
    """A process that has made no step writes the row, with the right learning rate."""

    def interrupt(event):
        if event.kind == "step" and event.step == 6:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", on_event=interrupt, checkpoint_every_s=1000.0)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    train(config, tmp_path / "run")
    assert result(tmp_path / "run") == whole


def test_interrupted_after_a_kill_that_followed_an_evaluation(config, whole, tmp_path):
    """The second process cuts off a row and saves a checkpoint before it writes one."""

    def interrupt(event):
        if event.kind == "started":
            signal.raise_signal(signal.SIGINT)

    # The eighth event is the evaluation at step 3, and the last checkpoint that of step 2.
    assert run_killed(config, tmp_path / "run", events=8)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", on_event=interrupt, checkpoint_every_s=1000.0)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == ""
    train(config, tmp_path / "run")
    assert result(tmp_path / "run") == whole
    assert [row["step"] for row in result(tmp_path / "run")[0]] == [3, 6, 9, 12]


def saves(kind):
    return 0.0 if kind == "saved" else 1000.0


def test_second_interrupt_ends_at_once_and_saves_nothing_half_done(
    config, whole, tmp_path, monkeypatch
):
    def interrupt(*arguments, **keywords):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("statemix.training.batches.functional.cross_entropy", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    train(config, tmp_path / "run")
    assert result(tmp_path / "run") == whole


def test_interrupted_while_the_further_lengths_are_scored(config, whole, tmp_path):
    def interrupt(event):
        if event.text.startswith("length 10"):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", on_event=interrupt)
    assert not (tmp_path / "run" / "summary.json").exists()
    train(config, tmp_path / "run")
    assert result(tmp_path / "run") == whole


def test_a_run_that_had_stopped_early_stays_stopped(tiny, tmp_path):
    """The threshold is passed at the first evaluation, and the interrupt comes after the last."""
    early = tiny({"evaluation.stop_at": 0.01, "evaluation.lengths": (10, 20)})
    train(early, tmp_path / "whole")
    rows, summary, weights = result(tmp_path / "whole")
    assert rows[-1]["step"] < 12

    def interrupt(event):
        if event.text.startswith("length 10"):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(early, tmp_path / "run", on_event=interrupt)
    train(early, tmp_path / "run")
    assert result(tmp_path / "run") == (rows, summary, weights)


def test_interrupt_at_the_very_end_is_not_swallowed(config, whole, tmp_path):
    def interrupt(event):
        if event.kind == "finished":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", on_event=interrupt)
    assert result(tmp_path / "run") == whole


def test_killed_between_the_summary_and_the_removal_of_the_checkpoints(
    config, whole, tmp_path, monkeypatch
):
    def end(_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("statemix.training.outcome.remove_checkpoints", end)
        with pytest.raises(SystemExit):
            train(config, tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").exists()
    assert (tmp_path / "run" / "checkpoints").exists()
    train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert result(tmp_path / "run") == whole


def test_handler_of_the_caller_returns(config, tmp_path):
    before = [signal.getsignal(number) for number in SIGNALS]
    train(config, tmp_path / "run")
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize(("damaged", "resumed_at"), [(1, 3), (2, 0)])
def test_damaged_checkpoints_are_set_aside(config, whole, tmp_path, damaged, resumed_at):
    assert run_killed(config, tmp_path / "run", events=11)  # after the save at step 4
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("step-*"), reverse=True)
    assert [int(path.name[5:]) for path in checkpoints] == [4, 3]
    for path in checkpoints[:damaged]:
        (path / "model.safetensors").write_bytes(b"half")
    events = []
    train(config, tmp_path / "run", on_event=events.append)
    messages = [event.text for event in events if event.kind == "message"]
    assert sum("is damaged and set aside as" in text for text in messages) == damaged
    (started,) = (event for event in events if event.kind == "started")
    assert started.step == resumed_at
    assert result(tmp_path / "run") == whole


@pytest.mark.parametrize("cut", ["all", "half a row"])
def test_a_run_that_has_lost_rows_continues(config, whole, tmp_path, cut):
    assert run_killed(config, tmp_path / "run", events=18)  # after the save at step 7
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 2
    path.write_text("" if cut == "all" else lines[0] + lines[1][:20])
    train(config, tmp_path / "run")
    rows, *rest = result(tmp_path / "run")
    assert rest == list(whole[1:])
    assert rows == whole[0][2:] if cut == "all" else rows == [whole[0][0], *whole[0][2:]]


def test_open_number_of_threads_is_the_runs(tiny, config, tmp_path, monkeypatch):
    """Another default number of threads would round sums differently."""
    open_config = config.replace(runtime=RuntimeConfig(device="cpu"))
    assert run_killed(open_config, tmp_path / "run", events=11)
    before = load_config(tmp_path / "run").runtime.num_threads
    monkeypatch.setattr("torch.get_num_threads", lambda: before + 1)
    outcome = train(open_config, tmp_path / "run")
    assert outcome.config.runtime.num_threads == before


def test_a_default_that_has_changed_since_changes_nothing(config, whole, tmp_path):
    """The request identifies a run, and the run keeps its resolved configuration."""
    assert run_killed(config, tmp_path / "run", events=11)
    path = tmp_path / "run" / "config.json"
    stored = json.loads(path.read_text())
    # As written when these were the defaults, and before a field existed.
    stored["resolved"]["optimizer"]["learning_rate"] = 0.0625
    del stored["resolved"]["batches"]["packed"]
    del stored["resolved"]["model"]["layers"][0]["backend"]
    path.write_text(json.dumps(stored))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    outcome = train(config, tmp_path / "run")
    assert outcome.config.optimizer.learning_rate == 0.0625
    asked = config.replace(optimizer=OptimizerConfig(learning_rate=0.0625))
    train(asked, tmp_path / "asked")
    assert result(tmp_path / "run") == result(tmp_path / "asked")
    assert result(tmp_path / "run")[2] != whole[2]
