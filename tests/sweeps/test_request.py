"""Requests are checked before anything is made, and once where the answers are equal."""

import pytest

from statemix.errors import OptionError, RequestError
from statemix.layers import LayerSpec
from statemix.sweeps import runner as requests
from statemix.sweeps.runner import check_all_here
from statemix.tasks import TASKS, TaskSpec
from statemix.tasks.permutation import Permutation
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
    SearchConfig,
)

CONFIG = RunConfig(
    task=TaskSpec("permutation", group="S_3", length=5, train_size=20),
    model=ModelConfig(layers=(LayerSpec("bd_lru", num_blocks=2, block_size=3),), hidden_size=8),
    evaluation=EvaluationConfig(test_size=10, validation_size=10),
    runtime=RuntimeConfig(num_threads=1, device="cpu"),
)


def seeds(config, *numbers):
    return [config.replace(seed=number) for number in numbers]


def test_requests_that_differ_in_seed_and_optimiser_alone_are_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(requests, "check_here", checked.append)
    faster = CONFIG.replace(optimizer=OptimizerConfig(learning_rate=1e-2))
    narrow = CONFIG.replace(model=CONFIG.model.replace(hidden_size=4))
    check_all_here([*seeds(CONFIG, 0, 1), *seeds(narrow, 1, 0), *seeds(faster, 2), CONFIG])
    assert checked == [CONFIG.resolved(), *(one.resolved() for one in seeds(narrow, 1))]


# Another value of every other part, each of which may make a run impossible.
OTHERS = {
    "task": TaskSpec("permutation", group="S_4", length=5, train_size=20),
    "model": ModelConfig(layers=CONFIG.model.layers, hidden_size=4),
    "batches": BatchConfig(size=7),
    "schedules": ScheduleConfig(epochs=3),
    "search": SearchConfig(attempts=2),
    "evaluation": EvaluationConfig(test_size=11, validation_size=10),
    "runtime": RuntimeConfig(num_threads=1, device="cpu", precision="64-true"),
    "imports": ("json",),
    "start_from": "run",
}


def test_requests_that_differ_elsewhere_are_all_checked(monkeypatch):
    parts = set(RunConfig.model_fields)
    assert parts - OTHERS.keys() == {"seed", "optimizer", "objective"}
    checked = []
    monkeypatch.setattr(requests, "check_here", checked.append)
    check_all_here(CONFIG.replace(**{name: one}) for name, one in OTHERS.items())
    assert len(checked) == len(OTHERS)


@pytest.fixture
def choosy():
    """A task that refuses a seed, and whose number of words depends on it."""

    class Choosy(Permutation):
        name = "choosy"

        def __init__(self, *, seed: int = 0):
            if seed == 3:
                raise OptionError("seed must not be 3, got 3")
            super().__init__(group="S_5", length=16, train_size=2**60 if seed == 4 else 20)

    yield TASKS.register(Choosy)
    TASKS.remove("choosy")


@pytest.mark.parametrize(
    ("seed", "message"),
    [(3, "^task: seed must not be 3, got 3"), (4, "^task must fit into memory")],
)
def test_what_depends_on_the_seed_is_checked_for_every_seed(choosy, seed, message):
    config = CONFIG.replace(task=TaskSpec("choosy"))
    check_all_here(seeds(config, 0, 1, 2))
    with pytest.raises(RequestError, match=message):
        check_all_here(seeds(config, 0, 1, seed))
