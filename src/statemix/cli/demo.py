"""``statemix demo``: train, compare and draw, in one command."""

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

if TYPE_CHECKING:
    from statemix.experiments.summary import Summary
    from statemix.experiments.workers import Job
    from statemix.training import Event

# Without a terminal, a run under way writes a line no more often than this.
_LINE_EVERY_S = 15.0


@dataclass(frozen=True)
class Demo:
    """Train BD-LRUs and an LSTM to track a permutation group, and draw how far each one gets.

    S_3 is learnt from 250 words of length 16, by four networks with five seeds each, in under three
    minutes on two cores; S_5 is learnt from fresh words, by three networks with two seeds each, and
    takes a few minutes more. All are tested on words up to 1,024 times longer.

    The output folder gets index.html, learning.png, summary.json and, under runs, every run.
    After Ctrl-C the same command goes on where it stopped; finished runs are reused.
    """

    group: Literal["S_3", "S_5"] = "S_3"
    """Group of permutations to be tracked."""

    output: Path | None = None
    """Folder for the page and the runs (demo for S_3, demo/S_5 for S_5, if not given)."""

    fresh: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Remove the runs that are there and train them again."""

    def run(self) -> None:
        """Train, draw, and print the table.

        Raises:
            ValueError: if the folder holds runs of another configuration.
            OSError: if the folder cannot be written.
            RuntimeError: if a run fails.
            KeyboardInterrupt: after Ctrl-C; the same command resumes.
        """
        # Slow imports wait until the command line is known to be right.
        import torch

        from statemix.experiments import demo
        from statemix.report import page

        folder = self.output or Path("demo", *([] if self.group == "S_3" else [self.group]))
        console = Console(highlight=False, markup=False)
        # A log file keeps a sentence on one line.
        console.soft_wrap = not console.is_terminal
        suite = demo.SUITES[self.group]
        jobs = suite.jobs(folder / "runs")
        num_workers = min(torch.get_num_threads(), len(jobs))
        console.print(
            f"{len(jobs)} runs on {self.group}, {num_workers} at a time. "
            "Ctrl-C stops; the same command goes on."
        )
        began = time.monotonic()
        with _watched(console, len(jobs)) as watch:
            summary = demo.run(
                suite,
                folder / "runs",
                num_workers=num_workers,
                on_event=watch.tell,
                fresh=self.fresh,
            )
        paths = page.write(summary, folder, self._command())
        _print_results(console, summary)
        console.print(f"done in {time.monotonic() - began:.0f} s:")
        for path in paths:
            console.print(f"  {path}")

    def _command(self) -> str:
        group = "" if self.group == "S_3" else f" --group {self.group}"
        output = "" if self.output is None else f" --output {self.output}"
        return f"statemix demo{group}{output}"


_CAVEAT = (
    "has neither the start token nor the sharpened gates used here, and gives the best of several "
    "runs where ours is a mean; the page says what else differs."
)


def _print_results(console: Console, summary: "Summary") -> None:
    from statemix.report import tables, verdict

    console.print()
    console.print(tables.as_rich(summary) if console.is_terminal else tables.as_text(summary))
    console.print(f"The paper ({summary['published']['setting']}) {_CAVEAT}\n")
    for sentence in verdict.sentences(summary):
        console.print(f"- {sentence}")
    console.print()


class _Remaining(ProgressColumn):
    """Time left, on the line of all runs only."""

    def __init__(self) -> None:
        super().__init__()
        self._inner = TimeRemainingColumn(compact=True)

    def render(self, task: Task) -> Text:
        return self._inner.render(task) if task.fields["is_total"] else Text("")


class _Watch:
    """Shows what happens: a live display on a terminal, otherwise a line now and then."""

    def __init__(self, console: Console, progress: Progress, num_jobs: int) -> None:
        self.console = console
        self.progress = progress
        self.num_jobs = num_jobs
        self.num_done = 0
        # Counted in runs, without what earlier calls did: it must not pass for speed.
        self.to_do = float(num_jobs)
        self.all_runs = progress.add_task("all runs", total=num_jobs, is_total=True, status="")
        self.lines: dict[str, TaskID] = {}
        self.written = time.monotonic()

    def tell(self, job: "Job", event: "Event") -> None:
        """Take note of an event."""
        if event.kind == "started":
            fraction = event.step / event.num_steps
            self.lines[job.name] = self.progress.add_task(
                job.name, total=1.0, is_total=False, status=""
            )
            self.progress.update(self.lines[job.name], completed=fraction)
            self._drop(fraction)
        elif event.kind == "step":
            self.progress.update(self.lines[job.name], completed=event.step / event.num_steps)
            self.progress.update(self.all_runs, advance=1 / event.num_steps)
        elif event.kind == "evaluated":
            self._evaluated(job, event)
        elif event.kind == "finished":
            self._finished(job)
        if event.kind == "message" or (event.kind == "started" and event.step):
            self.console.print(f"{job.name}: {event.text}")

    def _evaluated(self, job: "Job", event: "Event") -> None:
        status = event.text
        if event.row is not None:
            (scores,) = event.row["test"].values()
            epoch = event.row["epoch"]
            place = f"step {event.step:,}" if epoch is None else f"epoch {epoch}"
            status = f"{place}, accuracy {scores['token_accuracy']:.3f}"
        self.progress.update(self.lines[job.name], status=status)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.written >= _LINE_EVERY_S:
            self.written = now
            self.console.print(f"{job.name}: {status}")

    def _finished(self, job: "Job") -> None:
        from statemix.training import load_outcome

        self.num_done += 1
        outcome = load_outcome(job.folder)
        scores = outcome.last.test
        ends = " … ".join(
            f"{scores[length].token_accuracy:.3f} at {length:,}"
            for length in (min(scores), max(scores))
        )
        line = self.lines.pop(job.name, None)
        if line is None:
            how = "reused"
            self._drop(1.0)
        else:
            how = f"{outcome.time_s:.1f} s"
            self.progress.remove_task(line)
        self.progress.update(self.all_runs, status=f"{self.num_done} of {self.num_jobs} done")
        self.console.print(f"{self.num_done:2}/{self.num_jobs}  {job.name:16}  {ends}  ({how})")

    def _drop(self, fraction: float) -> None:
        self.to_do -= fraction
        self.progress.update(self.all_runs, total=self.to_do)


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
