"""Accuracy by network and word length, with the spread over seeds and the published number."""

import math
from dataclasses import dataclass

from rich import box
from rich.table import Table

from statemix.experiments.summary import Summary

_NAMES = {"bd_lru": "BD-LRU", "h_lru": "H-LRU", "lstm": "LSTM"}


@dataclass(frozen=True)
class Spread:
    """Mean, smallest and largest of one number over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """Summarise at least one value; equal values have exactly their value as mean."""
        low, high = min(values), max(values)
        # Rounding in the sum must not move the mean out of the range.
        return cls(min(max(math.fsum(values) / len(values), low), high), low, high)


@dataclass(frozen=True)
class Row:
    """One network: its scores by word length, the number of seeds, and the paper's number."""

    label: str
    seeds: int
    accuracy: dict[int, Spread]
    published: float | None


def label(model: str, m: int | None) -> str:
    """Name a network as the papers do, with its block size or order."""
    name = _NAMES.get(model, model)
    return name if m is None else f"{name} m={m}"


def models(summary: Summary) -> list[tuple[str, int | None]]:
    """List the networks in the order of their first run."""
    return list(dict.fromkeys((run["model"], run["m"]) for run in summary["runs"]))


def lengths(summary: Summary) -> list[int]:
    """List the word lengths that every run was tested on, the shortest first."""
    return sorted(int(length) for length in summary["runs"][0]["accuracy"])


def by_model(summary: Summary) -> list[Row]:
    """Gather the runs of each network into one row."""
    published = {(row["model"], row["m"]): row["accuracy"] for row in summary["published"]["rows"]}
    rows = []
    for key in models(summary):
        runs = [run for run in summary["runs"] if (run["model"], run["m"]) == key]
        spreads = {
            length: Spread.of([run["accuracy"][str(length)] for run in runs])
            for length in lengths(summary)
        }
        rows.append(Row(label(*key), len(runs), spreads, published.get(key)))
    return rows


def accuracy_text(value: float) -> str:
    """Write three decimals; only a value without any error is written as 1.000."""
    if value >= 1.0:
        return "1.000"
    return min(f"{value:.3f}", "0.999").removeprefix("0")


def range_text(spread: Spread) -> str:
    """Write the range over seeds, or nothing where all seeds agree."""
    low, high = accuracy_text(spread.low), accuracy_text(spread.high)
    return f"{low}–{high}" if low != high else ""


def published_text(value: float | None) -> str:
    """Write a paper's number with the two decimals that papers give."""
    return "–" if value is None else f"{value:.2f}".removeprefix("0")


def cells(summary: Summary) -> list[list[str]]:
    """Lay the numbers out for a narrow terminal: a column per network, a line per word length.

    The paper's numbers follow the line of the training length, which is the one they belong to.
    """
    rows = by_model(summary)
    lines = [["length", *(row.label for row in rows)]]
    for length in lengths(summary):
        line = [f"{length:,}"]
        for row in rows:
            spread = row.accuracy[length]
            between = range_text(spread)
            line.append(accuracy_text(spread.mean) + (f" ({between})" if between else ""))
        lines.append(line)
        if length == summary["setting"]["train_length"]:
            lines.append(["  paper", *(published_text(row.published) for row in rows)])
    return lines


def as_rich(summary: Summary) -> Table:
    """Draw the cells for a terminal."""
    head, *body = cells(summary)
    table = Table(
        title="Token accuracy on test words: mean (and range) over seeds",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in head:
        table.add_column(name, no_wrap=True)
    for line in body:
        table.add_row(*line, style="dim" if line[0].startswith(" ") else None)
    return table


def as_text(summary: Summary) -> str:
    """Write the cells as plain lines."""
    lines = cells(summary)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
