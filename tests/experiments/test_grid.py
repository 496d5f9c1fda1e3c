"""The choice among the runs of a grid."""

import pytest

from statemix.errors import RequestError
from statemix.experiments.grid import Axis, best_by_validation, grid
from statemix.training import RunConfig


def test_the_best_of_no_runs_is_a_refused_request():
    with pytest.raises(RequestError, match="outcomes must hold at least one run, got none"):
        best_by_validation([])


def test_a_grid_of_too_many_runs_is_refused_before_it_is_made(tmp_path):
    axes = [Axis("seed", tuple(range(3000))), Axis("batches.size", tuple(range(1, 3001)))]
    with pytest.raises(RequestError, match="grid must have at most 2000 combinations, got 9000000"):
        grid(RunConfig(), tmp_path, axes)
