"""Progress in a log file."""

import errno
import io
from types import SimpleNamespace

from statemix.training import Event, progress


def test_a_silent_run_says_from_time_to_time_where_it_is(capsys, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    with progress.shown() as show:
        for step in range(1, 41):
            clock.now += 1.0
            show("run", Event("step", step, 1000, loss=0.5))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["run: step 16 of 1,000", "run: step 31 of 1,000"]


def test_a_log_that_cannot_be_written_ends_no_run(monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(progress.sys, "stderr", Full())
    with progress.shown() as show:
        show("run", Event("started", 0, 1000, text="started"))
