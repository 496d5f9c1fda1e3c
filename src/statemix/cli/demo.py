"""``statemix demo``: train, compare and draw in one command."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
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

from statemix.settings import RequestError, RunsFailedError

if TYPE_CHECKING:
    from statemix.experiments.demo import Summary
    from statemix.experiments.runner import Ended, Job
    from statemix.training import Event

# Without a terminal, all running runs together write at most one line per this interval.
_LINE_EVERY_S = 15.0


@dataclass(frozen=True)
class Demo:
    """Train BD-LRUs and an LSTM to track a permutation group, and draw how far each one gets.

    For S_3, four networks with five seeds each learn from 250 words of length 16, in under three
    minutes on two cores. For S_5, three networks with two seeds each learn from fresh words, in a
    few minutes more. All are tested on words up to 1,024 times longer.

    The output folder receives index.html, learning.png, summary.json and the folder runs. After
    Ctrl-C, repeat the command to resume; finished runs are reused. If a run diverges or fails, the
    others continue, and the page lists it as missing.
    """

    group: Literal["S_3", "S_5"] = "S_3"
    """Permutation group to track."""

    output: Path | None = None
    """Folder of the page and the runs (if not given: demo for S_3, demo/S_5 for S_5)."""

    fresh: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Remove existing runs and train from scratch."""

    retry: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Retry runs that diverged or failed."""

    def run(self) -> None:
        """Train, draw, and print the table.

        Raises:
            RequestError: if the folder cannot be written, or holds runs of another configuration.
            OSError: if a file cannot be written.
            RunsFailedError: if some runs have no result; the page shows the others.
            KeyboardInterrupt: after Ctrl-C; the same command resumes.
        """
        # Slow imports wait until the options have been checked.
        import torch

        from statemix.experiments import demo
        from statemix.report.demo import page, scores

        folder = self.output or Path("demo", *([] if self.group == "S_3" else [self.group]))
        _make(folder)
        console = Console(highlight=False, markup=False)
        # In a log file, every sentence stays on one line.
        console.soft_wrap = not console.is_terminal
        suite = demo.SUITES[self.group]
        num_jobs = len(suite.members)
        num_workers = min(torch.get_num_threads(), num_jobs)
        console.print(
            f"{num_jobs} runs on {self.group}, {num_workers} at a time. "
            "After Ctrl-C, repeat the command to resume."
        )
        began = time.monotonic()
        with _watched(console, num_jobs) as watch:
            summary = demo.run(
                suite,
                folder / "runs",
                num_workers=num_workers,
                fresh=self.fresh,
                retry=("diverged", "failed") if self.retry else (),
                on_event=watch.on_event,
                on_end=watch.on_end,
            )
        paths = page.write(summary, folder, self._command())
        _print_results(console, summary)
        console.print(f"finished in {time.monotonic() - began:.0f} s; wrote:")
        for path in paths:
            console.print(f"  {path}")
        missing = scores.missing(summary)
        if missing:
            raise RunsFailedError(
                f"{len(missing)} of {num_jobs} runs have no result: {'; '.join(missing)}"
            )

    def _command(self) -> str:
        group = "" if self.group == "S_3" else f" --group {self.group}"
        output = "" if self.output is None else f" --output {self.output}"
        return f"statemix demo{group}{output}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"output must be a writable folder, got {folder}: {error.strerror}"
        ) from error


_CAVEAT = (
    "uses neither a start token nor sharpened gates, and reports the best of several runs; ours "
    "are means. The page lists the other differences."
)


def _print_results(console: Console, summary: "Summary") -> None:
    from statemix.report.demo import scores, verdict

    table = scores.table(summary)
    title = "Token accuracy on test words: mean (and range) over seeds"
    console.print()
    console.print(table.as_rich(title) if console.is_terminal else table.as_text())
    console.print(f"The paper ({summary['published']['setting']}) {_CAVEAT}\n")
    for sentence in verdict.sentences(summary):
        console.print(f"- {sentence}")
    console.print()


class _Remaining(ProgressColumn):
    """Time left, shown only for all runs together."""

    def __init__(self) -> None:
        super().__init__()
        self._inner = TimeRemainingColumn(compact=True)

    def render(self, task: Task) -> Text:
        return self._inner.render(task) if task.fields["is_total"] else Text("")


class _Watch:
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

    def on_event(self, job: "Job", event: "Event") -> None:
        """Show an event of a run."""
        if event.kind == "started":
            fraction = event.step / event.num_steps
            self.lines[job.name] = self.progress.add_task(
                job.name, total=1.0, is_total=False, status=""
            )
            self.done[job.name] = fraction
            self.progress.update(self.lines[job.name], completed=fraction)
            self._drop(fraction)
        elif event.kind == "step":
            self.done[job.name] = event.step / event.num_steps
            self.progress.update(self.lines[job.name], completed=self.done[job.name])
            self.progress.update(self.all_runs, advance=1 / event.num_steps)
        elif event.kind == "evaluated":
            self._evaluated(job, event)
        if event.kind == "message" or (event.kind == "started" and event.step):
            self.console.print(f"{job.name}: {event.text}")

    def _evaluated(self, job: "Job", event: "Event") -> None:
        status = event.text
        if event.row is not None:
            (heads,) = event.row["test"].values()
            accuracy = next(iter(heads.values()))["token_accuracy"]
            epoch = event.row["epoch"]
            place = f"step {event.step:,}" if epoch is None else f"epoch {epoch}"
            status = f"{place}, accuracy {accuracy:.3f}"
        self.progress.update(self.lines[job.name], status=status)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.written >= _LINE_EVERY_S:
            self.written = now
            self.console.print(f"{job.name}: {status}")

    def on_end(self, ended: "Ended") -> None:
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

    def _done(self, ended: "Ended", *, reused: bool) -> str:
        from statemix.training import load_outcome

        outcome = load_outcome(ended.job.folder)
        scores = {
            length: next(iter(heads.values())).token_accuracy
            for length, heads in outcome.last.test.items()
        }
        ends = " … ".join(f"{scores[at]:.3f} at {at:,}" for at in (min(scores), max(scores)))
        return f"{ends}  ({'reused' if reused else f'{outcome.time_s:.1f} s'})"

    def _drop(self, fraction: float) -> None:
        self.to_do -= fraction
        self.progress.update(self.all_runs, total=self.to_do)


def _undone(ended: "Ended") -> str:
    """One line on how a run without a result ended."""
    text = f"{ended.status}: {ended.message}"
    if ended.started or ended.status not in ("diverged", "failed"):
        return text
    return f"{text}  (in an earlier call; use --retry to try again)"


@contextmanager
def _watched(console: Console, num_jobs: int) -> Iterator[_Watch]:
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
        yield _Watch(console, progress, num_jobs)
