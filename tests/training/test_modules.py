"""How many files a reader visits on the way from ``train`` to the first optimiser step."""

import sys

import torch

from statemix.tasks import TaskSpec
from statemix.training import train


class FirstStepError(Exception):
    """Ends a run at its first optimiser step."""


def test_a_run_visits_eight_modules_of_its_room_before_its_first_step(tiny, tmp_path, monkeypatch):
    """A module counts if a function of it runs, and it belongs to statemix.training.

    The tools of experiments and the reading of values from plain data are not counted: a run has
    them only if its configuration or its folder asks for them. The models and the tasks of a run
    are files of their own rooms.
    """

    def stop(self, *arguments, **options):
        raise FirstStepError

    monkeypatch.setattr(torch.optim.AdamW, "step", stop)
    config = tiny({"task": TaskSpec("parity", length=5), "schedules.epochs": None,
                   "schedules.num_steps": 3})  # fmt: skip
    visited = set()

    def note(frame, event, argument):
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("statemix."):
            visited.add(name)

    sys.setprofile(note)
    try:
        train(config, tmp_path)
    except FirstStepError:
        pass
    finally:
        sys.setprofile(None)
    rooms = {room: sorted(name for name in visited if f".{room}." in name) for room in
             ("training", "models", "tasks")}  # fmt: skip
    named = ["batches", "config", "devices", "evaluation", "folder", "hooks", "loop", "run"]
    values = {"statemix.training.plain", "statemix.training.settings"}
    found = [name for name in rooms["training"] if name not in values]
    assert found == [f"statemix.training.{name}" for name in named]
    assert len(rooms["models"]) <= 5
    assert len(rooms["tasks"]) <= 6
