"""The choice among the runs of a grid."""

import pytest

from statemix.layers import LayerSpec
from statemix.sweeps.grid import Axis, best_by_validation, grid
from statemix.tasks import TaskSpec
from statemix.training import ModelConfig, RunConfig, ScheduleConfig
from statemix.training.settings import RequestError


def test_the_best_of_no_runs_is_a_refused_request():
    with pytest.raises(RequestError, match="outcomes must hold at least one run, got none"):
        best_by_validation([])


def test_a_grid_of_too_many_runs_is_refused_before_it_is_made(tmp_path):
    axes = [Axis("seed", tuple(range(3000))), Axis("batches.size", tuple(range(1, 3001)))]
    with pytest.raises(RequestError, match="grid must have at most 2000 combinations, got 9000000"):
        grid(RunConfig(), tmp_path, axes)


def test_long_combinations_have_distinct_folders_that_every_file_system_can_name(tmp_path):
    options = {"num_blocks": 8, "block_size": 3, "gate_temperature": 0.5, "gate_noise": 0.01}
    options |= {"input_gate_bias": -2.0, "initial_state": "learned", "initial_std": 0.5}
    others = {f"model.layers.0.{option}": value for option, value in options.items()}
    others |= {"optimizer.weight_decay": 0.0123, "objective.position_power": -1.0}
    others |= {"schedules.min_learning_rate": 1e-5, "schedules.warmup_steps": 1}
    axes = [Axis("optimizer.learning_rate", (0.0012345, 0.001))]
    axes += [Axis(name, (value,)) for name, value in others.items()]
    config = RunConfig(
        model=ModelConfig(layers=(LayerSpec("bd_lru", num_blocks=2, block_size=2),)),
        schedules=ScheduleConfig(num_steps=10),
    )
    jobs = grid(config, tmp_path, axes)
    assert len({job.folder for job in jobs}) == 2
    assert all(len(job.name) > 255 for job in jobs)
    for job in jobs:
        job.folder.mkdir()


def test_values_that_differ_in_signs_alone_have_folders_of_their_own(tmp_path):
    patterns = ("a|b", "a*b", "ab")
    config = RunConfig(task=TaskSpec("regex", pattern="a", alphabet="ab"))
    jobs = grid(config, tmp_path, [Axis("task.pattern", patterns)])
    assert len({job.folder for job in jobs}) == len({job.name for job in jobs}) == 3
    assert [job.config.task.options["pattern"] for job in jobs] == list(patterns)
    # Alone, a value keeps the name that earlier versions gave it.
    for pattern in patterns[:2]:
        (job,) = grid(config, tmp_path, [Axis("task.pattern", (pattern,))])
        assert job.folder.name == "task.pattern=a_b"


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\u6587", "\U0001d53c"])
def test_long_values_of_any_letters_have_folders_that_file_systems_can_name(tmp_path, letter):
    config = RunConfig(task=TaskSpec("regex", pattern="a", alphabet=f"ab{letter}"))
    patterns = (letter * 300, letter * 301)
    for job in grid(config, tmp_path, [Axis("task.pattern", patterns)]):
        job.folder.mkdir()
