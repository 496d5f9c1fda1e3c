"""The progress of many runs, also of those that start twice."""

from pathlib import Path

import pytest
from rich.console import Console

from statemix.sweeps.runner import Ended, Job
from statemix.training import Event, RunConfig
from statemix_lab.cli.watch import watched


def test_a_run_that_starts_again_by_itself_has_one_line_and_counts_once():
    job = Job("one", RunConfig(), Path("one"))
    with watched(Console(quiet=True), 2) as watch:
        watch.on_event(job, Event("started", 0, 10))
        for step in (1, 2, 3):
            watch.on_event(job, Event("step", step, 10, loss=1.0))
        watch.on_event(job, Event("started", 2, 10))
        (total, line) = watch.progress.tasks
        assert line.completed == pytest.approx(0.2)
        # Eight of ten steps and another run are left.
        assert total.total - total.completed == pytest.approx(1.8)
        watch.on_event(job, Event("step", 3, 10, loss=1.0))
        watch.on_end(Ended(job, "failed", "odd"))
        assert total.total - total.completed == pytest.approx(1.0)
        assert watch.progress.tasks == [total]
