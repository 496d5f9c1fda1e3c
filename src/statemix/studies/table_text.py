"""Tables of results as text, for a terminal, a file or a page."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from rich import box
from rich.table import Table as RichTable

MARKS: Mapping[str, str] = {
    "agrees": "=",
    "above": ">",
    "below": "<",
    "measured": "",
    "partial": "?",
    "empty": "",
}
"""Verdict -> the mark behind a number."""


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

    def as_html(self) -> str:
        """The table for a page: a cell has the verdict as its class that its mark stands for."""
        verdicts = {mark: verdict for verdict, mark in MARKS.items() if mark}
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.head)
        lines = []
        for line in self.lines:
            kind = ' class="quiet"' if line.quiet else ""
            cells = "".join(
                f'<td class="{verdicts.get(cell[-1:], "")}">{escape(cell)}</td>'
                for cell in line.cells[1:]
            )
            lines.append(f'<tr{kind}><th scope="row">{escape(line.cells[0])}</th>{cells}</tr>')
        body = "\n".join(lines)
        return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
