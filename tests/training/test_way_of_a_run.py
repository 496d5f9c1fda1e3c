"""The way of a run: how many modules it enters before its first step, which may only fall."""

import sys
from pathlib import Path

import pytest
import torch

import statemix
from statemix.training import train

MODULES, OF_TRAINING = 38, 9
ROOT = Path(statemix.__file__).parent


class ReachedError(Exception):
    """The first step of the optimiser."""


def test_a_run_enters_few_modules_before_its_first_step(fresh, tmp_path, monkeypatch):
    """Modules whose functions are called between the call of ``train`` and the first step."""

    def stop(*_, **__):
        sys.setprofile(None)
        raise ReachedError

    monkeypatch.setattr(torch.optim.AdamW, "step", stop)
    entered = set()

    def note(frame, event, argument):
        del argument
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and ROOT in path.parents:
            entered.add(path.relative_to(ROOT).as_posix())

    config = fresh()
    sys.setprofile(note)
    try:
        with pytest.raises(ReachedError):
            train(config, tmp_path)
    finally:
        sys.setprofile(None)
    of_training = sorted(name for name in entered if name.startswith("training/"))
    assert len(of_training) <= OF_TRAINING, of_training
    assert len(entered) <= MODULES, " ".join(sorted(entered))
