"""The folder of a run: its files, its lock, its status, and reading it back.

A run's folder holds ``config.json`` (schema, request, and the whole configuration),
``environment.json``, ``metrics.jsonl``, ``status.json``, ``checkpoints/`` while the run is
unfinished, and weights and ``summary.json`` when it is done.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from statemix.errors import ABSENT, RequestError
from statemix.files import naming
from statemix.training.checkpoint import tensor_bytes, write_file
from statemix.training.plain import difference

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
STATUS = "status.json"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
_LOCK = ".lock"
# Files that a run may leave if it is killed before its configuration is whole.
_BEGUN = (_LOCK, ENVIRONMENT, f"{ENVIRONMENT}.tmp", f"{CONFIG}.tmp", STATUS, f"{STATUS}.tmp")

Ending = Literal["running", "done", "diverged", "failed", "interrupted"]
"""Status of a run. A "running" run without a process was interrupted."""


class FolderInUseError(RequestError):
    """Another process has locked the folder: it may finish the run, or leave it to others."""


@dataclass(frozen=True)
class StoredConfig:
    """The configuration of a run as it is stored.

    Attributes:
        schema: version of the meaning of the fields.
        asked: the request, which identifies the run: fields that differ from their defaults.
        resolved: every field, with the choices of the machine or the task filled in.
    """

    schema: int
    asked: dict[str, Any]
    resolved: dict[str, Any]


@dataclass(frozen=True)
class Status:
    """Status of a run, and a message such as the error."""

    status: Ending
    message: str = ""


def stored_config(folder: Path, schema: int) -> StoredConfig | None:
    """Read the configuration of the run in a folder; None if there is no run.

    Raises:
        RequestError: if the file is damaged or has another schema.
    """
    path = folder / CONFIG
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise RequestError(f"{path} must hold a run's configuration, got: {error}") from error
    if not isinstance(stored, dict):
        kind = type(stored).__name__
        raise RequestError(f"{path} must hold a run's configuration, got a {kind}")
    found = stored.get("schema")
    if type(found) is not int or found != schema:
        version = "an older development version" if found is None else f"schema {found}"
        raise RequestError(
            f"{path} must have schema {schema}, got {version}, which can no longer be read; train "
            f"again in another folder, or use the commit named in {ENVIRONMENT}"
        )
    if not all(isinstance(stored.get(name), dict) for name in ("asked", "resolved")):
        raise RequestError(f"{path} must hold the tables 'asked' and 'resolved', got other data")
    return StoredConfig(found, stored["asked"], stored["resolved"])


def settled(folder: Path, config: StoredConfig) -> StoredConfig:
    """Return the configuration with which a run in this folder starts or resumes.

    The request identifies the run. A stored run resumes with its own resolved configuration, even
    if a default, the device or the number of threads has changed since.

    Raises:
        RequestError: if the folder holds another run, something else, or a damaged run.
    """
    with _explained(folder):
        stored = stored_config(folder, config.schema)
    if stored is None:
        with _explained(folder):
            found = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
        strangers = [name for name in found if name not in _BEGUN]
        if strangers:
            raise RequestError(
                f"folder must be empty or hold a run, got {folder} with {strangers[0]!r}"
            )
        return config
    found_difference = difference(config.asked, stored.asked)
    if found_difference is not None:
        name, ours, theirs = found_difference
        raise RequestError(
            f"folder must hold a run of the same configuration, got {folder} with "
            f"{name}={_shown(theirs, name, stored)}, not {_shown(ours, name, config)}; "
            "choose another folder"
        )
    return stored


def _shown(value: Any, name: str, config: StoredConfig) -> str:
    """Return the requested value as text, or the resolved default."""
    if value is not ABSENT:
        return repr(value)
    found: Any = config.resolved
    for part in name.split("."):
        if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            return "its default"
    return f"{found!r} by default"


@contextlib.contextmanager
def claimed(folder: Path, config: StoredConfig, environment: Mapping[str, Any]) -> Iterator[None]:
    """Lock a run's folder for writing; make it if absent.

    Args:
        folder: the run's folder.
        config: configuration that :func:`settled` returned for the folder.
        environment: software and machine of the run; stored when the run begins.

    Raises:
        FolderInUseError: if another process has locked the folder.
        RequestError: if the folder cannot be written or locked, or now holds another run.
    """
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise FolderInUseError(
            f"folder must not be in use, got {folder}, which another process has locked"
        ) from error
    except PermissionError as error:
        raise RequestError(f"folder must be writable, got {folder}: {error.strerror}") from error
    except (OSError, NotImplementedError) as error:
        raise RequestError(
            f"folder must be on a file system that can lock files, got {folder}: {error}"
        ) from error
    try:
        settled(folder, config)
        if not (folder / CONFIG).exists():
            write_file(folder / ENVIRONMENT, _json(environment))
            write_file(folder / CONFIG, _json(asdict(config)))
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestError(f"folder must be writable, got {folder}: {error.strerror}") from error


def write_status(folder: Path, status: Ending, message: str = "") -> None:
    """Write the status of the run."""
    write_file(folder / STATUS, _json(asdict(Status(status, message))))


@contextlib.contextmanager
def noted(folder: Path) -> Iterator[None]:
    """Record in a run's folder that the run is running, and then how it ends."""
    write_status(folder, "running")
    try:
        yield
    except BaseException as error:
        ending: Ending = "failed"
        if isinstance(error, FloatingPointError):
            ending = "diverged"
        elif isinstance(error, KeyboardInterrupt):
            ending = "interrupted"
        # If the disk is full, writing the status must not hide the first error.
        with contextlib.suppress(OSError):
            write_status(folder, ending, str(error) or type(error).__name__)
        raise
    write_status(folder, "done")


def read_status(folder: Path) -> Status | None:
    """Read the status of the run in a folder; None if there is no run.

    A killed run and a run with a damaged status file count as interrupted: they can be resumed.
    """
    if (folder / SUMMARY).exists():
        return Status("done")
    if not (folder / CONFIG).exists():
        return None
    try:
        stored = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        status = Status(stored["status"], str(stored["message"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Status("interrupted")
    if status.status not in get_args(Ending) or status.status == "done":
        return Status("interrupted")
    if status.status == "running" and not _in_use(folder):
        return Status("interrupted", "its process died")
    return status


def _in_use(folder: Path) -> bool:
    lock = FileLock(folder / _LOCK)
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        return False


def save_weights(folder: Path, file: str, tensors: Mapping[str, Tensor]) -> str:
    """Write a file of weights and return its SHA-256, for the summary."""
    content = tensor_bytes(tensors)
    write_file(folder / file, content)
    return hashlib.sha256(content).hexdigest()


def load_weights(
    folder: Path, file: str, sha256: str, stated_in: str = SUMMARY
) -> dict[str, Tensor]:
    """Read a file of weights and check its SHA-256, which another file states.

    Raises:
        RequestError: if the file is missing or damaged.
    """
    path = folder / file
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError(f"its SHA-256 is not the one in {stated_in}")
        return load_tensors(content)
    except (OSError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise RequestError(f"{path} must hold the run's weights, got: {reason}") from error


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the summary, which marks the run as done."""
    write_file(folder / SUMMARY, _json(summary))


def missing_run(folder: Path) -> RequestError:
    """Return the error of a folder that holds no run."""
    if not folder.exists():
        return RequestError(f"folder must exist, got {folder}")
    return RequestError(f"folder must hold a run, got {folder} without {CONFIG}")


def read_summary(folder: Path) -> dict[str, Any]:
    """Read the summary of a finished run.

    Raises:
        RequestError: if the folder holds no run, an unfinished one, or a damaged summary.
    """
    if not (folder / CONFIG).is_file():
        raise missing_run(folder)
    path = folder / SUMMARY
    if not path.is_file():
        raise RequestError(
            f"folder must hold a finished run, got {folder} without {SUMMARY}; "
            "train it again into the same folder to resume it"
        )
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"{path} must hold a run's summary, got: {error}") from error
    if not isinstance(summary, dict):
        raise RequestError(f"{path} must hold a run's summary, got a {type(summary).__name__}")
    return summary


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the rows that a run has written so far."""
    with (folder / METRICS).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class MetricsFile:
    """Writer of a run's rows, one JSON object per line."""

    def __init__(self, path: Path, size: int, report: Callable[[str], None]) -> None:
        """Open for appending after the first ``size`` bytes; later rows are cut off."""
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            report(
                f"{path.name} has lost rows: {found} bytes are left of {size}; "
                "training continues without them"
            )
        if found > size:
            report(f"{path.name}: rows after the checkpoint will be written again")
        self._path = path
        self._file = path.open("ab")
        self._file.truncate(_whole_lines(path, min(found, size)))
        # Truncating does not move the position from the old end of the file.
        self._file.seek(0, os.SEEK_END)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row, which then survives the end of the process."""
        with naming(self._path):
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()

    def sync(self) -> int:
        """Sync all rows to the disk and return their size in bytes."""
        with naming(self._path):
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        with naming(self._path):
            # Closing retries writes that failed before.
            self._file.close()


def _whole_lines(path: Path, size: int) -> int:
    """Return the size in bytes of the whole lines among the first ``size`` bytes."""
    content = path.read_bytes()[:size]
    return content.rfind(b"\n") + 1


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
