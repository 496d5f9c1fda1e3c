"""The progress of many runs: a live display on a terminal, occasional lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from statemix.sweeps.runner import Ended, Job, StudyRun
from statemix.training import Event, accuracy, load_outcome
from statemix.training.progress import LINE_EVERY_S


class Watch:
    """Shows how far runs are, each and all together, and how they ended."""

    def __init__(self, console: Console, progress: Progress, num_jobs: int) -> None:
        self.console, self.progress, self.num_jobs = console, progress, num_jobs
        self.num_ended = 0
        self.all_runs = progress.add_task("all runs", total=num_jobs, status="")
        self.lines: dict[str, TaskID] = {}
        # Fraction done of each running run.
        self.done: dict[str, float] = {}
        self.written = time.monotonic()

    def on_event(self, job: Job, event: Event) -> None:
        """Show an event of a run."""
        name, now, text = job.name, time.monotonic(), event.text
        if name not in self.lines:
            self.lines[name] = self.progress.add_task(name, total=1.0, status="")
        self.done[name] = event.step / max(event.num_steps, 1)
        self.progress.update(self.lines[name], completed=self.done[name])
        self._update_all()
        if event.kind == "message" or (event.kind == "started" and event.step):
            self.console.print(f"{name}: {text}")
        if event.kind == "evaluated":
            self.progress.update(self.lines[name], status=text.partition(": ")[2])
        elif event.kind == "step":
            text = f"step {event.step:,} of {event.num_steps:,}"
        else:
            return
        # Without a terminal, a line says where a run is if there was none for a while.
        if not self.console.is_terminal and now - self.written >= LINE_EVERY_S:
            self.written = now
            self.console.print(f"{name}: {text}")

    def _update_all(self) -> None:
        completed = self.num_ended + sum(self.done.values())
        status = f"{self.num_ended} of {self.num_jobs} ended"
        self.progress.update(self.all_runs, completed=completed, status=status)

    def on_end(self, ended: Ended) -> None:
        """Show how a run ended."""
        name = ended.job.name
        self.num_ended += 1
        self.done.pop(name, None)
        line = self.lines.pop(name, None)
        if line is not None:
            self.progress.remove_task(line)
        how = _done(ended, reused=line is None) if ended.status == "done" else _undone(ended)
        self._update_all()
        self.console.print(f"{self.num_ended:2}/{self.num_jobs}  {name:16}  {how}")
        if ended.details:
            self.console.print(ended.details)


def _done(ended: Ended, *, reused: bool) -> str:
    if isinstance(ended.job.config, StudyRun):
        return ended.job.config.ending(ended.job.folder) + (" (reused)" if reused else "")
    outcome = load_outcome(ended.job.folder)
    scores = {length: accuracy(heads) for length, heads in outcome.last.test.items()}
    ends = " … ".join(f"{scores[at]:.3f} at {at:,}" for at in (min(scores), max(scores)))
    return f"{ends}  ({'reused' if reused else f'{outcome.time_s:.1f} s'})"


def _undone(ended: Ended) -> str:
    """One line on how a run without a result ended."""
    text = f"{ended.status}: {ended.message}"
    if ended.started or ended.status not in ("diverged", "failed"):
        return text
    return f"{text}  (in an earlier call; use --retry to try again)"


@contextmanager
def watched(console: Console, num_jobs: int) -> Iterator[Watch]:
    """Show the progress of ``num_jobs`` runs while the block runs."""
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(compact=True)),
        TextColumn("{task.fields[status]}"),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        yield Watch(console, progress, num_jobs)
