"""The folder of a run: its files, its lock, its status, and reading it back.

A run's folder holds ``config.json`` (schema, request, and the whole configuration),
``environment.json``, ``metrics.jsonl``, ``status.json``, ``checkpoints/`` while the run is
unfinished, and weights, the optimiser's and other state, and ``summary.json`` when it is done.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor

from statemix.errors import ABSENT, RequestError, SettingError
from statemix.files import read_json, sha256_of, write_file
from statemix.training.checkpoint import load_tensors, save_checkpoint, tensor_bytes
from statemix.training.settings import differences, finite

try:
    import fcntl
except ImportError:  # as on Windows
    fcntl = None  # type: ignore[assignment]

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
STATUS = "status.json"
STATE = "state.json"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
LOCK = ".statemix.lock"
# Settings in which a longer run may differ from the run that it extends.
_LENGTHS = (("schedules", "epochs"), ("schedules", "num_steps"), ("search", "attempts"))
# Seconds to wait for readers of the status, which hold the lock for an instant.
_PATIENCE_S = 0.3
# The folder may be gone so often between its making and its lock.
_TRIES = 100
WRITING_S = 10.0
"""Seconds to wait for another process that writes results."""
# Files that a run may leave if it is killed before its configuration is whole.
_BEGUN = (LOCK, ENVIRONMENT, f"{ENVIRONMENT}.tmp", f"{CONFIG}.tmp", STATUS, f"{STATUS}.tmp")

Ending = Literal["running", "done", "diverged", "failed", "interrupted"]
"""Status of a run. A "running" run without a process was interrupted."""


class FolderInUseError(RequestError):
    """Another process has locked the folder: it may finish the run, or leave it to others."""


@dataclass(frozen=True)
class StoredConfig:
    """The configuration of a run as it is stored, with the version of its meaning."""

    schema: int
    asked: dict[str, Any]
    """The request, which identifies the run: fields that differ from their defaults."""
    resolved: dict[str, Any]
    """Every field, with the choices of the machine or the task filled in."""


@dataclass(frozen=True)
class Status:
    """Status of a run, and a message such as the error."""

    status: Ending
    message: str = ""


def stored_config(folder: Path, schema: int) -> StoredConfig | None:
    """Read the configuration of the run in a folder; None if there is no run."""
    path = folder / CONFIG
    if not path.exists():
        return None
    stored = read_json(path, "a run's configuration")
    if "model_type" in stored:
        raise RequestError(f"{path} must hold a run's configuration, got that of a model alone")
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


def check_imported(path: Path, names: Any) -> None:
    """Refuse modules that the user has not imported: the code of a file may be a stranger's."""
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name not in sys.modules:
            raise RequestError(
                f"{path} names the module {name!r}, which is imported only if you name it, too: "
                f"add --imports {name} if you trust its code (in Python, import it first)"
            )


def config_to_resume(folder: Path, config: StoredConfig, *, extend: bool = False) -> StoredConfig:
    """Return the configuration with which a run in this folder starts or resumes.

    A stored run of the same request resumes with its own resolved configuration, even if a default,
    the device or the number of threads has changed since. With ``extend``, the request may be
    longer; the stored configuration is then returned with that length.
    """
    try:
        stored = stored_config(folder, config.schema)
        is_new = stored is None and folder.exists()
        names = sorted(entry.name for entry in folder.iterdir()) if is_new else []
    except OSError as error:
        raise RequestError(f"folder must be writable, got {folder}: {error.strerror}") from error
    if stored is None:
        if others := [name for name in names if name not in _BEGUN]:
            text = f"folder must be empty or hold a run, got {folder} with {others[0]!r}"
            raise RequestError(text)
        return config
    if extend:
        stored = _with_length(stored, config)
    for name, *values in differences(config.asked, stored.asked):
        ours, theirs = ("its default" if value is ABSENT else repr(value) for value in values)
        advice = ""
        with contextlib.suppress(SettingError):
            if config.asked == _with_length(stored, config).asked:
                advice = "extend the run or "
        raise RequestError(
            f"folder must hold a run of the same configuration, got {folder} with "
            f"{name}={theirs}, not {ours}; {advice}choose another folder"
        )
    return stored


def _with_length(stored: StoredConfig, longer: StoredConfig) -> StoredConfig:
    """Return a stored configuration with the length of a longer one."""
    first = stored.resolved.get("schedules", {}).get("first_length")
    if first is not None:
        whole = "must be absent to extend a run, whose sequences are no longer cut"
        raise SettingError("schedules.first_length", whole, first)
    changed = [stored.asked, stored.resolved]
    searched = stored.resolved.get("search", {}).get("attempts") is not None
    for group, name in _LENGTHS:
        before, after = (config.resolved.get(group, {}).get(name) for config in (stored, longer))
        if before == after:
            continue
        condition = None
        if before is None:
            condition = "must be absent to extend a run without it"
        elif searched and group == "schedules":
            condition = f"must stay {before} to extend a run with attempts"
        elif after is None or after < before:
            condition = f"must be at least {before} to extend"
        if condition is not None:
            raise SettingError(f"{group}.{name}", condition, after)
        changed = [{**part, group: {**part.get(group, {}), name: after}} for part in changed]
    return StoredConfig(stored.schema, *changed)


@contextlib.contextmanager
def lock_folder(
    folder: Path, name: str = "folder", *, patience_s: float = _PATIENCE_S
) -> Iterator[None]:
    """Lock a folder that a command writes by its option ``name``; make it if absent.

    Nothing of the lock stays, and a folder that was made goes again if nothing was put into it. If
    another process is still there after ``patience_s`` seconds, FolderInUseError is raised.
    """
    lock = FileLock(folder / LOCK)
    try:
        for tries_left in reversed(range(_TRIES)):
            made = [path for path in (folder, *folder.parents) if not path.exists()]
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=patience_s, poll_interval=0.01)
                break
            except (FileNotFoundError, FileExistsError):
                # The process that has made the folder removes it again: before the lock is made,
                # or after mkdir has found it and before pathlib looks whether it is a folder.
                if not tries_left:
                    raise
    except Timeout as error:
        raise FolderInUseError(f"another process is using {folder}") from error
    except (OSError, NotImplementedError) as error:
        condition = "on a file system that can lock files"
        if isinstance(error, PermissionError) or not os.path.isdir(folder):
            condition = "writable"
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{name} must be {condition}, got {folder}: {reason}") from error
    try:
        yield
    finally:
        # A process that waits for this file sees that it is gone, and locks a new one.
        with contextlib.suppress(OSError):
            (folder / LOCK).unlink()
            for path in made:
                path.rmdir()
        lock.release()


def begin_run(folder: Path, config: StoredConfig, environment: Mapping[str, Any]) -> None:
    """Write a run's configuration and environment if absent; reopen a finished run to extend."""
    stored = stored_config(folder, config.schema)
    if stored is None:
        write_file(folder / ENVIRONMENT, _json(environment))
    else:
        warn_of_changes(folder, environment)
        if stored != config and (folder / SUMMARY).exists():
            summary = read_summary(folder)
            content = "a run's last state to extend it, as finished runs have since 0.1"
            state = read_json(folder / STATE, content)
            digest = sha256_of(folder / STATE)
            if summary.get("state_sha256") != digest:
                raise RequestError(f"{folder / STATE} must hold {content}: its SHA-256 differs")
            tensors = {
                Path(file).stem: load_weights(folder, file, sha256)
                for file, sha256 in summary["weights"].items()
            }
            state["stopped"] = False
            save_checkpoint(folder / CHECKPOINTS, state["trainer"]["step"], tensors, state)
            (folder / SUMMARY).unlink()
    if stored != config:
        write_file(folder / CONFIG, _json(asdict(config)))


def read_environment(folder: Path) -> dict[str, Any]:
    """Return the stored environment without what is damaged."""
    try:
        stored = read_json(folder / ENVIRONMENT, "the environment of a run")
    except RequestError:
        return {}
    tables = ("code", "information", "packages", "backends")
    return {k: v for k, v in stored.items() if k not in tables or isinstance(v, dict)}


def warn_of_changes(folder: Path, environment: Mapping[str, Any]) -> None:
    """Warn if something that decides results, but does not identify a run, differs from its start.

    What a run does not state is not compared, nor, once it is finished, the machine.
    """
    before, finished = read_environment(folder), (folder / SUMMARY).exists()

    def compared(described: Mapping[str, Any]) -> dict[str, Any]:
        stated = {**described.get("packages", {}), **described}
        names = () if finished else ("device", "num_threads", "num_processes", "strategy", "torch")
        backends = {} if finished else described.get("backends", {})
        return {
            **{name: stated[name] for name in names if name in stated},
            **{f"backend {name}": detail for name, detail in backends.items()},
            **described.get("information", {}),
        }

    changed = []
    if before.get("python") == environment.get("python"):
        # Another Python has another byte code.
        then = before.get("code", {})
        changed += [k for k, v in environment.get("code", {}).items() if then.get(k, v) != v]
    now, then = compared(finite(environment)), compared(before)
    changed += [f"{k}={v!r} ({then[k]!r} before)" for k, v in now.items() if then.get(k, v) != v]
    if changed:
        text = (
            "holds a finished run, whose stored results are returned, although these have changed"
            if finished
            else "resumes a run with other results than an undisturbed run, as these have changed"
        )
        warnings.warn(f"{folder} {text}: {', '.join(changed)}", stacklevel=3)


def remove_runs(folders: Iterable[Path]) -> None:
    """Remove folders of runs; none if another process trains one, or one holds something else."""
    folders = [folder for folder in folders if folder.exists()]
    for folder in folders:
        if not (folder / CONFIG).exists():
            config_to_resume(folder, StoredConfig(0, {}, {}))
        elif "asked" not in read_json(folder / CONFIG, "a run's configuration"):
            raise RequestError(f"{folder / CONFIG} must hold a run's configuration, got another")
    with contextlib.ExitStack() as locks:
        for folder in folders:
            locks.enter_context(lock_folder(folder))
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def is_finished(folder: Path, config: StoredConfig) -> bool:
    """Return whether a folder holds the finished run of a configuration."""
    return (folder / SUMMARY).exists() and stored_config(folder, config.schema) == config


def write_status(folder: Path, status: Ending, message: str = "") -> None:
    """Write the status of the run in a folder."""
    write_file(folder / STATUS, _json(asdict(Status(status, message))))


@contextlib.contextmanager
def record_status(folder: Path) -> Iterator[None]:
    """Record in a run's folder that the run is running, and then how it ends."""
    write_status(folder, "running")
    try:
        yield
    except BaseException as error:
        ending: Ending = "diverged" if isinstance(error, FloatingPointError) else "failed"
        if isinstance(error, KeyboardInterrupt):
            ending = "interrupted"
        # If the disk is full, writing the status must not hide the first error.
        with contextlib.suppress(OSError):
            write_status(folder, ending, str(error) or type(error).__name__)
        raise
    write_status(folder, "done")


def read_status(folder: Path) -> Status | None:
    """Read the status of the run in a folder; None if there is no run.

    A run that was killed, or has a damaged status, counts as interrupted: it can be resumed.
    """
    if (folder / SUMMARY).exists():
        return Status("done")
    if not (folder / CONFIG).exists():
        return None
    try:
        stored = read_json(folder / STATUS, "the status of a run")
        status = Status(stored["status"], str(stored["message"]))
    except (RequestError, KeyError):
        return Status("running" if _is_locked(folder) else "interrupted")
    if status.status not in get_args(Ending) or status.status == "done":
        return Status("interrupted")
    if status.status == "running" and not _is_locked(folder):
        return Status("interrupted", "its process died")
    return status


def _is_locked(folder: Path) -> bool:
    """Return whether a process writes the run; where it can, a shared lock shows it."""
    try:
        if fcntl is None:
            with FileLock(folder / LOCK).acquire(timeout=0):
                return False
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, NotImplementedError) as error:
        return isinstance(error, BlockingIOError | Timeout)
    return False


def save_weights(folder: Path, file: str, tensors: Mapping[str, Tensor]) -> str:
    """Write a file of weights and return its SHA-256, for the summary."""
    content = tensor_bytes(tensors)
    write_file(folder / file, content)
    return hashlib.sha256(content).hexdigest()


def load_weights(
    folder: Path, file: str, sha256: str, stated_in: str = SUMMARY
) -> dict[str, Tensor]:
    """Read a file of weights and check its SHA-256, which another file states."""
    path = folder / file
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError(f"its SHA-256 is not the one in {stated_in}")
        return load_tensors(content)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise RequestError(f"{path} must hold the run's weights, got: {reason}") from error


def write_summary(folder: Path, summary: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write the summary, which marks the run as done, and what it takes to extend the run."""
    content = _json(state)
    write_file(folder / STATE, content)
    summary = {**summary, "state_sha256": hashlib.sha256(content).hexdigest()}
    write_file(folder / SUMMARY, _json(summary))


def missing_run(folder: Path) -> RequestError:
    """Return the error of a folder that holds no run."""
    condition = f"hold a run, got {folder} without {CONFIG}"
    return RequestError(f"folder must {condition if folder.exists() else f'exist, got {folder}'}")


def read_summary(folder: Path) -> dict[str, Any]:
    """Read the summary of a finished run."""
    if not (folder / CONFIG).is_file():
        raise missing_run(folder)
    path = folder / SUMMARY
    if not path.is_file():
        text = f"folder must hold a finished run, got {folder} without {SUMMARY}; train it again"
        raise RequestError(f"{text} into the same folder to resume it")
    summary = read_json(path, "a run's summary")
    if not isinstance(summary.get("weights"), dict):
        raise RequestError(f"{path} must hold a run's summary, got none of its weights")
    return summary


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the rows that a run has written so far."""
    with (folder / METRICS).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _json(value: Any) -> bytes:
    # NaN is no JSON.
    return (json.dumps(finite(value), indent=2) + "\n").encode()
