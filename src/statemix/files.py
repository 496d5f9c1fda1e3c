"""Files: folders, rows, atomic writes, and errors that name their file."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from statemix.errors import RequestError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to errors of the operating system that lack it.

    A failing ``open`` reports the path; a failing ``write`` or ``fsync``, as on a full disk, does
    not.

    Raises:
        OSError: the error raised inside, of the same subclass, with ``path`` as its ``filename``.

    Example:
        >>> with naming(Path("metrics.jsonl")):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        ...
        OSError: [Errno 28] No space left on device: 'metrics.jsonl'
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_json(path: Path, content: str) -> dict[str, Any]:
    """Read a JSON file that holds a table.

    Args:
        path: the file.
        content: what the file holds, for the message.

    Raises:
        RequestError: if it holds something else, or cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            # Some devices and pipes never end.
            raise ValueError("no regular file")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{path} must hold {content}, got: {reason}") from error
    if not isinstance(found, dict):
        raise RequestError(f"{path} must hold {content}, got a {type(found).__name__}")
    return found


def make_folder(name: str, path: Path) -> None:
    """Create the folder ``path``, and the folders above it, if necessary.

    Args:
        name: the option that holds the path.
        path: the folder.

    Raises:
        RequestError: if it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"{name} must be a writable folder, got {str(path)!r} ({error.strerror})"
        ) from error


def open_for_append(name: str, path: Path, advice: str = "") -> None:
    """Check, before long work, that ``path`` can be appended to, and make its folder.

    A file that did not exist does not exist afterwards: the work may end without a result.

    Args:
        name: the option that holds the path.
        path: the file.
        advice: end of the message.

    Raises:
        RequestError: if it is not writable.
    """
    if path.is_fifo():
        # Opening it would wait for a reader.
        raise RequestError(f"{name} must be a writable file, got {str(path)!r} (a pipe)")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The name of a new file may be that of another process's file in the next moment.
        with path.open("a") if path.exists() else tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise RequestError(
            f"{name} must be a writable file, got {str(path)!r} ({error.strerror}){advice}"
        ) from error


def append(path: Path, text: str) -> None:
    """Append all of ``text`` or nothing: a row cut off by a full disk would corrupt the next.

    A last line without a newline, as many editors leave it, gets one first.

    Raises:
        OSError: if the file cannot be written, with its name.
    """
    rest = text.encode()
    with naming(path), path.open("ab+", buffering=0) as file:
        # Another process must not append between the look at the end and the row.
        with contextlib.suppress(ImportError, OSError):
            from fcntl import LOCK_EX, flock

            flock(file, LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            rest = rest if file.read(1) == b"\n" else b"\n" + rest
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(size)
            raise


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees all of it or none, even after a power cut."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        write_synced(unfinished, content)
        unfinished.replace(path)
    except OSError:
        # A full disk needs its space back.
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file that has reached the disk when this returns."""
    with naming(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(folder: Path) -> None:
    """Let the names of a folder reach the disk."""
    # Some file systems refuse to sync a directory; the rename is still atomic there.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
