"""What a run writes row by row says which file could not be written."""

import resource

import pytest
from statemix.training.rundir import MetricsFile


@pytest.fixture
def small_files():
    """No file may grow beyond 20 bytes: writing more fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_row_that_does_not_fit_names_the_metrics(tmp_path, small_files):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path, 0, print)
    with pytest.raises(OSError, match="File too large") as caught:
        metrics.append({"text": 100 * "x"})
    assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="File too large") as caught:
        metrics.close()
    assert caught.value.filename == str(path)
