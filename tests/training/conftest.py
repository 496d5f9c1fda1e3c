"""Fixtures for training: a run that takes a fraction of a second, and a user's toys."""

import pytest

from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
)
from statemix.training.devices import check_here
from statemix.training.plain import import_modules
from statemix.training.run import Run

TINY = RunConfig(
    task=TaskSpec("permutation", group="S_3", length=5, train_size=20),
    model=ModelConfig(
        layers=(LayerSpec("bd_lru", num_blocks=2, block_size=3),), hidden_size=8, bos=True
    ),
    batches=BatchConfig(size=8),
    schedules=ScheduleConfig(epochs=4),
    evaluation=EvaluationConfig(test_size=30, validation_size=20),
    runtime=RuntimeConfig(num_threads=1, device="cpu"),
)


def changed(config, changes):
    """A configuration with other fields, named with dots."""
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        new = changed(getattr(config, head), {rest: value}) if rest else value
        config = config.replace(**{head: new})
    return config


@pytest.fixture
def tiny():
    """A run of 4 epochs with 3 steps each: ``tiny({"batches.size": 4}, seed=1)`` changes fields."""
    return lambda changes=None, **more: changed(TINY, (changes or {}) | more)


@pytest.fixture
def fresh():
    """A run on fresh examples."""
    settings = {
        "task": TaskSpec("permutation", group="S_3", length=5),
        "schedules": ScheduleConfig(num_steps=6),
        "evaluation.every": 2,
    }
    return lambda changes=None, **more: changed(TINY, settings | (changes or {}) | more)


@pytest.fixture
def begun(tmp_path):
    """Build a run from its configuration, before its first step."""

    def begin(config):
        import_modules(config.imports)
        config = config.resolved()
        run = Run(config, check_here(config), tmp_path / "begun", checkpoint_every_s=1000.0)

        def step():
            run.schedules.before_step(run.loop)
            return run.loop.train_step(run.loop.step)

        run.step = step
        return run

    return begin
