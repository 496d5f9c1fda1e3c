"""Logs: sequences of events with labels, from JSON lines or CSV."""

import csv
import gzip
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statemix.automaton import IGNORED
from statemix.errors import RequestError, suggestion
from statemix.files import csv_rows
from statemix.learning.prefix_tree import Ints

EVENT_COLUMNS = ("events", "event", "trace", "activity", "concept:name")
LABEL_COLUMNS = ("labels", "label", "outputs", "output", "answers", "answer", "verdict")
CASE_COLUMNS = ("case", "case_id", "trace_id", "session", "case:concept:name")
"""Names by which the columns of events, labels and case identifiers are found."""

# Of these, a text has a word for each event.
_SEVERAL = ("labels", "outputs", "answers")
_LEAST_TRACES = 10
_MOST_NAMES = 1000
_JSON = (".jsonl", ".ndjson", ".json")
# Pages, pictures and programs cannot hold these characters.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, eq=False)
class Log:
    """Traces of a system, one after the other.

    Attributes:
        events: name of each event.
        labels: name of each label.
        tokens: number of each event that happened, shape (steps,).
        targets: number of the label of each event, same shape; ``IGNORED`` where there is none.
        starts: where each trace begins, and the number of steps, shape (traces + 1,).
        rows: row of the file of each event, counted from 1, shape (steps,).
    """

    events: tuple[str, ...]
    labels: tuple[str, ...]
    tokens: Ints
    targets: Ints
    starts: Ints
    rows: Ints

    @property
    def num_traces(self) -> int:
        """Number of traces."""
        return len(self.starts) - 1

    def select(self, traces: Ints) -> "Log":
        """Return the log of some traces, with the same names."""
        lengths = np.diff(self.starts)[traces]
        starts = np.concatenate([[0], lengths.cumsum()])
        at = np.arange(starts[-1]) + np.repeat(self.starts[traces] - starts[:-1], lengths)
        steps = self.tokens[at], self.targets[at], starts, self.rows[at]
        return Log(self.events, self.labels, *steps)

    def shortened(self, length: int) -> "Log":
        """Return the log with the beginnings of longer traces."""
        lengths = np.diff(self.starts)
        kept = np.arange(len(self.tokens)) - np.repeat(self.starts[:-1], lengths) < length
        starts = np.concatenate([[0], np.minimum(lengths, length).cumsum()])
        steps = self.tokens[kept], self.targets[kept], starts, self.rows[kept]
        return Log(self.events, self.labels, *steps)


def read_log(
    file: Path, events: str | None = None, labels: str | None = None, case: str | None = None
) -> Log:
    """Read a log from JSON lines or CSV, plain or compressed by gzip.

    With a column of case identifiers, a row is an event; rows with the same identifier are a trace.
    Without one, a row is a trace: its events are a JSON list, or words of a text. A trace has as
    many labels as events, or a single label after its last event. In JSON lines, each row may have
    another one of ``LABEL_COLUMNS``. An event without a label has an empty cell, or null or NaN in
    JSON lines. Blanks in names become ``_``. Capitals and blanks in names of columns
    do not matter.

    Args:
        file: path that ends with .jsonl, .ndjson, .json or .csv, and maybe .gz.
        events: column of events; None means the first of ``EVENT_COLUMNS`` that exists.
        labels: column of labels; None means the first of ``LABEL_COLUMNS`` that exists.
        case: column of case identifiers; None means the first of ``CASE_COLUMNS`` that exists, or
            that a row is a trace, as is every row with a list of events.

    Raises:
        RequestError: if the file cannot be read or is not a log. The message names the row or
            the column.
    """
    rows = _rows_of(file)
    read = []
    # The first rows of JSON lines may lack labels.
    for each in rows:
        read.append(each)
        is_found = _found(LABEL_COLUMNS if labels is None else [labels], each[1]) is not None
        if is_found or _kind_of(file) == ".csv":
            break
    if not read:
        raise RequestError(f"{file} must have rows, got none")
    first, last = read[0][1], read[-1][1]
    of_events = _column(file, "events", events, EVENT_COLUMNS, first)
    of_labels = _column(file, "labels", labels, LABEL_COLUMNS, last)
    # A row with a list of events is a trace.
    is_trace = isinstance(first.get(of_events), list)
    has_cases = case is not None or (not is_trace and _found(CASE_COLUMNS, first) is not None)
    of_cases = _column(file, "case", case, CASE_COLUMNS, first) if has_cases else None
    # Of each event: its trace, its name, its label, and its row.
    steps: list[tuple[object, object, object, int]] = []
    for number, row in itertools.chain(read, rows):
        if of_events not in row:
            raise _refused(file, number, of_events, "be in every row", "none")
        others = _found(LABEL_COLUMNS, row) if labels is None and of_labels not in row else None
        column = others or of_labels
        happened, given = row[of_events], row.get(column)
        if of_cases is not None:
            steps.append((row.get(of_cases), happened, given, number))
            continue
        names = happened.split() if isinstance(happened, str) else happened
        if not isinstance(names, list) or not names:
            raise _refused(file, number, of_events, "hold at least one event", repr(happened))
        # Beside a list of events, a text is one label, unless its column is that of several.
        if isinstance(given, str) and (isinstance(happened, str) or _found(_SEVERAL, {column: 0})):
            given = given.split() or None
        answers = given if isinstance(given, list) else [given]
        if len(answers) == 1:
            answers = [None] * (len(names) - 1) + answers
        if len(answers) != len(names):
            condition = f"hold one label or one for each of {len(names)} events"
            raise _refused(file, number, column, condition, str(len(answers)))
        steps += zip([number] * len(names), names, answers, [number] * len(names), strict=True)
    return _numbered(file, steps, of_events, of_labels, of_cases)


def _numbered(
    file: Path,
    steps: list[tuple[object, object, object, int]],
    of_events: str,
    of_labels: str,
    of_cases: str | None,
) -> Log:
    """Number the traces, events and labels of steps, and check that there are enough of each."""
    cases, events, labels, rows = zip(*steps, strict=True)
    names, tokens = _numbers(file, rows, of_events, events)
    classes, targets = _numbers(file, rows, of_labels, labels)
    if "" in names:
        row = rows[int(np.argmax(tokens == names.index("")))]
        raise _refused(file, row, of_events, "name an event", "none")
    if "" in classes:
        # An empty cell is no label.
        empty = classes.index("")
        targets = np.where(targets == empty, IGNORED, targets - (targets > empty))
        classes = classes[:empty] + classes[empty + 1 :]
    for column, known in ((of_events, names), (of_labels, classes)):
        if len(known) > _MOST_NAMES:
            raise RequestError(
                f"{file}: column {column!r} must have at most {_MOST_NAMES:,} distinct values, got "
                f"{len(known):,}; numbers and times are no names"
            )
    if len(classes) < 2:
        got = f"only {classes[0]!r}" if classes else "none"
        raise RequestError(
            f"{file}: column {of_labels!r} must have at least two different labels, got {got}"
        )
    known, traces = _numbers(file, rows, of_cases or "row", cases, named=False)
    if "" in known:
        row = rows[int(np.argmax(traces == known.index("")))]
        raise _refused(file, row, str(of_cases), "name a case", "none")
    lengths, scored = np.bincount(traces), np.bincount(traces, targets != IGNORED)
    advice = "; if a row is an event, name the column of cases by --case"
    if of_cases:
        advice = f"; column {of_cases!r} is read as that of cases"
    if (count := np.count_nonzero(scored)) < _LEAST_TRACES:
        raise RequestError(
            f"{file} must have at least {_LEAST_TRACES} traces with labels, got {count}{advice}"
        )
    if lengths.max() < 2:
        raise RequestError(f"{file} must have traces of two events, got only single events{advice}")
    # The rows of a case may stand between those of others.
    order = np.argsort(traces, kind="stable")
    starts = np.concatenate([[0], lengths.cumsum()])
    ordered = tokens[order], targets[order], starts, np.array(rows)[order]
    return Log(names, classes, *ordered)


def _numbers(
    file: Path, rows: Sequence[int], column: str, values: Sequence[object], *, named: bool = True
) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct texts in a column by first appearance, and the number of each value.

    Texts that are ``named`` are names of events or labels.
    """
    kinds = {type(value) for value in values}
    if unnamed := kinds - {str, int, float, bool, type(None)}:
        place = next(place for place, value in enumerate(values) if type(value) in unnamed)
        raise _refused(file, rows[place], column, "hold text or numbers", repr(values[place]))
    texts = [_text(value) for value in values]
    # Blanks separate names in files of properties.
    names = {text: "_".join(text.split()) if named else text for text in dict.fromkeys(texts)}
    for text, name in names.items():
        if named and _UNFIT.search(name):
            row = rows[texts.index(text)]
            raise _refused(file, row, column, "hold names without control characters", repr(text))
        if named and name in names and name != text.strip():
            row = rows[texts.index(text)]
            condition = f"differ from {name!r} by more than blanks"
            raise _refused(file, row, column, condition, repr(text))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    by_text = {text: numbers[name] for text, name in names.items()}
    return tuple(numbers), np.array([by_text[text] for text in texts], np.int64)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        # Missing values turn whole numbers of a column into floats.
        value = int(value) if value.is_integer() else value
    return "" if value is None else str(value).lower()


def _kind_of(file: Path) -> str:
    """Return the ending of a file without that of its compression."""
    return (file.with_suffix("") if file.suffix.lower() == ".gz" else file).suffix.lower()


def _rows_of(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the rows of a file with their numbers from 1."""
    kind = _kind_of(file)
    if kind not in (*_JSON, ".csv"):
        kinds = ", ".join((*_JSON, ".csv"))
        raise RequestError(f"traces must be a file that ends with {kinds} or .gz, got {file}")
    try:
        if file.exists() and not file.is_file():
            raise OSError("not a regular file")
        opened = gzip.open if file.suffix.lower() == ".gz" else open
        with opened(file, "rt", encoding="utf-8-sig", newline="") as lines:
            if kind == ".csv":
                yield from csv_rows(file, lines, skipinitialspace=True)
                return
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _json_row(file, number, line)
    except (OSError, EOFError, zlib.error, csv.Error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"traces must be a readable file, got {file}: {reason}") from error


def _json_row(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{file}, row {number} must be JSON on one line, got: {error}"
        ) from error
    if not isinstance(row, dict):
        got = f"{line.strip()[:80]!r}"
        raise RequestError(f"{file}, row {number} must be a JSON object on one line, got {got}")
    return row


def _column(
    file: Path, option: str, asked: str | None, usual: Sequence[str], row: dict[str, Any]
) -> str:
    if (found := _found(usual if asked is None else [asked], row)) is not None:
        return found
    columns = ", ".join(map(str, row))
    if asked is not None:
        advice = suggestion(asked, [str(column) for column in row])
        raise RequestError(
            f"{option} must be a column of {file} ({columns}), got {asked!r}{advice}"
        )
    is_alone = len(row) == 1 and any(character in columns for character in ";\t|")
    advice = "commas separate columns" if is_alone else f"name yours by --{option}"
    raise RequestError(
        f"{file} must have a column of {option} ({', '.join(usual)}), got {columns}; {advice}"
    )


def _found(names: Sequence[str], row: dict[str, Any]) -> str | None:
    """Return the first of the names that is a column, whose name may have blanks and capitals."""
    columns = {"_".join(column.lower().split()): column for column in row}
    columns |= {column: column for column in row}
    wanted = (name for each in names for name in (each, "_".join(each.lower().split())))
    return next((columns[name] for name in wanted if name in columns), None)


def _refused(file: Path, row: int, column: str, condition: str, got: str) -> RequestError:
    got = got if len(got) < 80 else f"{got[:80]}…"
    return RequestError(f"{file}, row {row}: column {column!r} must {condition}, got {got}")
