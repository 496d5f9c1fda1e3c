"""Fixtures for training: a run that takes a fraction of a second, and a user's toys."""

import pytest

from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import RunConfig, ScheduleConfig
from statemix.training.attempts import Attempts
from statemix.training.devices import build_fabric, check_here
from statemix.training.loop import Loop
from statemix.training.run import parts_of
from statemix.training.settings import import_modules

LAYER = LayerSpec("bd_lru", num_blocks=2, block_size=3)
TINY = RunConfig(
    task=TaskSpec("permutation", group="S_3", length=5, train_size=20),
    model={"layers": [LAYER], "hidden_size": 8, "bos": True},
    batches={"size": 8},
    schedules={"epochs": 4},
    evaluation={"test_size": 30, "validation_size": 20},
    runtime={"num_threads": 1, "device": "cpu"},
)


def changed(config, changes):
    """A configuration with other fields, named with dots."""
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        new = changed(getattr(config, head), {rest: value}) if rest else value
        config = config.replace(**{head: new})
    return config


@pytest.fixture(scope="session")
def tiny():
    """A run of 4 epochs with 3 steps each: ``tiny({"batches.size": 4}, seed=1)`` changes fields."""
    return lambda changes=None, **more: changed(TINY, (changes or {}) | more)


@pytest.fixture(scope="session")
def fresh():
    """A run on fresh examples."""
    settings = {
        "task": TaskSpec("permutation", group="S_3", length=5),
        "schedules": ScheduleConfig(num_steps=6),
        "evaluation.every": 2,
    }
    return lambda changes=None, **more: changed(TINY, settings | (changes or {}) | more)


class Begun:
    """A run before its first step, with the parts that ``train`` gives to ``fit``."""

    def __init__(self, config, folder):
        import_modules(config.imports)
        self.config, self.folder = config.resolved(), folder
        config = self.config
        check_here(config.runtime)
        folder.mkdir(exist_ok=True)
        parts = parts_of(config, config.build_task(), folder)
        self.model, self.losses = parts["model"], parts["loss"]
        self.task = parts["batch"].task
        self.loop = Loop(
            **parts,
            fabric=build_fabric(config.runtime.device, config.runtime.precision),
            clip_norm=config.optimizer.clip_norm,
            seed=config.seed,
        )
        self.schedules, self.evaluation = parts["hooks"][:2]
        self.attempts = next((h for h in parts["hooks"] if isinstance(h, Attempts)), None)

    def step(self):
        self.schedules.before_step(self.loop)
        return self.loop.train_step(self.loop.step)


@pytest.fixture
def begun(tmp_path):
    """Build a run from its configuration, before its first step."""
    return lambda config: Begun(config, tmp_path / "begun")
