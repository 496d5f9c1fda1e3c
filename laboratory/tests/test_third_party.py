"""A distribution of someone else adds a command, a layer, a task and a study by entry points."""

import os
import subprocess
import sys

import pytest

MODULE = '''
from dataclasses import dataclass

import numpy as np

from statemix.layers import LSTM, LayerSpec
from statemix.tasks import Examples, TaskSpec
from statemix.training import ModelConfig, RunConfig, ScheduleConfig
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import StudyEntry, Trials


@dataclass(frozen=True)
class Greet:
    """Say hello. It is polite."""

    name: str = "you"
    """Whom to greet."""

    def run(self):
        print(f"hello, {self.name}")


class Memory(LSTM):
    """An LSTM of another name."""

    name = "memory"


class Last:
    """The last token, again."""

    name, presets, title = "last", {}, "last token"
    vocab_size, heads, chance = 2, {"token": 2}, {"token": 0.5}

    def __init__(self, *, length: int = 4, train_size: int | None = 20, seed: int = 0):
        self.length, self.train_size, self.seed = length, train_size, seed

    def examples(self, split, start, stop, length=None):
        shape = (stop - start, length or self.length)
        tokens = np.random.default_rng([len(split), start]).integers(2, size=shape)
        return Examples(tokens, {"token": tokens})

    def describe(self, index, split="train"):
        return str(self.examples(split, index, index + 1))


def entries(protocol, size):
    config = RunConfig(
        task=TaskSpec("last"),
        model=ModelConfig(layers=(LayerSpec("memory"),), hidden_size=8),
        schedules=ScheduleConfig(epochs=1),
    )
    return [StudyEntry("last", "Memory", Trials.seeded(config, [0]))]


MINE = Study("mine", "the last token", entries)
'''
ENTRY_POINTS = """
[statemix.commands]
greet = others:Greet
[statemix.layers]
memory = others:Memory
[statemix.tasks]
last = others:Last
[statemix.studies]
mine = others:MINE
"""


SCRIPT = """
import sys
from statemix.cli.main import main
for line in sys.argv[1:]:
    try:
        code = main(line.split())
    except SystemExit as stop:
        code = stop.code
    print("=====", code)
"""


@pytest.fixture
def statemix(tmp_path):
    """``statemix(*lines)`` runs command lines in a process where the distribution is installed."""
    information = tmp_path / "site" / "others-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "site" / "others.py").write_text(MODULE)

    def run(*lines):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *lines],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join([str(information.parent), *filter(None, sys.path)])},
        )
        *outputs, rest = done.stdout.split("===== 0\n")
        assert (len(outputs), rest) == (len(lines), ""), done.stdout + done.stderr
        return outputs

    return run


def test_all_four_are_found_without_imports(statemix):
    greeting, greet_help, help_, tasks, _, plan = statemix(
        "greet --name Ada",
        "greet --help",
        "--help",
        "tasks",
        "train --folder run --task last --model.layers memory --schedules.epochs 1",
        "reproduce mine --dry-run",
    )
    assert greeting == "hello, Ada\n"
    assert "--name TEXT\n      Whom to greet. (default: you)" in greet_help
    assert "  greet         Say hello.\n" in help_
    assert "last" in tasks
    assert "Memory" in plan


def test_a_folder_of_strangers_adds_nothing(statemix, tmp_path):
    """`python -m` searches the working directory, too."""
    (tmp_path / "site" / "others-1.0.dist-info").rename(tmp_path / "others-1.0.dist-info")
    (tmp_path / "others.py").write_text("raise SystemExit('ran')")
    (tasks,) = statemix("tasks")
    assert "permutation" in tasks


def test_a_part_that_cannot_be_imported_breaks_no_other(statemix, tmp_path):
    (tmp_path / "site" / "others.py").write_text("import nowhere")
    (tasks,) = statemix("tasks")
    assert "permutation" in tasks
