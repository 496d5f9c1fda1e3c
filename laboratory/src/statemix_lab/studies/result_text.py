"""Results as text: numbers, and tables for a terminal, a file or a page."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

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


def accuracy_text(value: float) -> str:
    """Write three decimals; only a perfect accuracy is written as 1.000."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"an accuracy must be in 0..1, got {value}")
    if value == 1.0:
        return "1.000"
    return min(f"{value:.3f}", "0.999").removeprefix("0")


def counts_text(values: Iterable[float]) -> str:
    """Write whole numbers as the least and the most, or as one: "1,200 to 3,400"."""
    found = list(values)
    return " to ".join(dict.fromkeys(f"{value:,.0f}" for value in (min(found), max(found))))


def published_text(value: float | None) -> str:
    """Write a published number with the decimals that it has, at least two."""
    if value is None:
        return "–"
    decimals = max(len(repr(value).partition(".")[2]), 2)
    return f"{value:.{decimals}f}".removeprefix("0")


def counted(count: int, noun: str) -> str:
    """Write a count and its noun, such as "2 seeds"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration_text(time_s: float) -> str:
    """Write seconds, minutes and seconds, or hours and minutes, such as "5 h 12 min"."""
    minutes, seconds = divmod(round(time_s), 60)
    if minutes >= 60:
        hours, minutes = divmod(round(time_s / 60), 60)
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def environment_text(environment: Mapping[str, Any]) -> str:
    """Describe the versions and the machine of a run, from its ``provenance.describe``."""
    packages = environment["packages"]
    parts = (
        f"Statemix {packages['statemix'] or '(not installed)'}",
        f"PyTorch {packages['torch']}",
        f"Python {environment['python']}",
        f"{environment['cpu']}, {environment['cpu_count']} cores",
    )
    return ", ".join(parts)


def commit_text(environment: Mapping[str, Any]) -> str:
    """Write seven digits of the commit of a run, and "+" if its code had uncommitted changes."""
    commit = str(environment.get("commit") or "")[:7]
    return f"{commit}+" if environment.get("tree_clean") is False else commit


def rate_text(value: float) -> str:
    """Write at most three digits, in thousands or millions: "950", "12.3k", "2.47M"."""
    for power, unit in ((1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * power:
            return f"{float(f'{value / power:.3g}'):g}{unit}"
    return f"{value:.3g}"
