"""The choice among the runs of a grid."""

import pytest

from statemix.experiments.grid import best_by_validation
from statemix.settings import RequestError


def test_the_best_of_no_runs_is_a_refused_request():
    with pytest.raises(RequestError, match="outcomes must hold at least one run, got none"):
        best_by_validation([])
