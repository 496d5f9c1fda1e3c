"""Tables of results: the spread over runs in each cell, next to published numbers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table as RichTable

from statemix.studies.number_text import Spread, published_text, spread_text


@dataclass(frozen=True)
class Entry:
    """One number of one run.

    Attributes:
        line: label of its line in the table.
        column: label of its column.
        value: the number; None if the run has no result.
        status: how the run ended, such as "done" or "diverged".
    """

    line: str
    column: str
    value: float | None
    status: str = "done"


@dataclass(frozen=True)
class Cell:
    """The runs of one line and one column.

    Attributes:
        values: numbers of the runs that have a result.
        missing: status of each run without a result.
    """

    values: tuple[float, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Number of runs, with or without a result."""
        return len(self.values) + len(self.missing)

    @property
    def spread(self) -> Spread | None:
        """Mean and range of the results; None without results."""
        return Spread.over(self.values) if self.values else None

    @property
    def text(self) -> str:
        """Mean and range; without results, how the runs ended."""
        return spread_text(self.spread) if self.spread else self.missing_text

    @property
    def missing_text(self) -> str:
        """How the runs without a result ended; empty if every run has one.

        Example:
            >>> Cell((0.5,), ("diverged", "failed")).missing_text
            '1 of 3 diverged, 1 of 3 failed'
            >>> Cell((), ("diverged",)).missing_text
            'diverged'
        """
        counts = Counter(self.missing)
        if not self.values and len(counts) == 1:
            return next(iter(counts))
        return ", ".join(f"{count} of {self.total} {status}" for status, count in counts.items())


class Pivot:
    """Numbers of many runs by line and column.

    Lines and columns keep the order of their first entries.

    Args:
        entries: all numbers of all runs.

    Example:
        >>> pivot = Pivot([Entry("LSTM", "S_3", 0.5), Entry("LSTM", "S_3", None, "diverged")])
        >>> pivot["LSTM", "S_3"].text, pivot["LSTM", "S_3"].missing_text
        ('.500', '1 of 2 diverged')
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        found = list(entries)
        self.lines = list(dict.fromkeys(entry.line for entry in found))
        self.columns = list(dict.fromkeys(entry.column for entry in found))
        self._cells: dict[tuple[str, str], Cell] = {}
        for entry in found:
            cell = self[entry.line, entry.column]
            if entry.value is None:
                cell = Cell(cell.values, (*cell.missing, entry.status))
            else:
                cell = Cell((*cell.values, entry.value), cell.missing)
            self._cells[entry.line, entry.column] = cell

    def __getitem__(self, place: tuple[str, str]) -> Cell:
        return self._cells.get(place, Cell())


@dataclass(frozen=True)
class Line:
    """One line of a table as text; quiet lines are printed dim."""

    cells: tuple[str, ...]
    quiet: bool = False


@dataclass(frozen=True)
class Table:
    """A table as text, for a terminal or a file."""

    head: tuple[str, ...]
    lines: tuple[Line, ...]

    def as_text(self) -> str:
        """The table as aligned plain lines."""
        rows = [self.head, *(line.cells for line in self.lines)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    def as_rich(self, title: str) -> RichTable:
        """The table for a terminal."""
        table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for name in self.head:
            table.add_column(name, no_wrap=True)
        for line in self.lines:
            table.add_row(*line.cells, style="dim" if line.quiet else None)
        return table


def comparison(
    pivot: Pivot,
    corner: str,
    published: dict[tuple[str, str], float] | None = None,
    source: str = "paper",
) -> Table:
    """Lay out numbers; below each line that a paper has numbers for, a line shows them.

    Args:
        pivot: the numbers.
        corner: head of the first column, the labels of the lines.
        published: (line, column) -> published number.
        source: label of the published lines.
    """
    known = published or {}
    lines: list[Line] = []
    for name in pivot.lines:
        cells = [pivot[name, column] for column in pivot.columns]
        lines.append(Line((name, *(cell.text or "–" for cell in cells))))
        if any(cell.values and cell.missing for cell in cells):
            partial = (cell.missing_text if cell.values else "" for cell in cells)
            lines.append(Line(("  missing", *partial), quiet=True))
        numbers = [known.get((name, column)) for column in pivot.columns]
        if any(number is not None for number in numbers):
            lines.append(Line((f"  {source}", *map(published_text, numbers)), quiet=True))
    return Table((corner, *pivot.columns), tuple(lines))


def missing_lines(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """One line for each run without a result.

    Args:
        rows: (name, status, message) of each run; runs that are done are skipped.

    Example:
        >>> missing_lines([("LSTM, seed 3", "diverged", "loss must be finite, got nan")])
        ['LSTM, seed 3 diverged: loss must be finite, got nan']
    """
    said = {"missing": "is missing", "interrupted": "was interrupted", "running": "is running"}
    return [
        f"{name} {said.get(status, status)}" + (f": {message}" if message else "")
        for name, status, message in rows
        if status != "done"
    ]
