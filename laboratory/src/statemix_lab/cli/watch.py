"""The progress of many runs: a live display on a terminal, occasional lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from statemix.sweeps.runner import Ended, Job
from statemix.sweeps.study_runs import StudyRun
from statemix.training import Event, accuracy, load_outcome
from statemix.training.progress import LINE_EVERY_S


class _Remaining(ProgressColumn):
    """Time left, shown only for all runs together."""

    def __init__(self) -> None:
        super().__init__()
        self._inner = TimeRemainingColumn(compact=True)

    def render(self, task: Task) -> Text:
        return self._inner.render(task) if task.fields["is_total"] else Text("")


class Watch:
    """Shows progress: a live display on a terminal, occasional lines elsewhere."""

    def __init__(self, console: Console, progress: Progress, num_jobs: int) -> None:
        self.console = console
        self.progress = progress
        self.num_jobs = num_jobs
        self.num_ended = 0
        # Work left, in runs. Steps of earlier calls are excluded, or speed would be overestimated.
        self.to_do = float(num_jobs)
        self.all_runs = progress.add_task("all runs", total=num_jobs, is_total=True, status="")
        self.lines: dict[str, TaskID] = {}
        # Fraction done of each running run.
        self.done: dict[str, float] = {}
        self.written = time.monotonic()

    def on_event(self, job: Job, event: Event) -> None:
        """Show an event of a run."""
        if event.kind == "started":
            fraction = event.step / event.num_steps
            if job.name in self.lines:
                # A run whose worker died may start again.
                self.progress.remove_task(self.lines[job.name])
                self._drop(-self.done[job.name])
            self.lines[job.name] = self.progress.add_task(
                job.name, total=1.0, is_total=False, status=""
            )
            self.done[job.name] = fraction
            self.progress.update(self.lines[job.name], completed=fraction)
            self._drop(fraction)
        elif event.kind == "step":
            # The end of a search comes nearer all at once.
            before, now = self.done[job.name], event.step / event.num_steps
            self.done[job.name] = now
            self.progress.update(self.lines[job.name], completed=now)
            self.progress.update(self.all_runs, advance=now - before)
            self._write(f"{job.name}: step {event.step:,} of {event.num_steps:,}")
        elif event.kind == "evaluated":
            self._evaluated(job, event)
        if event.kind == "message" or (event.kind == "started" and event.step):
            self.console.print(f"{job.name}: {event.text}")

    def _evaluated(self, job: Job, event: Event) -> None:
        status = event.text
        if event.row is not None and "test" in event.row:
            (heads,) = event.row["test"].values()
            accuracy = fmean(scores["token_accuracy"] for scores in heads.values())
            epoch = event.row["epoch"]
            place = f"step {event.step:,}" if epoch is None else f"epoch {epoch}"
            status = f"{place}, accuracy {accuracy:.3f}"
        self.progress.update(self.lines[job.name], status=status)
        self._write(f"{job.name}: {status}")

    def _write(self, text: str) -> None:
        """Without a terminal, write a line if there was none for a while."""
        now = time.monotonic()
        if not self.console.is_terminal and now - self.written >= LINE_EVERY_S:
            self.written = now
            self.console.print(text)

    def on_end(self, ended: Ended) -> None:
        """Show how a run ended."""
        name = ended.job.name
        self.num_ended += 1
        line = self.lines.pop(name, None)
        # The rest of a run that ended early will not be trained.
        self._drop(1.0 - self.done.pop(name, 0.0))
        if line is not None:
            self.progress.remove_task(line)
        how = self._done(ended, reused=line is None) if ended.status == "done" else _undone(ended)
        status = f"{self.num_ended} of {self.num_jobs} ended"
        self.progress.update(self.all_runs, status=status)
        self.console.print(f"{self.num_ended:2}/{self.num_jobs}  {name:16}  {how}")
        if ended.details:
            self.console.print(ended.details)

    def _done(self, ended: Ended, *, reused: bool) -> str:
        if isinstance(ended.job.config, StudyRun):
            return ended.job.config.ending(ended.job.folder) + (" (reused)" if reused else "")
        outcome = load_outcome(ended.job.folder)
        scores = {length: accuracy(heads) for length, heads in outcome.last.test.items()}
        ends = " … ".join(f"{scores[at]:.3f} at {at:,}" for at in (min(scores), max(scores)))
        return f"{ends}  ({'reused' if reused else f'{outcome.time_s:.1f} s'})"

    def _drop(self, fraction: float) -> None:
        self.to_do -= fraction
        self.progress.update(self.all_runs, total=self.to_do)


def _undone(ended: Ended) -> str:
    """One line on how a run without a result ended."""
    text = f"{ended.status}: {ended.message}"
    if ended.started or ended.status not in ("diverged", "failed"):
        return text
    return f"{text}  (in an earlier call; use --retry to try again)"


@contextmanager
def watched(console: Console, num_jobs: int) -> Iterator[Watch]:
    """Show the progress of ``num_jobs`` runs while the block runs."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        _Remaining(),
        TextColumn("{task.fields[status]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        yield Watch(console, progress, num_jobs)
