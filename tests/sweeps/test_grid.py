"""The choice among the runs of a grid."""

import pytest

from statemix.sweeps.grid import Axis, best_by_validation, grid
from statemix.tasks import TaskSpec
from statemix.training import RunConfig
from statemix.training.settings import RequestError


def test_no_runs_and_too_many_runs_are_refused(tmp_path):
    with pytest.raises(RequestError, match="outcomes must hold at least one run, got none"):
        best_by_validation([])
    axes = [Axis("seed", tuple(range(3000))), Axis("batches.size", tuple(range(1, 3001)))]
    with pytest.raises(RequestError, match="grid must have at most 2000 combinations, got 9000000"):
        grid(RunConfig(), tmp_path, axes)


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


@pytest.mark.parametrize("letter", ["x", "\U0001d53c"])
def test_long_values_of_any_letters_have_folders_that_file_systems_can_name(tmp_path, letter):
    config = RunConfig(task=TaskSpec("regex", pattern="a", alphabet=f"ab{letter}"))
    patterns = (letter * 300, letter * 301)
    jobs = grid(config, tmp_path, [Axis("task.pattern", patterns)])
    assert len({job.folder for job in jobs}) == 2
    for job in jobs:
        job.folder.mkdir()
