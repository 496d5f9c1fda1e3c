"""Progress of training runs on a terminal or in a log file."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich import progress as bar
from rich.console import Console
from rich.table import Column

from statemix.training.loop import Event

LINE_EVERY_S = 15.0
"""Seconds after which a log file shows where a run is, if it was silent for so long."""

# A log file shows about this many evaluations of each run.
_LINES = 20

Show = Callable[[str, Event], None]


def log_console() -> Console:
    """Return a console that wraps no lines of a log file."""
    console = Console(highlight=False, markup=False)
    console.soft_wrap = not console.is_terminal
    return console


@contextlib.contextmanager
def shown() -> Iterator[Show]:
    """Show the events of runs: live bars on a terminal, plain lines elsewhere.

    Yields:
        A function that shows an event, given the run's name and the event.
    """
    console = Console(file=sys.stderr, markup=False, highlight=False)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        bar.TextColumn("{task.description}", markup=False),
        bar.BarColumn(bar_width=20),
        bar.MofNCompleteColumn(),
        bar.TimeRemainingColumn(),
        # In a narrow terminal, the text takes several lines.
        bar.TextColumn("{task.fields[scores]}", markup=False, table_column=Column(overflow="fold")),
    )
    with bar.Progress(*columns, console=console) as progress:
        bars: dict[str, bar.TaskID] = {}

        def show(name: str, event: Event) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=None, scores="")
            progress.update(bars[name], completed=event.step, total=event.num_steps)
            if event.kind == "step" and event.text:
                progress.update(bars[name], scores=event.text)
            elif event.kind == "evaluated":
                progress.update(bars[name], scores=event.text.partition(": ")[2])
            elif event.kind in ("message", "started", "finished"):
                progress.console.print(f"{name}: {event.text}", soft_wrap=True)

        yield show


class _Lines:
    """Writes plain lines to stderr, each flushed at once.

    A run whose evaluations are far apart writes its step from time to time.
    """

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}
        self._written: dict[str, float] = {}

    def __call__(self, name: str, event: Event) -> None:
        text, now = event.text, time.monotonic()
        if event.kind == "saved":
            return
        if event.kind == "step":
            if now - self._written.setdefault(name, now) < LINE_EVERY_S:
                return
            text = f"step {event.step:,} of {event.num_steps:,}" + (f": {text}" if text else "")
        elif event.kind == "evaluated" and event.step < event.num_steps:
            part = event.step * _LINES // event.num_steps
            if part == self._parts.get(name):
                return
            self._parts[name] = part
        self._written[name] = now
        # A log that cannot be written must not end a run.
        with contextlib.suppress(OSError):
            print(f"{name}: {text}", file=sys.stderr, flush=True)
