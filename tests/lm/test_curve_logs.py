"""Curves in TensorBoard and Weights & Biases: each point once, whatever interrupts the run."""

import sys
import types

import pytest
from tests.lm.conftest import Killed
from torch.utils.tensorboard import SummaryWriter

from statemix.training import loop as training_loop

WORDS = ("--steps", "6", "--evaluate-every", "2", "--checkpoint-every-s", "0")
STEPS = {"train/loss": [1, 2, 3, 4, 5, 6], "held_out/bits_per_byte": [2, 4, 6]}


@pytest.fixture
def killed(monkeypatch, train_tiny):
    """Kill the process after 2, 4 and 5 steps, when some points lie after the last checkpoint."""

    def run(*words):
        for last in (2, 4, 5):
            save = training_loop.save_checkpoint

            def saved(folder, step, *rest, save=save, last=last, **options):
                if step <= last - 2:
                    save(folder, step, *rest, **options)
                if step >= last:
                    raise Killed

            with monkeypatch.context() as patch:
                patch.setattr(training_loop, "save_checkpoint", saved)
                with pytest.raises(Killed):
                    train_tiny(*WORDS, *words)
        assert train_tiny(*WORDS, *words) == 0

    return run


def test_tensorboard_shows_each_point_once(killed, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    flushes, flush = [], SummaryWriter.flush
    monkeypatch.setattr(SummaryWriter, "flush", lambda own: flushes.append(1) or flush(own))
    killed()
    shown = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    for name, steps in STEPS.items():
        assert [point.step for point in shown.Scalars(name)] == steps
    assert shown.Scalars("training/learning_rate")[-1].value < 1e-2
    # Points reach the disk before each checkpoint.
    assert len(flushes) >= 6


class Wandb:
    """Stands for Weights & Biases: runs by id, which keep their points when a process dies."""

    __spec__ = "as of an installed package"
    Error = OSError

    def __init__(self):
        self.runs = {}

    def init(self, *, project, id, name, dir, resume):
        assert (project, name, resume) == ("mine", "run", "allow")
        assert dir.endswith("run")
        run = self.runs.setdefault(id, types.SimpleNamespace(points=[], finished=0))
        run.step = max((step for step, _ in run.points), default=-1) + 1

        def log(points, step):
            assert step >= run.step
            run.step = step
            run.points.append((step, points))

        run.log, run.finish = log, lambda: setattr(run, "finished", run.finished + 1)
        return run


def test_a_run_of_wandb_continues(killed, monkeypatch):
    stub = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", stub)
    killed("--wandb", "mine")
    (run,) = stub.runs.values()
    for name, steps in STEPS.items():
        assert [step for step, points in run.points if name in points] == steps
    assert run.finished == 1


def test_a_refused_login_is_named(train_tiny, monkeypatch, capsys):
    stub = Wandb()

    def refuse(**options):
        raise stub.Error("No API key configured.")

    stub.init = refuse
    monkeypatch.setitem(sys.modules, "wandb", stub)
    assert train_tiny("--steps", "2") == 0
    assert train_tiny("--steps", "4", "--extend", "--wandb", "mine") == 2
    assert "wandb cannot open 'mine': No API key" in capsys.readouterr().err


def test_a_missing_package_is_named(train_tiny, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train_tiny("--steps", "2", "--wandb", "mine") == 2
    assert "wandb must be installed: pip install wandb" in capsys.readouterr().err
