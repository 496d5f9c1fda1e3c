"""What ``statemix reproduce`` runs: tables, figures, claims and suites, each shown in its way."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from statemix.errors import RequestError
from statemix.experiments.conditions import Condition
from statemix.experiments.exactness import rows as exactness
from statemix.experiments.exactness.suites import SUITES
from statemix.experiments.exactness.tally import tally
from statemix.experiments.fixed_point import rows as fixed_point_rows
from statemix.experiments.fixed_point import scores as fixed_point_scores
from statemix.experiments.fixed_point import suites as fixed_point
from statemix.experiments.reproduction import claims, tables
from statemix.experiments.reproduction import figures as paper
from statemix.experiments.reproduction.figures import Figure, Point
from statemix.experiments.reproduction.plan import Planned, due, plan
from statemix.experiments.reproduction.protocols import ProtocolName, SizeName
from statemix.experiments.reproduction.scores import CellScore, score
from statemix.experiments.reproduction.spectra import (
    SPECTRA,
    SpectraFolder,
    due_with_spectra,
    store_spectra,
)
from statemix.experiments.reproduction.tables import Cell
from statemix.experiments.reproduction.wrapper import WRAPPER
from statemix.experiments.runner import Ended
from statemix.experiments.store import Row, Store, row_of
from statemix.report import figures, spectra
from statemix.report.exactness import drawing as exactness_drawing
from statemix.report.exactness import text as exactness_text
from statemix.report.fixed_point import drawing as fixed_point_drawing
from statemix.report.fixed_point import text as fixed_point_text
from statemix.report.reproduction import drawing, text
from statemix.report.reproduction.spectra import panels as spectra_panels
from statemix.report.tables import Table
from statemix.tasks.addressing import Split
from statemix.training import RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Choice:
    """What was asked for.

    Attributes:
        what: name of the table, figure or suite, or "claims".
        protocol: name of the protocol.
        size: name of the size.
        columns: names of columns, panels or groups; empty means all.
        models: names of models; empty means all.
        output: folder of runs and pictures.
    """

    what: str
    protocol: ProtocolName
    size: SizeName
    columns: tuple[str, ...]
    models: tuple[str, ...]
    output: Path

    def includes(self, column: str, model: str) -> bool:
        """Return whether a column and a model are chosen."""
        return (not self.columns or column in self.columns) and (
            not self.models or model in self.models
        )

    def check(self, columns: Iterable[str], models: Iterable[str]) -> None:
        """Check that the chosen columns and models are known.

        Raises:
            RequestError: if one is not.
        """
        for option, names, known in (
            ("columns", self.columns, list(dict.fromkeys(columns))),
            ("models", self.models, list(dict.fromkeys(models))),
        ):
            for name in names:
                if name not in known:
                    raise RequestError(f"{option} must be among {known}, got {name!r}")


class Study(ABC):
    """Runs that belong together, and how their results are shown.

    Attributes:
        heading: what it is, for the first line.
        num_cells: numbers that it fills.
        planned: its runs in their order.
    """

    heading: str
    num_cells: int
    planned: list[Planned]

    def due(self, store: Store, *, retry: bool) -> list[Planned]:
        """Return the runs that are still to be trained."""
        return due(self.planned, store.rows(), retry=retry)

    def endings(self, store: Store) -> list[str]:
        """Return the status of every run that has ended."""
        rows = store.rows()
        return [rows[one.key]["status"] for one in self.planned if one.key in rows]

    def row_of(self, ended: Ended) -> Row:
        """Return the row of a run that has ended."""
        return row_of(ended)

    @abstractmethod
    def show(self, console: Console, store: Store) -> None:
        """Print the results, and draw them."""


class TableStudy(Study):
    """A table of the paper."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.heading = f"protocol {choice.protocol}, size {choice.size}"
        every = self._cells()
        choice.check((cell.column.name for cell in every), (cell.model for cell in every))
        self.cells = [cell for cell in every if choice.includes(cell.column.name, cell.model)]
        self.num_cells = len(self.cells)
        self.planned = plan(self.cells, choice.output / "runs")

    def _cells(self) -> list[Cell]:
        return list(tables.TABLES[self.choice.what].cells(self.choice.protocol, self.choice.size))

    def show(self, console: Console, store: Store) -> None:
        rows = store.rows()
        table = text.table([score(cell, rows) for cell in self.cells])
        print_table(console, table, _accuracy_title(self.choice), text.LEGEND)


class WrapperStudy(TableStudy):
    """What the paper leaves open, on some of its cells."""

    def _cells(self) -> list[Cell]:
        if self.choice.protocol != "paper":
            raise RequestError(f"protocol must be paper with wrapper, got {self.choice.protocol!r}")
        return list(WRAPPER.cells(self.choice.protocol, self.choice.size))


class ClaimsStudy(TableStudy):
    """The claims of the paper, with the cells that decide them."""

    def _cells(self) -> list[Cell]:
        return list(claims.cells(self.choice.protocol, self.choice.size))

    def show(self, console: Console, store: Store) -> None:
        console.print()
        console.print(text.claims(claims.decide(store.rows(), self.choice.protocol)))


class FigureStudy(Study):
    """A figure of the paper."""

    def __init__(self, choice: Choice, figure: Figure) -> None:
        self.choice = choice
        self.heading = f"protocol {choice.protocol}, size {choice.size}"
        every = list(figure.points(choice.protocol, choice.size))
        choice.check(
            (column.name for column in figure.columns(choice.size)),
            (point.cell.model for point in every),
        )
        self.points = [
            point for point in every if choice.includes(point.cell.column.name, point.cell.model)
        ]
        self.num_cells = len(self.points)
        self.planned = plan([point.cell for point in self.points], choice.output / "runs")

    def show(self, console: Console, store: Store) -> None:
        rows = store.rows()
        scored = [(point, score(point.cell, rows)) for point in self.points]
        table = text.point_table(scored)
        print_table(console, table, _accuracy_title(self.choice), text.LEGEND)
        console.print(text.price_table([scores for _, scores in scored]).as_text())
        if any(scores.verdict != "empty" for _, scores in scored):
            choice = self.choice
            path = choice.output / f"{choice.what}-{choice.protocol}-{choice.size}.png"
            self._draw(scored, store).savefig(path, dpi=figures.DPI)
            console.print(f"drawn: {path}")

    def _draw(self, scored: Sequence[tuple[Point, CellScore]], store: Store) -> "Drawing":
        del store
        return figures.draw(drawing.panels(scored))


class SpectraStudy(FigureStudy):
    """A figure of eigenvalues, which are kept beside the store."""

    def due(self, store: Store, *, retry: bool) -> list[Planned]:
        found = SpectraFolder.beside(store.path)
        return due_with_spectra(self.planned, store.rows(), found, retry=retry)

    def show(self, console: Console, store: Store) -> None:
        store_spectra(self.planned, SpectraFolder.beside(store.path))
        super().show(console, store)

    def _draw(self, scored: Sequence[tuple[Point, CellScore]], store: Store) -> "Drawing":
        found = SpectraFolder.beside(store.path).read()
        points = [point for point, _ in scored]
        return spectra.draw(spectra_panels(points, store.rows(), found))


class SuiteStudy(Study):
    """A suite of exactness."""

    heading = "with a protocol of its own"

    def __init__(self, choice: Choice) -> None:
        for option, usual in (("protocol", "paper"), ("size", "laptop")):
            got = getattr(choice, option)
            if got != usual:
                raise RequestError(f"{option} must be absent with {choice.what}, got {got!r}")
        self.choice = choice
        self.suite = SUITES[choice.what]
        every = self.suite.conditions
        choice.check((one.column for one in every), (one.model for one in every))
        self.conditions: list[Condition] = [
            one for one in every if choice.includes(one.column, one.model)
        ]
        self.num_cells = len(self.conditions)
        self.planned = plan(self.conditions, choice.output / "runs")

    def row_of(self, ended: Ended) -> Row:
        return exactness.row_of(ended)

    def show(self, console: Console, store: Store) -> None:
        rows = store.rows()
        certified = self.suite.certified
        tallies = [tally(one, rows, certified=certified) for one in self.conditions]
        title = f"{self.suite.name}: {self.suite.title}"
        if not certified:
            table = exactness_text.attempts_table(tallies)
            print_table(console, table, title, exactness_text.ATTEMPTS_LEGEND)
            return
        print_table(console, exactness_text.table(tallies), title, exactness_text.LEGEND)
        if any(one.rows for one in tallies):
            path = self.choice.output / f"{self.choice.what}.png"
            figures.draw(exactness_drawing.panels(tallies)).savefig(path, dpi=figures.DPI)
            console.print(f"drawn: {path}")


class FixedPointStudy(Study):
    """A suite of fixed points."""

    def __init__(self, choice: Choice) -> None:
        if choice.protocol != "paper":
            raise RequestError(
                f"protocol must be paper with {choice.what}, got {choice.protocol!r}"
            )
        self.choice = choice
        self.heading = f"protocol paper, size {choice.size}"
        self.suite = fixed_point.SUITES[choice.what]
        archive = self.suite.archive
        if archive and not Path(archive).exists():
            raise RequestError(
                f"{choice.what} needs {archive} in the current folder, got none; it is at "
                f"{self.suite.source}"
            )
        every = self.suite.conditions(choice.size)
        choice.check((one.column for one in every), (one.model for one in every))
        if archive:
            _check_stories(archive, every[0].runs[0])
        self.conditions = [one for one in every if choice.includes(one.column, one.model)]
        self.num_cells = len(self.conditions)
        self.planned = plan(self.conditions, choice.output / "runs")

    def row_of(self, ended: Ended) -> Row:
        return fixed_point_rows.row_of(ended)

    def show(self, console: Console, store: Store) -> None:
        rows = store.rows()
        scores = [fixed_point_scores.score(one, rows) for one in self.conditions]
        table = fixed_point_text.table(scores)
        print_table(
            console, table, f"{self.suite.name}: {self.suite.title}", fixed_point_text.LEGEND
        )
        if any(one.rows for one in scores):
            path = self.choice.output / f"{self.choice.what}-{self.choice.size}.png"
            figures.draw(fixed_point_drawing.panels(scores)).savefig(path, dpi=figures.DPI)
            console.print(f"drawn: {path}")


def _check_stories(archive: str, config: RunConfig) -> None:
    """Check that an archive has as many sequences as the runs of a suite are scored on.

    Args:
        archive: its name, for the message.
        config: one of the runs, which all read and score the same.

    Raises:
        RequestError: if it has fewer, or is no archive of the task.
    """
    task = config.build_task()
    splits: tuple[tuple[Split, int], ...] = (
        ("validation", config.evaluation.validation_size),
        ("test", config.evaluation.test_size),
    )
    for split, size in splits:
        try:
            task.examples(split, size - 1, size)
        except ValueError as error:
            raise RequestError(
                f"{archive} has too few stories: {split}_size{str(error).removeprefix('stop')}"
            ) from error


def study(choice: Choice) -> Study:
    """Return what was asked for.

    Raises:
        RequestError: if a column, a model, the protocol or the size does not fit it, or an archive
            that it reads is absent, another or too small.
    """
    what = choice.what
    if what in SUITES:
        return SuiteStudy(choice)
    if what in fixed_point.SUITES:
        return FixedPointStudy(choice)
    if what in SPECTRA:
        return SpectraStudy(choice, SPECTRA[what])
    if what in paper.FIGURES:
        return FigureStudy(choice, paper.FIGURES[what])
    return {"claims": ClaimsStudy, WRAPPER.name: WrapperStudy}.get(what, TableStudy)(choice)


def print_table(console: Console, table: Table, title: str, legend: str) -> None:
    """Print a table in the form that suits the output, and its legend."""
    console.print()
    console.print(table.as_rich(title) if console.is_terminal else table.as_text())
    console.print(legend)


def _accuracy_title(choice: Choice) -> str:
    return f"{choice.what}: test accuracy, protocol {choice.protocol}, size {choice.size}"
