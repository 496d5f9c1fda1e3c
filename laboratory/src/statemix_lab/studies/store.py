"""The results store: a file with one line of JSON for every run that has ended."""

import hashlib
import json
import os
import reprlib
import shlex
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from statemix import files, provenance
from statemix.errors import RequestError
from statemix.sweeps.runner import Ended, Runnable, StudyRun
from statemix.training import RunConfig, load_outcome
from statemix.training.config import SCHEMA
from statemix.training.folder import read_environment
from statemix.training.settings import finite, to_plain

PlainHeads = dict[str, dict[str, Any]]
"""Head to its scores, as in :class:`statemix.training.Scores`; a loss may be None in JSON."""

StoredRow = dict[str, Any]
"""One run that has ended. Without a result, scores are empty and numbers None.

The key identifies the request, which is "asked" under a "schema". "test" maps lengths in tokens, as
text, to the heads with the last weights. "best_test" has the heads with the weights that are best
on the test set, as in the papers, "test_at_best_validation" those of the best validation. Rows of a
language model have "language" instead of accuracies; older rows have no "cpu_s" and "attempts".
"""


def key(config: Runnable) -> str:
    """Hash what differs from the defaults, so that a new option changes no key."""
    request = {"schema": SCHEMA, "asked": config.asked()}
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


# Every row that this library writes begins with it.
_BEGINNING = b'{"key": "'


class Store:
    """Rows of runs in a file of JSON lines that many processes may append to.

    A row is written whole or not at all: writers take turns, and the beginning of a row that a
    killed writer left is removed by the next one. Only :meth:`remove` removes anything else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # What has been read of the file: its identity, bytes, lines, and rows.
        self._file: tuple[int, int] | None = None
        self._size, self._number = 0, 0
        self._rows: dict[str, StoredRow] = {}

    def rows(self) -> dict[str, StoredRow]:
        """Return the rows by key. Of several rows the first finished one counts, else the last."""
        if not os.path.exists(self.path):
            return {}
        # Devices and pipes may never end.
        if not self.path.is_file():
            raise RequestError(f"a results store must be a regular file, got {str(self.path)!r}")
        status = self.path.stat()
        file = status.st_dev, status.st_ino
        if file != self._file or status.st_size < self._size:
            self._file, self._size, self._number, self._rows = file, 0, 0, {}
        lines, last = self._lines(self._size)
        for line in lines:
            self._add(self._rows, self._number + 1, line)
            self._size, self._number = self._size + len(line) + 1, self._number + 1
        rows = dict(self._rows)
        if last is not None:
            # Many editors leave no newline at the end.
            self._add(rows, self._number + 1, last)
        return rows

    def _add(self, rows: dict[str, StoredRow], number: int, line: bytes) -> None:
        if line.strip():
            row = self._row(number, line)
            if rows.get(row["key"], {"status": ""})["status"] != "done":
                rows[row["key"]] = row

    def _row(self, number: int, line: bytes) -> StoredRow:
        try:
            row: StoredRow = json.loads(line.decode("utf-8-sig"))
            reason = _fault(row)
        except (ValueError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
        if reason:
            place = f"{self.path}:{number}"
            raise RequestError(f"{place} must be a row of a results store, got {reason}")
        return row

    def append(self, row: StoredRow) -> None:
        """Append a row."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            self._remove_torn_line()
            files.append(self.path, json.dumps(row, allow_nan=False) + "\n")

    def remove(self, keys: Collection[str]) -> None:
        """Remove the rows of some runs."""
        if not self.path.exists():
            return
        with FileLock(f"{self.path}.lock"):
            kept = [row for key, row in self.rows().items() if key not in keys]
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in kept)
            files.write_file(self.path, text.encode())

    def _lines(self, begin: int = 0) -> tuple[list[bytes], bytes | None]:
        """Return the lines from a byte on, and a last one without an end, unless a kill left it."""
        with self.path.open("rb") as file:
            file.seek(begin)
            *lines, last = file.read().split(b"\n")
        if last.strip():
            try:
                json.loads(last)
            except (ValueError, RecursionError):
                if last.startswith(_BEGINNING[: len(last)]):
                    return lines, None
            self._row((self._number if begin else 0) + len(lines) + 1, last)
        return lines, last

    def _remove_torn_line(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            # As a rule only the last byte is read: a store may be large.
            file.seek(max(self.path.stat().st_size - 1, 0))
            if file.read() in (b"", b"\n"):
                return
            lines, last = self._lines()
            if last is None:
                file.truncate(sum(len(line) + 1 for line in lines))


def _fault(row: Any) -> str:
    """Return what keeps a row from being read by this library; empty if nothing does."""
    if not isinstance(row, dict):
        return reprlib.repr(row)
    is_right: dict[str, Callable[[Any], bool]] = {
        "key": lambda name: isinstance(name, str),
        "seed": lambda seed: type(seed) is int,
        "environment": lambda environment: isinstance(environment, dict),
        "time_s": lambda time_s: time_s is None or _is_number(time_s),
        "cpu_s": lambda cpu_s: cpu_s is None or _is_number(cpu_s),
        "status": lambda status: status in ("done", "diverged", "failed"),
    }
    if "language" in row:
        is_right["language"] = lambda found: (
            isinstance(found, dict) and isinstance(found.get("scores"), dict)
        )
    elif row.get("status") == "done":
        names = ("best_test", "test_at_best_validation", "best_validation")
        is_right |= dict.fromkeys(names, _are_heads)
    for name, test in is_right.items():
        if not test(row.get(name)):
            return f"{name}={reprlib.repr(row.get(name))}"
    return ""


def _is_number(value: Any) -> bool:
    # An integer may be too large for a float.
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _are_heads(heads: Any) -> bool:
    """Return whether each head has its accuracies; there must be a head."""
    names = ("token_accuracy", "mad_accuracy")
    return (
        bool(heads)
        and isinstance(heads, dict)
        and all(
            isinstance(scores, dict)
            and all(_is_number(scores.get(name)) and 0 <= scores[name] <= 1 for name in names)
            for scores in heads.values()
        )
    )


def row_of(ended: Ended) -> StoredRow:
    """Return the row of a run that is done, has diverged or has failed."""
    config, status, folder = ended.job.config, ended.status, ended.job.folder
    assert status != "interrupted"
    if isinstance(config, StudyRun):
        described, results = config.described(), config.results
    else:
        layers = [to_plain(layer) for layer in config.model.layers]
        described = {"layers": layers, "task": to_plain(config.task)}
        results = partial(_results, config)
    row: StoredRow = {
        "key": key(config),
        "schema": SCHEMA,
        "asked": config.asked(),
        **described,
        "seed": config.seed,
        "status": status,
        "message": ended.message,
        "test": {},
        "best_test": {},
        "test_at_best_validation": {},
        "num_parameters": None,
        "time_s": None,
        "best_validation": {},
        "num_steps": None,
        "attempts": [],
        "ended_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        # Absent if the run has not begun.
        "environment": read_environment(folder) or provenance.describe(),
    }
    return row | results(folder) if status == "done" else row


def _results(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Return what the row of a finished run of ``statemix train`` holds further."""
    outcome = load_outcome(folder)
    length, best = config.build_task().length, outcome.test_at_best_validation
    return {
        "test": {str(at): finite(to_plain(heads)) for at, heads in outcome.last.test.items()},
        "best_test": finite(to_plain(outcome.best_test.test[length])),
        "test_at_best_validation": finite(to_plain(best.test[length])),
        "num_parameters": outcome.num_parameters,
        "time_s": outcome.time_s,
        "cpu_s": outcome.cpu_s,
        "best_validation": finite(to_plain(best.validation)),
        "num_steps": outcome.last.step,
        "attempts": [asdict(attempt) for attempt in outcome.attempts],
    }


def merged(paths: Iterable[Path]) -> dict[str, StoredRow]:
    """Return the rows of several stores by key. Rows count as in :meth:`Store.rows`."""
    rows: dict[str, StoredRow] = {}
    for path in paths:
        for name, row in Store(path).rows().items():
            if name not in rows or rows[name]["status"] != "done":
                rows[name] = row
    return rows
