"""``statemix reproduce``: run a table or figure of the paper, and print or draw it."""

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rich.console import Console

from statemix import files
from statemix.cli.parser import Argument
from statemix.errors import RequestError, RunsFailedError
from statemix.training.progress import log_console
from statemix_lab.cli.watch import watched

if TYPE_CHECKING:
    from statemix.sweeps.runner import Ended
    from statemix_lab.studies.store import Store
    from statemix_lab.studies.study import Study
    from statemix_lab.studies.study_entries import Planned, StudyEntry

# Share of the minutes that measuring for the prediction may take.
_FOR_PREDICTION = 0.1
# Least time for the runs, whatever planning took: a process that trains takes seconds to start.
_TO_BEGIN_S = 15.0


@dataclass(frozen=True)
class Reproduce:
    """Run a table or figure of Dubinin et al., what decides its claims, or a study.

    A table is printed with the paper's numbers beside ours; a figure is printed and drawn; each
    claim is printed with the comparisons that decide it. "wrapper" repeats some cells of each table
    with a constant learning rate, a start token, weight decay, a SwiGLU or an MLP, which the paper
    leaves open, or with all the paper's epochs, of which a laptop trains few. The suite
    exact-groups trains networks to track permutation groups, and proves them; exact-automata does
    so for random automata, languages and patterns, larger-groups for groups of two generators,
    exact-protocols for the tasks of other works; exact-factorial measures what raises the chance of
    an attempt (docs/state_tracking.md). perfect-scores looks for wrong words of networks without a
    wrong answer in their tests. monitors learns protocols from labels of which some are wrong, and
    needs the extra automata. fp-a5, fp-budget, fp-copy and catbabi are the experiments of Movahedi
    et al. on fixed points; the last reads tasks_1-20_v1-2.tar.gz, the archive of bAbI, in the
    current folder. fig4 and duel train language models on the standard library of this Python; at
    size "paper", fig4 reads FineWeb. They need the extra lm.

    The plan and its predicted time are printed first. Runs that the results store holds are not
    repeated; after Ctrl-C, a kill or the end of the minutes, the same command continues.

    Protocol "mad" decides: it has MAD's backbone and several state sizes, which short runs screen
    first. Protocol "paper" has a linear readout. Protocol "mlp" adds an MLP behind the layer.
    Protocol "tuned" gives every model the same settings to choose from on validation data. Size
    "laptop" means one learning rate, one state size (four under protocol "mad"), three seeds and
    short training; "paper" the whole grid.
    """

    resumes: ClassVar[bool] = True

    what: Annotated[str, Argument("NAME", positional=True)]
    """Table (table3, table4, table6), figure (fig1c, fig1d, fig2, fig4, fig5, fig6, fig7),
    "claims", what the paper leaves open ("wrapper"), exact-groups, exact-automata,
    larger-groups, exact-protocols, perfect-scores, monitors, exact-factorial, fp-a5, fp-budget,
    fp-copy, catbabi, duel, demo-S_3, demo-S_5, demo-A_5, or a study of your own."""

    size: Literal["laptop", "workstation", "paper"] = "laptop"
    """How much of the paper's grid to run; exact-groups and exact-factorial have one size."""

    protocol: Literal["mad", "paper", "mlp", "tuned"] | None = None
    """How runs are configured and settings chosen ("mad" if not given, or "paper" with studies that
    have no "mad")."""

    minutes: float | None = None
    """Time to spend, planning included; the most informative cells come first. At least one run
    begins. (All runs if not given.)"""

    columns: tuple[str, ...] = ()
    """Columns of the table, their panels of the figure, or groups of a study, such as "A_5"; or
    data sets as the plan prints them, such as "S3-250" (all if not given)."""

    models: tuple[str, ...] = ()
    """Models, such as "BD-LRU m=3" (all if not given)."""

    dry_run: bool = False
    """Print the plan and its predicted time, run nothing."""

    retry: bool = False
    """Retry runs that diverged or failed."""

    workers: int | None = None
    """Parallel runs, each on one thread (PyTorch's number of threads if not given)."""

    output: Path = Path("reproduce")
    """Folder of the runs."""

    store: Path | None = None
    """Results store, a JSON-lines file (if not given: runs.jsonl in the folder)."""

    imports: tuple[str, ...] = ()
    """Modules to import, such as one that registers a study of your own."""

    def run(self) -> None:
        """Print the plan, run it, and print the table."""
        until = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        self._check()
        # Slow imports wait until the options have been checked.
        import torch

        from statemix.training.folder import WRITING_S, lock_folder
        from statemix_lab.studies.forecast import Forecast
        from statemix_lab.studies.result_text import counted, duration_text
        from statemix_lab.studies.store import Store
        from statemix_lab.studies.study import find_study
        from statemix_lab.studies.study_entries import PROTOCOLS, plan

        study = find_study(self.what)
        decides = next(one for one in PROTOCOLS if one in study.protocols)
        protocol = decides if self.protocol is None else self.protocol
        entries = study.chosen(protocol, self.size, self.columns, self.models)
        planned = plan(entries, self.output / "runs")
        store = Store(self.store or self.output / "runs.jsonl")
        rows, left = store.rows(), study.due(planned, store, retry=self.retry)
        planned_keys, left_keys = ({one.key for one in runs} for runs in (planned, left))
        if not self.dry_run:
            # Runs that cannot be written would be stored as failed.
            is_new = not self.output.exists()
            files.make_folder("output", self.output)
            try:
                files.check_writable("store", store.path)
            except RequestError:
                if is_new:
                    self.output.rmdir()
                raise
        console = log_console()
        workers = min(self.workers or torch.get_num_threads(), max(len(left), 1))
        num_cells = len({entry.cell for entry in entries})
        console.print(
            f"{self.what}, protocol {protocol}, size {self.size}: "
            f"{counted(num_cells, 'cell')}, {counted(len(planned), 'run')}, "
            f"of which {len((planned_keys - left_keys) & rows.keys())} are in {store.path}"
        )
        forecast = Forecast(None if self.minutes is None else 60 * self.minutes * _FOR_PREDICTION)
        with console.status("timing a few steps of each network"):
            seconds = [forecast.seconds(one.job.config) for one in left]
        if left:
            known = [time_s for time_s in seconds if time_s is not None]
            which = "all" if len(known) == len(left) else f"{len(known)} of them"
            limit = f", for {self.minutes:g} min" if self.minutes else ""
            # Screening runs decide which of the others are trained.
            waits = any(study.is_wanted(one, rows) is None for one in left)
            console.print(
                f"{'at most ' if waits else ''}{len(left)} runs to do, {workers} at a time{limit}; "
                f"predicted for {which}: {duration_text(sum(known) / workers)}"
            )
        if self.dry_run:
            for one, time_s in zip(left, seconds, strict=True):
                text = "unknown" if time_s is None else duration_text(time_s)
                console.print(f"  {text:>12}  {one.job.name}")
            if lost := lost_text(planned, store):
                console.print(lost)
            return
        ended: Counter[str] = Counter()
        began = time.monotonic()
        if until is not None:
            until = max(until, began + _TO_BEGIN_S)
        with watched(console, len(left)) as watch:

            def end(row: "Ended") -> None:
                ended[row.status] += 1
                watch.on_end(row)

            study.fill(
                left,
                store,
                num_workers=workers,
                until=until,
                retry=self.retry,
                on_event=watch.on_event,
                on_end=end,
            )
        if left:
            console.print(f"{ended['done']} runs finished in {time.monotonic() - began:.0f} s")
        num_open = len(left) - ended["done"] - ended["diverged"] - ended["failed"]
        if num_open and until is not None and time.monotonic() >= until:
            console.print(f"the time was up: {num_open} runs are left; the same command continues")
        study.keep(planned, store)
        parts = [protocol] * (len(study.protocols) > 1) + [self.size] * (len(study.sizes) > 1)
        name = "-".join([self.what, *parts])
        picture = show_study(console, study, entries, store)
        if picture is not None:
            drawn = self.output / f"{name}.png"
            with lock_folder(self.output, patience_s=WRITING_S):
                files.write_file(drawn, picture)
            console.print(f"drawn: {drawn}")
        if store.path.suffix == ".jsonl":
            # The report reads all stores with this suffix in a folder, by default in another one.
            folder = shlex.quote(str(store.path.parent))
            console.print(f"a page of all results: statemix report --results {folder}")
        if lost := lost_text(planned, store):
            raise RunsFailedError(lost)

    def _check(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < 1e6:
            raise RequestError(f"minutes must be above 0 and below 1e6, got {self.minutes}")
        if self.workers is not None:
            from statemix.training.devices import check_threads

            check_threads("workers", self.workers)


def show_study(
    console: Console, study: "Study", entries: "Sequence[StudyEntry]", store: "Store"
) -> bytes | None:
    """Print the table of a study, and return its picture as PNG if there is one."""
    from statemix_lab.studies.figure import png

    rows = store.rows()
    runs = study.runs(entries, rows)
    table = study.table(runs, entries)
    console.print()
    title = f"{study.name}: {study.title}"
    console.print(table.as_rich(title) if console.is_terminal else table.as_text())
    for text in study.report(rows, entries):
        console.print(text)
    figure = study.draw(runs, store.path.parent)
    return None if figure is None else png(figure)


def lost_text(planned: "Sequence[Planned]", store: "Store") -> str:
    """Say how many runs have ended without a result; empty if none has."""
    rows = store.rows()
    endings = [rows[one.key]["status"] for one in planned if one.key in rows]
    lost = sum(status != "done" for status in endings)
    if not lost:
        return ""
    return f"{lost} of {len(endings)} ended runs have no result; --retry repeats them"
