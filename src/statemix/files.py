"""Files: folders, rows, atomic writes, and errors that name their file."""

import csv
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from statemix.errors import RequestError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to errors of the operating system that lack it, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_json(path: Path, content: str) -> dict[str, Any]:
    """Read a JSON file that holds a table; ``content`` says in messages what that is."""
    try:
        if path.exists() and not path.is_file():
            # Some devices and pipes never end.
            raise ValueError("not a regular file")
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{path} must hold {content}, got: {reason}") from error
    if not isinstance(table, dict):
        raise RequestError(f"{path} must hold {content}, got a {type(table).__name__}")
    return table


def read_text(name: str, path: Path) -> str:
    """Read the text file that the option ``name`` holds."""
    try:
        if path.exists() and not path.is_file():
            # Some devices and pipes never end.
            raise ValueError("not a regular file")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{name} must be a text file, got {path}: {reason}") from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def csv_rows(file: Path, lines: Iterable[str], **options: Any) -> Iterator[tuple[int, Any]]:
    """Yield the rows of CSV below its header, column -> cell, with their numbers from 1.

    ``lines`` are the lines of ``file``. :class:`csv.DictReader` takes the ``options``. A
    RequestError names a column that comes twice, or a row with more cells than columns.
    """
    # Texts are longer than 131,072 characters, the most by default.
    csv.field_size_limit(2**31 - 1)
    written = itertools.dropwhile(lambda line: not line.strip(), lines)
    table = csv.DictReader(written, strict=True, **options)
    columns = table.fieldnames or []
    if twice := {name for name in columns if name and columns.count(name) > 1}:
        raise RequestError(f"{file} must have one column {min(twice)!r}, got several")
    for number, cells in enumerate(table, 1):
        if extra := cells.pop(None, None):
            raise RequestError(
                f"{file}, row {number} must have a cell for each of {len(cells)} columns, got "
                f"{len(cells) + len(extra)}; quote cells that hold commas"
            )
        yield number, cells


def make_folder(name: str, path: Path) -> None:
    """Create the folder that the option ``name`` holds, and those above it, if necessary."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"{name} must be a writable folder, got {str(path)!r} ({error.strerror})"
        ) from error


def check_writable(name: str, path: Path, advice: str = "", *, replaced: bool = False) -> None:
    """Check, before long work, that rows can be appended to the file of the option ``name``.

    Its folder is made. A file that did not exist does not exist afterwards: the work may end
    without a result. With ``replaced``, :func:`write_file` is to write the file, which needs a
    writable folder even if the file exists. ``advice`` ends the message.
    """
    if path.is_fifo():
        # Opening it would wait for a reader.
        raise RequestError(f"{name} must be a writable file, got {str(path)!r} (a pipe)")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        if not is_new:
            path.open("a").close()
        if is_new or replaced:
            # The name of a new file may be that of another process's file in the next moment.
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise RequestError(
            f"{name} must be a writable file, got {str(path)!r} ({error.strerror}){advice}"
        ) from error


def append(path: Path, text: str) -> None:
    """Append all of ``text`` or nothing: a row cut off by a full disk would corrupt the next.

    A last line without a newline, as many editors leave it, gets one first.
    """
    rest = text.encode()
    with naming(path), path.open("ab+", buffering=0) as file:
        # Another process must not append between the look at the end and the row.
        with suppress(ImportError, OSError):
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
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
