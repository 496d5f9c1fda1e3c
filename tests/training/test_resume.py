"""Killed, interrupted or damaged runs end bit-identical to undisturbed runs."""

import json
import multiprocessing
import random
import shutil
import signal

import pytest

from statemix.interrupts import SIGNALS
from statemix.training import AttributeSchedule, RunConfig, train
from statemix.training.folder import read_status

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
    names = {"config": config, "folder": folder, **moments}
    process = processes.Process(target=exec, args=(KILLED, names))
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


@pytest.fixture(scope="module")
def config(tiny) -> RunConfig:
    form = {"begin": 0.5, "finish": 0.9, "curve": "reciprocal"}
    sharpen = AttributeSchedule("gate_temperature", end=1 / 8, **form)
    changes = {"schedules.attributes": (sharpen,), "schedules.warmup_steps": 2}
    return tiny(changes | {"evaluation.lengths": (10, 20)})


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """The result of the undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    train(config, folder)
    return result(folder)


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def signal_at(kind, step=None, *, number=signal.SIGINT, text=""):
    """Return a listener that gets a signal at the events of a kind."""

    def interrupt(event):
        is_step = step is None or event.step == step
        if event.kind == kind and is_step and event.text.startswith(text):
            signal.raise_signal(number)

    return interrupt


def interrupted(config, folder, interrupt, every_s=1000.0):
    with pytest.raises(KeyboardInterrupt):
        train(config, folder, on_event=interrupt, checkpoint_every_s=every_s)


def ends_as(whole, config, run):
    """Resume a run, which ends as the undisturbed one."""
    train(config, run)
    assert read_status(run).status == "done"
    assert result(run) == whole


def rows_of(folder):
    return (folder / "metrics.jsonl").read_text().splitlines(keepends=True)


@pytest.mark.parametrize("tests", [{"accept": 1.0}, {"accept": 0.0, "confirm": 1.0}])
def test_killed_during_a_search(config, run, tmp_path, tests):
    tests |= {"attempts": 3, "max_steps": 7, "plateau": 0.999, "every": 2, "tests": 2, "length": 9}
    tests |= {"accept_last": 1.0, "size": 8, "attributes": {"gate_temperature": 0.5}}
    config = config.replace(search=tests)
    assert len(train(config, tmp_path / "whole").attempts) == 3
    killed_again_and_again(config, run, 6, 30)
    assert result(run) == result(tmp_path / "whole")


def killed_again_and_again(config, run, soonest, latest):
    moments, kills = random.Random(0), 0
    while run_killed(config, run, events=moments.randint(soonest, latest)):
        kills += 1
        assert kills < 50
    assert kills >= 2


def test_killed_again_and_again_at_random_events(config, whole, run):
    killed_again_and_again(config, run, 3, 14)
    assert result(run) == whole


@pytest.mark.parametrize(
    "moment", [*({"files": n} for n in (1, 3, 34)), *({"renames": n} for n in (1, 8))], ids=str
)
def test_killed_inside_a_save(config, whole, run, moment):
    assert run_killed(config, run, **moment)
    status = read_status(run)
    assert status is None or status.status == "interrupted"
    ends_as(whole, config, run)


def test_killed_on_fresh_examples(fresh, run, tmp_path):
    train(fresh(), tmp_path / "whole")
    assert run_killed(fresh(), run, events=9)
    ends_as(result(tmp_path / "whole"), fresh(), run)


@pytest.mark.parametrize(
    ("kind", "number"), [("step", SIGNALS[0]), ("evaluated", SIGNALS[1]), ("saved", SIGNALS[1])]
)
def test_interrupted_twice(config, whole, run, kind, number):
    """A signal saves a checkpoint at its step, even where an evaluation is due."""
    for stop in (3, 7 if kind == "step" else 9):
        every_s = 0.0 if kind == "saved" else 1000.0
        interrupted(config, run, signal_at(kind, stop, number=number), every_s)
        steps = [path.name for path in (run / "checkpoints").iterdir()]
        assert max(steps) == f"step-{stop:09d}"
        assert read_status(run).status == "interrupted"
    ends_as(whole, config, run)


def test_interrupted_at_every_step(config, whole, run):
    """One call makes one step, and the next is interrupted before it makes any."""
    for call in range(24):
        kind = "step" if call % 2 else "started"
        interrupted(config, run, signal_at(kind, number=SIGNALS[call // 2 % 2]))
    ends_as(whole, config, run)


def test_interrupted_after_a_kill_that_followed_an_evaluation(config, whole, run):
    """The second process cuts off a row and saves a checkpoint before it writes one."""
    # The eighth event is the evaluation at step 3, and the last checkpoint that of step 2.
    assert run_killed(config, run, events=8)
    assert len(rows_of(run)) == 1
    interrupted(config, run, signal_at("started"))
    assert not rows_of(run)
    ends_as(whole, config, run)


def test_second_interrupt_ends_at_once_and_saves_nothing_half_done(config, whole, run, monkeypatch):
    def interrupt(*arguments, **keywords):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("statemix.training.batches.functional.cross_entropy", interrupt)
        interrupted(config, run, None)
    assert not (run / "checkpoints").exists()
    ends_as(whole, config, run)


def test_interrupted_while_the_further_lengths_are_scored(config, whole, run):
    interrupted(config, run, signal_at("evaluated", text="length 10"))
    assert not (run / "summary.json").exists()
    # An interrupt at the very end is not swallowed.
    interrupted(config, run, signal_at("finished"))
    assert result(run) == whole


def test_a_run_that_had_stopped_early_stays_stopped(tiny, run, tmp_path):
    """The threshold is passed at the first evaluation, and the interrupt comes after the last."""
    early = tiny({"evaluation.stop_at": 0.01, "evaluation.lengths": (10, 20)})
    assert train(early, tmp_path / "whole").last.step < 12
    interrupted(early, run, signal_at("evaluated", text="length 10"))
    ends_as(result(tmp_path / "whole"), early, run)


def test_killed_before_the_checkpoints_are_removed(config, whole, run, monkeypatch):
    def end(_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("statemix.training.outcome.remove_checkpoints", end)
        with pytest.raises(SystemExit):
            train(config, run)
    assert (run / "summary.json").exists()
    assert (run / "checkpoints").exists()
    ends_as(whole, config, run)
    assert not (run / "checkpoints").exists()


@pytest.mark.parametrize(("damaged", "resumed_at"), [(1, 3), (2, 0)])
def test_damaged_checkpoints_are_set_aside(config, whole, run, damaged, resumed_at):
    assert run_killed(config, run, events=11)  # after the save at step 4
    checkpoints = sorted((run / "checkpoints").glob("step-*"), reverse=True)
    assert [int(path.name[5:]) for path in checkpoints] == [4, 3]
    for path in checkpoints[:damaged]:
        (path / "model.safetensors").write_bytes(b"half")
    events = []
    train(config, run, on_event=events.append)
    messages = [event.text for event in events if event.kind == "message"]
    assert sum("is damaged and set aside as" in text for text in messages) == damaged
    assert next(event.step for event in events if event.kind == "started") == resumed_at
    assert result(run) == whole


@pytest.mark.parametrize("kept", ["nothing", "half a row", "more"])
def test_a_run_whose_rows_are_damaged_continues(config, whole, run, kept):
    assert run_killed(config, run, events=18)  # after the save at step 7
    lines = rows_of(run)
    assert len(lines) == 2
    texts = {"nothing": "", "half a row": lines[0] + lines[1][:20]}
    (run / "metrics.jsonl").write_text(texts.get(kept, "".join(lines) + '{"step": 9, "epo'))
    train(config, run)
    rows, *rest = result(run)
    assert rest == list(whole[1:])
    first = {"nothing": [], "half a row": whole[0][:1]}.get(kept, whole[0][:2])
    assert rows == [*first, *whole[0][2:]]


def test_a_default_that_has_changed_since_changes_nothing(config, whole, run, tmp_path):
    """The request identifies a run, and the run keeps its resolved configuration."""
    assert run_killed(config, run, events=11)
    path = run / "config.json"
    stored = json.loads(path.read_text())
    # As written when these were the defaults, and before a field existed.
    stored["resolved"]["optimizer"]["learning_rate"] = 0.0625
    del stored["resolved"]["batches"]["packed"]
    del stored["resolved"]["model"]["layers"][0]["backend"]
    path.write_text(json.dumps(stored))
    shutil.rmtree(run / "checkpoints")
    outcome = train(config, run)
    assert outcome.config.optimizer.learning_rate == 0.0625
    asked = config.replace(optimizer={"learning_rate": 0.0625})
    train(asked, tmp_path / "asked")
    assert result(run) == result(tmp_path / "asked")
    assert result(run)[2] != whole[2]
