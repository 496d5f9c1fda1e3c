"""``statemix demo``: train, compare and draw in one command."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from statemix import files
from statemix.cli.watch import watched
from statemix.errors import RunsFailedError

if TYPE_CHECKING:
    from statemix.studies.demo.demo_suite import Summary


@dataclass(frozen=True)
class Demo:
    """Train BD-LRUs and an LSTM to track a permutation group, and draw how far each one gets.

    For S_3, four networks with five seeds each learn from 250 words of length 16, in under three
    minutes on two cores. For S_5 and A_5, three networks with two seeds each learn from fresh
    words, the BD-LRU by the recipe "exact", in a few minutes more. All are tested on words up to
    1,024 times longer, and certified: the page says which are proven for every length.

    The output folder receives index.html, learning.png, summary.json and the folder runs. After
    Ctrl-C, repeat the command to resume; finished runs are reused. If a run diverges or fails, the
    others continue, and the page lists it as missing.
    """

    group: Literal["S_3", "S_5", "A_5"] = "S_3"
    """Permutation group to track."""

    output: Path | None = None
    """Folder of the page and the runs (if not given: demo for S_3, demo/GROUP for others)."""

    fresh: bool = False
    """Remove existing runs and train from scratch."""

    retry: bool = False
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

        from statemix.studies.demo import demo_page as page
        from statemix.studies.demo import demo_scores as scores
        from statemix.studies.demo import demo_suite as demo

        folder = self.output or Path("demo", *([] if self.group == "S_3" else [self.group]))
        files.make_folder("output", folder)
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
        with watched(console, num_jobs) as watch:
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


_CAVEAT = (
    "uses neither a start token nor sharpened gates, and reports the best of several runs; ours "
    "are means. The page lists the other differences."
)


def _print_results(console: Console, summary: "Summary") -> None:
    from statemix.studies.demo import demo_scores as scores
    from statemix.studies.demo import demo_verdict as verdict

    table = scores.table(summary)
    title = "Token accuracy on test words: mean (and range) over seeds"
    console.print()
    console.print(table.as_rich(title) if console.is_terminal else table.as_text())
    if summary["published"] is not None:
        console.print(f"The paper ({summary['published']['setting']}) {_CAVEAT}\n")
    for sentence in verdict.sentences(summary):
        console.print(f"- {sentence}")
    console.print()
