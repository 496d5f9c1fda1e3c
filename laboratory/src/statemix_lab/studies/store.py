"""The results store: a file with one line of JSON for every run that has ended."""

import hashlib
import json
import reprlib
import shlex
import stat
import sys
from collections.abc import Collection, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

from filelock import FileLock

from statemix import files, provenance
from statemix.errors import RequestError
from statemix.sweeps.runner import Ended
from statemix.sweeps.study_runs import Runnable, StudyRun
from statemix.training import RunConfig, load_outcome
from statemix.training.config import SCHEMA
from statemix.training.folder import read_environment
from statemix.training.settings import finite, to_plain


class PlainScores(TypedDict):
    """Scores of one head, as in :class:`statemix.training.Scores`."""

    num_sequences: int
    token_accuracy: float
    mad_accuracy: float
    sequence_accuracy: float
    # None if it is not finite, which JSON has no number for.
    loss: float | None


PlainHeads = dict[str, PlainScores]
"""Head to its scores."""


class StoredRow(TypedDict):
    """One run that has ended. Without a result, scores are empty and numbers None."""

    # Identifies what was asked (see `key`).
    key: str
    schema: int
    asked: dict[str, Any]
    # The main parts of the request once more, for readers: layers with their options, task, seed.
    layers: list[dict[str, Any]]
    task: dict[str, Any]
    seed: int
    status: Literal["done", "diverged", "failed"]
    message: str
    # With the last weights: length in tokens, as text, to head to scores.
    test: dict[str, PlainHeads]
    # At the training length, with the weights that are best there (selected on the test set, as in
    # the papers), and with the weights that are best in validation.
    best_test: PlainHeads
    test_at_best_validation: PlainHeads
    num_parameters: int | None
    time_s: float | None
    # Absent in rows of older versions.
    cpu_s: NotRequired[float | None]
    # Validation scores of the weights that are best there.
    best_validation: PlainHeads
    num_steps: int | None
    # Attempts from new weights (`statemix.training.attempts.Attempt`), empty without a search;
    # absent in rows of versions that could not search.
    attempts: NotRequired[list[dict[str, Any]]]
    # Scores of a language model, which has no accuracies.
    language: NotRequired[dict[str, Any]]
    ended_utc: str
    command: str
    # Commit, versions and machine.
    environment: dict[str, Any]


def key(config: Runnable) -> str:
    """Return the name of a run in the store: a hash of its request.

    As for folders of runs, the request is what differs from the defaults, so a new option changes
    no key.
    """
    request = {"schema": SCHEMA, "asked": config.asked()}
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


# Every row that this library writes begins with it.
_BEGINNING = b'{"key": "'


class Store:
    """Rows of runs in a file that many processes may append to; the first row makes it.

    Every row is one line of JSON. A row is written whole or not at all: writers take turns, and the
    beginning of a row that a killed writer left is removed by the next one. Only :meth:`remove`
    removes anything else. Other programs read the file without this library, for instance
    ``polars.read_ndjson(path, infer_schema_length=None)``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # What has been read of the file: its identity, bytes, lines, and rows.
        self._file: tuple[int, int] | None = None
        self._size, self._number = 0, 0
        self._rows: dict[str, StoredRow] = {}

    def rows(self) -> dict[str, StoredRow]:
        """Return the rows by key. Of several rows, a finished one counts, then the last.

        A later call reads only what has been appended since.
        """
        try:
            status = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            raise self._refused(str(error)) from error
        # Devices and pipes may never end.
        if not stat.S_ISREG(status.st_mode):
            raise self._refused("which is none")
        file = status.st_dev, status.st_ino
        if file != self._file or status.st_size < self._size:
            self._file, self._size, self._number, self._rows = file, 0, 0, {}
        lines, last = self._lines(self._size)
        for line in lines:
            self._add(self._rows, self._number + 1, line)
            self._size, self._number = self._size + len(line) + 1, self._number + 1
        found = dict(self._rows)
        if last is not None:
            # Many editors leave no newline at the end.
            self._add(found, self._number + 1, last)
        return found

    def _add(self, found: dict[str, StoredRow], number: int, line: bytes) -> None:
        if not line.strip():
            return
        row = self._row(number, line)
        if row["status"] == "done" or found.get(row["key"], row)["status"] != "done":
            found[row["key"]] = row

    def _refused(self, reason: str) -> RequestError:
        path = reprlib.repr(str(self.path))
        return RequestError(f"a results store must be a regular file, got {path}, {reason[:80]}")

    def _row(self, number: int, line: bytes) -> StoredRow:
        try:
            row: StoredRow = json.loads(line.decode("utf-8-sig"))
            reason = _fault(row)
        except (ValueError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
        if reason:
            raise RequestError(
                f"{self.path}:{number} must be a row of a results store, got {reason}"
            )
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
        """Return the lines that end, and a last one that does not, unless a killed writer left it.

        Args:
            begin: byte at which a line begins; lines before it are left out.
        """
        with self.path.open("rb") as file:
            file.seek(begin)
            *lines, last = file.read().split(b"\n")
        if not last.strip():
            return lines, last
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
    for name, kind in {"key": str, "seed": int, "environment": dict}.items():
        if type(row.get(name)) is not kind:
            return f"{name}={reprlib.repr(row.get(name))}"
    for name in ("time_s", "cpu_s"):
        if row.get(name) is not None and not _is_number(row[name]):
            return f"{name}={reprlib.repr(row[name])}"
    if row.get("status") not in ("done", "diverged", "failed"):
        return f"status={reprlib.repr(row.get('status'))}"
    names = ("best_test", "test_at_best_validation", "best_validation")
    if "language" in row:
        scores = row["language"]
        is_scored = isinstance(scores, dict) and isinstance(scores.get("scores"), dict)
        return "" if is_scored else f"language={reprlib.repr(scores)}"
    for name in names if row["status"] == "done" else ():
        heads = row.get(name)
        scores = list(heads.values()) if isinstance(heads, dict) else []
        if not scores or not all(map(_is_scores, scores)):
            return f"{name}={reprlib.repr(heads)}"
    return ""


def _is_scores(scores: Any) -> bool:
    return isinstance(scores, dict) and all(
        _is_number(scores.get(name)) and 0 <= scores[name] <= 1
        for name in ("token_accuracy", "mad_accuracy")
    )


def _is_number(value: Any) -> bool:
    # An integer may be too large for a float.
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def row_of(ended: Ended) -> StoredRow:
    """Return the row of a run that is done, has diverged or has failed."""
    config, status, folder = ended.job.config, ended.status, ended.job.folder
    assert status != "interrupted"
    if isinstance(config, StudyRun):
        described = config.described()
    else:
        layers = [to_plain(layer) for layer in config.model.layers]
        described = {"layers": layers, "task": to_plain(config.task)}
    row: StoredRow = {
        "key": key(config),
        "schema": SCHEMA,
        "asked": config.asked(),
        "layers": described["layers"],
        "task": described["task"],
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
    if status == "done":
        if isinstance(config, StudyRun):
            found = config.results(folder)
        else:
            found = _results(config, folder)
        row = cast(StoredRow, {**row, **found})
    return row


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
    """Return the rows of several stores by key; finished rows count before others."""
    found: dict[str, StoredRow] = {}
    for path in paths:
        for name, row in Store(path).rows().items():
            if name not in found or found[name]["status"] != "done":
                found[name] = row
    return found
