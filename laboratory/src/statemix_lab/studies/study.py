"""A study: entries, and what is special about how its runs are measured and shown; all by name."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from matplotlib.figure import Figure

from statemix.errors import RequestError
from statemix.registry import installed
from statemix.sweeps.runner import Ended, JobEnding, Runnable, run_all
from statemix_lab.studies import store
from statemix_lab.studies.figure import Panel, draw, svg
from statemix_lab.studies.length_table import LENGTHS_LEGEND, length_panels, length_table
from statemix_lab.studies.result_text import Table, accuracy_text, counted, duration_text
from statemix_lab.studies.store import Store, StoredRow
from statemix_lab.studies.study_entries import (
    PROTOCOLS,
    SIZES,
    Planned,
    ProtocolName,
    SizeName,
    StudyEntry,
    begun,
    due,
)
from statemix_lab.studies.tidy import ENOUGH_SEEDS, by_length, tidy


@dataclass(frozen=True)
class Section:
    """A part of the page of results; its picture is SVG, and statements have their details."""

    id: str
    title: str
    table: Table | None = None
    legend: str = ""
    picture: str = ""
    caption: str = ""
    runs: Sequence[Sequence[str]] = ()
    statements: Sequence[tuple[str, Sequence[str]]] = ()


@dataclass(frozen=True, eq=False)
class Study:
    """Entries of one question, and how their results are shown.

    Results are by default a table and a figure of accuracies against the length of test sequences.

    Attributes:
        name: name on the command line.
        entries: (protocol, size) -> entries, those first that should be run first.
        legend: explanation of its table.
        paper: whose published numbers its entries hold; empty without any.
        unmeasured: published numbers that none of its entries has.
        runs: function that returns the tidy table of the runs of entries.
        table: function that lays out the results.
        panels: function that returns the panels of the figure; none without results.
        row_of: function that returns the row of a run that is done, has diverged or has failed.
        at_chosen_rate: function of a run and the rows that says whether the run has the learning
            rate that its model has chosen by the runs with seed 0; other seeds train at that rate
            alone. None means that a run with seed 0 has not ended yet.
    """

    name: str
    title: str
    entries: Callable[[ProtocolName, SizeName], Sequence[StudyEntry]]
    protocols: tuple[ProtocolName, ...] = ("paper",)
    sizes: tuple[SizeName, ...] = ("laptop",)
    legend: str = LENGTHS_LEGEND
    paper: str = ""
    unmeasured: int = 0
    runs: Callable[..., pl.DataFrame] = tidy
    table: Callable[[pl.DataFrame, Sequence[StudyEntry]], Table] = length_table
    panels: Callable[[pl.DataFrame], list[Panel]] = length_panels
    row_of: Callable[[Ended], StoredRow] = store.row_of
    at_chosen_rate: Callable[[Runnable, Mapping[str, StoredRow]], bool | None] | None = None
    # Whether the page also shows entries without results.
    whole: ClassVar[bool] = False
    y_label: ClassVar[str] = "accuracy on test sequences"
    caption: ClassVar[str] = "Thick lines are means over seeds, thin lines single seeds."

    def chosen(
        self,
        protocol: ProtocolName,
        size: SizeName,
        columns: Sequence[str] = (),
        models: Sequence[str] = (),
    ) -> list[StudyEntry]:
        """Return the entries of some columns (or data sets) and models; empty means all."""
        for option, got, options in (
            ("protocol", protocol, self.protocols),
            ("size", size, self.sizes),
        ):
            if got not in options:
                raise RequestError(
                    f"{option} must be {' or '.join(options)} with {self.name}, got {got!r}"
                )
        entries = self.entries(protocol, size)
        known_columns = dict.fromkeys(name for entry in entries for name in entry.names)
        known_models = dict.fromkeys(entry.model for entry in entries)
        for option, names, known in (
            ("columns", columns, known_columns),
            ("models", models, known_models),
        ):
            for name in names:
                if name not in known:
                    raise RequestError(f"{option} must be among {list(known)}, got {name!r}")
        self.check(entries)
        # A data set that is chosen chooses the whole number.
        cells = {
            entry.cell
            for entry in entries
            if (not columns or set(entry.names) & set(columns))
            and (not models or entry.model in models)
        }
        return [entry for entry in entries if entry.cell in cells]

    def check(self, entries: Sequence[StudyEntry]) -> None:
        """Raise a RequestError if something that the runs read is missing."""

    def is_wanted(self, planned: Planned, rows: Mapping[str, StoredRow]) -> bool | None:
        """Return whether a run is to be trained; None while runs that decide it must end."""
        config = planned.job.config
        if self.at_chosen_rate is not None:
            return config.seed == 0 or self.at_chosen_rate(config, rows)
        return planned.trials.is_wanted(planned.key, rows)

    def due(self, planned: Sequence[Planned], results: Store, *, retry: bool) -> list[Planned]:
        """Return the runs that are still to be trained, or may be."""
        rows = results.rows()
        left = due(planned, rows, retry=retry)
        return [run for run in left if self.is_wanted(run, rows) is not False]

    def fill(
        self,
        planned: Sequence[Planned],
        results: Store,
        *,
        retry: bool = False,
        on_end: Callable[[Ended], None] | None = None,
        **options: Any,
    ) -> None:
        """Train runs until all have ended or the time is up, and store a row for each that ended.

        A run that a kill left unfinished is resumed by the next call. One that was finished, but
        whose row was not yet stored, is not repeated either. Several processes may fill one store:
        a run that another one trains gets no row here, so it stays due until that one stores it.
        Options are those of :func:`statemix.sweeps.runner.run_all`, with its errors.
        """

        def note(ended: Ended) -> None:
            if ended.status != "interrupted":
                # Another process may have stored the row in the meantime.
                stored = results.rows().get(store.key(ended.job.config))
                if stored is None or stored["status"] != "done":
                    results.append(self.row_of(ended))
            if on_end is not None and (ended.started or ended.status != "interrupted"):
                on_end(ended)

        again: tuple[JobEnding, ...] = ("diverged", "failed") if retry else ()
        tried: set[str] = set()
        while True:
            rows, left = results.rows(), self.due(planned, results, retry=retry)
            ready = [run for run in left if run.key not in tried and self.is_wanted(run, rows)]
            if not ready:
                break
            tried |= {run.key for run in ready}
            run_all([run.job for run in ready], retry=again, on_end=note, **options)
        self.keep(planned, results)

    def keep(self, planned: Sequence[Planned], results: Store) -> None:
        """Store files that are too large for a row, such as eigenvalues."""

    def draw(self, runs: pl.DataFrame, folder: Path) -> Figure | None:
        """Draw the results; ``folder`` holds what is kept beside the store."""
        del folder
        panels = self.panels(runs)
        return draw(panels, self.y_label) if panels else None

    def report(self, rows: Mapping[str, StoredRow], entries: Sequence[StudyEntry]) -> list[str]:
        """Return what a terminal shows below the table."""
        del rows, entries
        return [self.legend]

    def counts(self, rows: Mapping[str, StoredRow]) -> tuple[int, int, int]:
        """Return how many published numbers are measured, how many agree, and of how many."""
        numbers, places = [], set()
        for protocol in reversed(self.protocols):
            for size in self.sizes:
                every = self.entries(protocol, size)
                if size == self.sizes[-1]:
                    places |= {(one.column, one.model, at) for one in every for at in one.published}
                if entries := begun(every, rows):
                    numbers.append(by_length(self.runs(entries, rows), entries))
        of = len(places) + self.unmeasured
        if not numbers:
            return 0, 0, of
        measured = (
            pl.concat(numbers, how="diagonal")
            .filter(pl.col("comparable").is_not_null(), pl.col("seeds") >= ENOUGH_SEEDS)
            .unique(["column", "model", "length"], keep="last")
        )
        return measured.height, measured.filter(verdict="agrees").height, of

    def sections(self, rows: Mapping[str, StoredRow], folder: Path) -> Iterator[Section]:
        """Yield a section of the page for each protocol and size that adds results."""
        for protocol in (name for name in PROTOCOLS if name in self.protocols):
            seen: set[str] = set()
            for size in (name for name in SIZES if name in self.sizes):
                every = self.entries(protocol, size)
                if not (entries := begun(every, rows)):
                    continue
                runs = self.runs(every if self.whole else entries, rows, planned=False)
                keys = set(runs.filter(pl.col("status") == "done")["key"])
                # Sizes share runs: each is shown for what it adds to the smaller ones.
                if keys <= seen:
                    continue
                seen |= keys
                figure = self.draw(runs, folder)
                words = [f'protocol "{protocol}"'] if len(self.protocols) > 1 else []
                words += [f'size "{size}"'] if len(self.sizes) > 1 else []
                yield Section(
                    "-".join([self.name, *(word.split('"')[1] for word in words)]),
                    ", ".join([f"{self.name}: {self.title}", *words]),
                    self.table(runs, entries),
                    self.legend,
                    "" if figure is None else svg(figure),
                    self.caption,
                    runs=list(self.run_lines(runs)),
                )

    def run_lines(self, runs: pl.DataFrame) -> Iterator[list[str]]:
        """Yield for each run with a result: key, labels, setting, seed, result, time, commit."""
        done = runs.filter(pl.col("status") == "done").unique("key", maintain_order=True)
        for run in done.to_dicts():
            yield [
                run["key"],
                ", ".join(
                    dict.fromkeys((run["column"], run["model"], run.get("data", run["model"])))
                ),
                run["setting"] or "",
                f"seed {run['seed']}",
                self.result_text(run),
                duration_text(run["seconds"]),
                run["commit"],
            ]

    def result_text(self, run: Mapping[str, Any]) -> str:
        """Write the result of a run."""
        best = "at_best_validation" if run["protocol"] == "tuned" else "best_test"
        attempts = run["attempts"]
        if run["certificate"]:
            result = f"{run['certificate']}: {run['word']}".removesuffix(": ")
        elif attempts:
            result = "passed" if any(attempt["passed"] for attempt in attempts) else "failed"
        else:
            return accuracy_text(run[best])
        return ", ".join([result, *[counted(len(attempts), "attempt")] * bool(attempts)])


def chosen_rate(
    tries: Mapping[float, Runnable],
    rows: Mapping[str, StoredRow],
    loss: Callable[[StoredRow], float],
) -> float | None:
    """Return the learning rate whose run has the least loss; None if a run has not ended yet."""
    losses = {}
    for rate, run in tries.items():
        row = rows.get(store.key(run))
        if row is None:
            return None
        losses[rate] = loss(row) if row["status"] == "done" else math.inf
    return min(losses, key=losses.__getitem__)


# Each has a tuple STUDIES, in the order of the page.
_MODULES = (
    "statemix_lab.studies.higher_order.higher_order_studies",
    "statemix_lab.studies.exactness.exact_studies",
    "statemix_lab.studies.fixed_points.fixed_point_studies",
    "statemix_lab.studies.group_demo",
    "statemix_lab.studies.language.language_studies",
)
_REGISTERED: dict[str, Study] = {}


@cache
def _own() -> dict[str, Study]:
    every = [study for name in _MODULES for study in import_module(name).STUDIES]
    # Those of other distributions.
    every += [point.load() for point in installed("statemix.studies")]
    return {study.name: study for study in every}


def studies() -> dict[str, Study]:
    """Return all studies by name, in the order of the page."""
    return {**_own(), **_REGISTERED}


def find_study(name: str) -> Study:
    """Return a study by name."""
    known = studies()
    if name not in known:
        raise RequestError(f"study must be one of {', '.join(known)}, got {name!r}")
    return known[name]


def register_study(study: Study) -> Study:
    """Add a study of one's own, for ``statemix reproduce NAME --imports MODULE`` and the page."""
    if study.name in _own():
        raise ValueError(f"study must have a new name, got {study.name!r}")
    _REGISTERED[study.name] = study
    return study
