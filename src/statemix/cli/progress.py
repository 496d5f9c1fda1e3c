"""What a terminal, or a log file, shows of a training run."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from statemix.training import Event

# Of the evaluations of a run, a log file gets about so many.
_LINES = 20


@contextlib.contextmanager
def shown(title: str) -> Iterator[Callable[[Event], None]]:
    """Show the events of one run: a live bar on a terminal, plain lines elsewhere.

    Args:
        title: what stands in front.

    Yields:
        A function for the ``on_event`` of ``train``.
    """
    console = Console(file=sys.stderr, markup=False, highlight=False)
    if not console.is_terminal:
        yield _Lines(title)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[scores]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(title, total=None, scores="")

        def show(event: Event) -> None:
            progress.update(bar, completed=event.step, total=event.num_steps)
            if event.kind == "evaluated":
                progress.update(bar, scores=event.text.partition(": ")[2])
            elif event.kind in ("message", "started", "finished"):
                progress.console.print(f"{title}: {event.text}", soft_wrap=True)

        yield show


class _Lines:
    """Plain lines on stderr, flushed at once."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._part = -1

    def __call__(self, event: Event) -> None:
        if event.kind in ("step", "saved"):
            return
        if event.kind == "evaluated" and event.step < event.num_steps:
            part = event.step * _LINES // event.num_steps
            if part == self._part:
                return
            self._part = part
        print(f"{self._title}: {event.text}", file=sys.stderr, flush=True)
