"""The demo's numbers: accuracy of each network by word length, and the table of them."""

from statemix.studies.demo.demo_suite import DemoRow, Summary
from statemix.studies.number_text import published_text
from statemix.studies.table_text import Entry, Line, Pivot, Table, missing_lines


def networks(summary: Summary) -> dict[str, list[DemoRow]]:
    """The runs of each network by its label, in the order of their first run."""
    found: dict[str, list[DemoRow]] = {}
    for run in summary["runs"]:
        found.setdefault(run["network"], []).append(run)
    return found


def lengths(summary: Summary) -> list[int]:
    """The tested word lengths, in ascending order."""
    return [int(length) for length in summary["setting"]["test_words"]]


def accuracies(summary: Summary, run: DemoRow) -> dict[int, float]:
    """Word length -> token accuracy of a run; empty if it has no result."""
    head = summary["setting"]["head"]
    return {
        length: run["test"][str(length)][head]["token_accuracy"]
        for length in lengths(summary)
        if str(length) in run["test"]
    }


def pivot(summary: Summary) -> Pivot:
    """Accuracies by network (lines) and word length (columns)."""
    return Pivot(
        Entry(
            run["network"], str(length), accuracies(summary, run).get(length), status=run["status"]
        )
        for run in summary["runs"]
        for length in lengths(summary)
    )


def published(summary: Summary) -> dict[str, float]:
    """Network -> the paper's number at the training length; empty if the paper has none."""
    found = summary["published"]
    return {row["network"]: row["accuracy"] for row in found["rows"]} if found else {}


def missing(summary: Summary) -> list[str]:
    """One line for each run without a result, with the reason."""
    return missing_lines(
        [
            (f"{run['network']}, seed {run['seed']}", run["status"], run["message"])
            for run in summary["runs"]
        ]
    )


def table(summary: Summary) -> Table:
    """Lay out the numbers for a narrow terminal: a column per network, a line per word length.

    The paper's numbers are for the training length and follow its line.
    """
    cells, labels = pivot(summary), list(networks(summary))
    known, train_length = published(summary), summary["setting"]["train_length"]
    lines = []
    for length in lengths(summary):
        texts = (cells[label, str(length)].text for label in labels)
        lines.append(Line((f"{length:,}", *texts)))
        if length == train_length and known:
            numbers = (published_text(known.get(label)) for label in labels)
            lines.append(Line(("  paper", *numbers), quiet=True))
    if missing(summary):
        runs = (cells[label, str(train_length)] for label in labels)
        counts = (f"{len(cell.values)} of {cell.total}" for cell in runs)
        lines.append(Line(("  runs", *counts), quiet=True))
    return Table(("length", *labels), tuple(lines))
