"""The results store: a file with one line of JSON for every run that has ended."""

import hashlib
import json
import math
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict

from filelock import FileLock

from statemix import files, provenance
from statemix.experiments.results import environment
from statemix.experiments.runner import Ended
from statemix.plain import to_plain
from statemix.settings import RequestError
from statemix.training import RunConfig, Scores, load_outcome
from statemix.training.config import SCHEMA

HeadScores = dict[str, dict[str, float | None]]
"""Head -> name of a score -> its value; None for a loss that is not finite."""


class Row(TypedDict):
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
    # Scores with the last weights by test length (as text), with the weights that are best on the
    # test set, and with those that are best on the validation set; and the validation scores of
    # the latter.
    test: dict[str, HeadScores]
    best_test: HeadScores
    test_at_best_validation: HeadScores
    best_validation: HeadScores
    num_steps: int | None
    num_parameters: int | None
    time_s: float | None
    ended_utc: str
    command: str
    # Commit, versions and machine.
    environment: dict[str, Any]


def key(config: RunConfig) -> str:
    """Return the name of a run in the store: a hash of its request.

    As for folders of runs, the request is what differs from the defaults, so a new option changes
    no key.
    """
    request = {"schema": SCHEMA, "asked": config.asked()}
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class Store:
    """Rows of runs in a file that many processes may append to.

    Every row is one line of JSON. A row is written whole or not at all: writers take turns, and the
    remains of a writer that was killed are removed by the next one. Other programs read the file
    without this library, for instance ``polars.read_ndjson(path)``.

    Args:
        path: the file. It is made by the first row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, Row]:
        """Return the rows by key. Of several rows, a finished one counts, then the last.

        Raises:
            RequestError: if the file is not a results store.
        """
        if not self.path.exists():
            return {}
        found: dict[str, Row] = {}
        *lines, _ = self.path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, start=1):
            row = self._row(number, line)
            if row["status"] == "done" or found.get(row["key"], row)["status"] != "done":
                found[row["key"]] = row
        return found

    def _row(self, number: int, line: str) -> Row:
        try:
            row: Row = json.loads(line)
            if isinstance(row["key"], str) and isinstance(row["status"], str):
                return row
            reason = "a row without key and status"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
        raise RequestError(f"{self.path}:{number} must be a row of a results store, got {reason}")

    def append(self, row: Row) -> None:
        """Append a row.

        Raises:
            OSError: if the file cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            self._remove_torn_line()
            files.append(self.path, json.dumps(row, allow_nan=False) + "\n")

    def _remove_torn_line(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            # As a rule only the last byte is read: a store may be large.
            file.seek(max(self.path.stat().st_size - 1, 0))
            if file.read() in (b"", b"\n"):
                return
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def row_of(ended: Ended) -> Row:
    """Return the row of a run that is done, has diverged or has failed.

    Raises:
        RequestError: if the files of a finished run are damaged.
    """
    config, status = ended.job.config, ended.status
    assert status != "interrupted"
    row: Row = {
        "key": key(config),
        "schema": SCHEMA,
        "asked": config.asked(),
        "layers": [to_plain(layer) for layer in config.model.layers],
        "task": to_plain(config.task),
        "seed": config.seed,
        "status": status,
        "message": ended.message,
        "test": {},
        "best_test": {},
        "test_at_best_validation": {},
        "best_validation": {},
        "num_steps": None,
        "num_parameters": None,
        "time_s": None,
        "ended_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "environment": environment([ended.job]) or provenance.describe(),
    }
    if status != "done":
        return row
    outcome = load_outcome(ended.job.folder)
    length = outcome.config.build_task().length
    row["test"] = {str(at): _plain(heads) for at, heads in outcome.last.test.items()}
    row["best_test"] = _plain(outcome.best_test.test[length])
    row["test_at_best_validation"] = _plain(outcome.test_at_best_validation.test[length])
    row["best_validation"] = _plain(outcome.test_at_best_validation.validation)
    row["num_steps"] = outcome.last.step
    row["num_parameters"], row["time_s"] = outcome.num_parameters, outcome.time_s
    return row


def _plain(heads: dict[str, Scores]) -> HeadScores:
    return {
        head: {
            name: value if math.isfinite(value) else None for name, value in asdict(scores).items()
        }
        for head, scores in heads.items()
    }


def merged(paths: Iterable[Path]) -> dict[str, Row]:
    """Return the rows of several stores by key; finished rows count before others."""
    found: dict[str, Row] = {}
    for path in paths:
        for name, row in Store(path).rows().items():
            if name not in found or found[name]["status"] != "done":
                found[name] = row
    return found
