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


def test_a_search_that_ends_early_counts_as_the_whole_run():
    job = Job("one", RunConfig(), Path("one"))
    with watched(Console(quiet=True), 2) as watch:
        watch.on_event(job, Event("started", 0, 100))
        watch.on_event(job, Event("step", 1, 100, loss=1.0))
        # An attempt has passed: one more step is left.
        watch.on_event(job, Event("step", 2, 3, loss=1.0))
        (total, line) = watch.progress.tasks
        assert line.completed == pytest.approx(2 / 3)
        watch.on_event(job, Event("step", 3, 3, loss=1.0))
        assert total.completed == pytest.approx(1.0)


def test_the_accuracy_of_several_heads_is_their_mean():
    job = Job("one", RunConfig(), Path("one"))
    heads = {"place_1": {"token_accuracy": 1.0}, "place_2": {"token_accuracy": 0.5}}
    with watched(Console(quiet=True), 1) as watch:
        watch.on_event(job, Event("started", 0, 10))
        row = {"epoch": None, "test": {"4": heads}}
        watch.on_event(job, Event("evaluated", 5, 10, row=row))
        assert watch.progress.tasks[1].fields["status"] == "step 5, accuracy 0.750"
