"""Texts to train on: files, source trees, datasets of the hub, and the standard library.

A corpus yields documents in a fixed order, and says which of them are held out. The split is by
group, such as a top-level package: near-copies within a group never lie on both sides.
"""

import contextlib
import csv
import gzip
import hashlib
import io
import json
import os
import re
import sysconfig
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from statemix.errors import RequestError
from statemix.files import csv_rows

HELD_OUT_SHARE = 1 / 8
"""Share of the groups that is held out."""

# The code pages of `encodings` are near-copies; the others vanish with Python 3.12 and 3.13.
_LEFT_OUT = frozenset(
    {
        "__pycache__", "config", "distutils", "encodings", "ensurepip", "idlelib", "lib2to3",
        "pydoc_data", "site-packages", "dist-packages", "test", "tests", "turtledemo",
    }
)  # fmt: skip
_PLAIN = (".py", ".txt", ".md", ".rst")
_PACKED = (".bz2", ".xz", ".zip", ".zst")
_LINES = (".jsonl", ".ndjson", ".jsonlines", ".jl")
# Halves of surrogate pairs: JSON may have them, and Python puts them for bytes that are not UTF-8.
_HALVES = re.compile("[\ud800-\udfff]")
# Names that a count shows.
_SHOWN = 3


@dataclass(frozen=True)
class Document:
    """A text, where it comes from, and the group by which it is split."""

    name: str
    group: str
    text: str

    def is_held_out(self, share: float = HELD_OUT_SHARE) -> bool:
        """Return whether the document is among the share of all groups that is held out."""
        # The name of a file need not be UTF-8.
        digest = hashlib.sha256(self.group.encode(errors="surrogatepass")).digest()
        number = int.from_bytes(digest[:4], "big")
        # The lowest bits count most.
        return (number % 8 * 2**29 + number // 8) / 2**32 < share


@dataclass
class CorpusReading:
    """What has been read; ``notes``: what was left out, or is unusual -> "count", "first" names."""

    files: int = 0
    documents: int = 0
    num_bytes: int = 0
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def note(self, what: str, name: str) -> None:
        """Count something that is left out or unusual."""
        noted = self.notes.setdefault(what, {"count": 0, "first": []})
        noted["count"] += 1
        if noted["count"] <= _SHOWN:
            noted["first"].append(name)

    def sentences(self) -> list[str]:
        """Return the notes for a reader."""
        found = []
        for what, noted in self.notes.items():
            names = [name if name.isprintable() else ascii(name) for name in noted["first"]]
            more = ", ..." if noted["count"] > _SHOWN else ""
            found.append(f"{what}: {noted['count']:,} ({', '.join(names)}{more})")
        return found


def read_corpus(
    sources: Sequence[str],
    *,
    field: str = "text",
    suffixes: Sequence[str] = (),
    reading: CorpusReading | None = None,
) -> Iterator[Document]:
    """Yield the documents of all sources, without those whose text has come before.

    Files are UTF-8. Every line of a text file ends in a newline. U+FFFD replaces bytes that are not
    UTF-8, and halves of surrogate pairs. Files that end in .gz are decompressed.

    ``sources`` are those of ``statemix lm prepare``. Rows have their text in ``field``; a ``.json``
    is an array of rows, or a row. The files of a folder, and of folders that it links to, count if
    they end in ``suffixes``, in any case; none means .py, .txt, .md and .rst.
    """
    if without := [suffix for suffix in suffixes if not suffix.startswith(".")]:
        raise RequestError(f"suffixes must begin with a dot, got {', '.join(without)}")
    reading = CorpusReading() if reading is None else reading
    endings = tuple(suffix.lower() for suffix in suffixes) or _PLAIN
    seen: set[bytes] = set()
    for source in sources:
        for document in _documents_of(source, field, endings, reading):
            text = _HALVES.sub("\ufffd", document.text)
            content = text.encode()
            digest = hashlib.sha256(content).digest()
            if not text:
                reading.note("left out: empty texts", document.name)
            elif digest in seen:
                reading.note("left out: texts that have come before", document.name)
            else:
                if text != document.text:
                    what = "texts that are not UTF-8 everywhere, with U+FFFD in these places"
                    reading.note(f"read: {what}", document.name)
                seen.add(digest)
                reading.documents += 1
                reading.num_bytes += len(content)
                yield replace(document, text=text)


def _documents_of(
    source: str, field: str, endings: tuple[str, ...], reading: CorpusReading
) -> Iterator[Document]:
    if source == "stdlib":
        # The groups are packages and modules of the top level.
        root = Path(sysconfig.get_path("stdlib"))
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            name = "/".join(parts)
            if _LEFT_OUT.intersection(parts) or name.startswith(("_sysconfigdata", "config-")):
                reading.note("left out: modules of tests, packages and tables", name)
            else:
                yield from _of_file(path, name, parts[0].removesuffix(".py"), "", reading)
        return
    if source.startswith("hub:"):
        name, _, config = source.removeprefix("hub:").partition(":")
        for number, row in enumerate(_dataset(f"hub:{name}", name, config or None)):
            yield _of_row(row, field, f"{name}:{number}", f"{name}:{number}")
        return
    folder = Path(source)
    if not source or not folder.exists():
        raise RequestError(f"source must be stdlib, hub:NAME or an existing path, got {source!r}")
    if not folder.is_dir():
        if folder.suffix.lower() in _PACKED:
            raise RequestError(f"{folder} must be unpacked, or packed by gzip, to be read")
        if not folder.is_file():
            raise RequestError(
                f"{folder} is not a regular file, which can be read twice; make it one"
            )
        yield from _of_file(folder, str(folder), folder.name, field, reading)
        return
    for path in _files_of(folder, reading):
        parts = path.relative_to(folder).parts
        name = "/".join(parts)
        if not path.name.lower().endswith(endings) and not _plain_name(path).endswith(endings):
            what = "left out: files with another ending (--suffixes chooses the endings)"
            reading.note(what, name)
        elif not path.is_file() or not os.access(path, os.R_OK):
            reading.note("left out: files that cannot be read", name)
        else:
            yield from _of_file(path, name, parts[0], field, reading)


def _files_of(folder: Path, reading: CorpusReading) -> list[Path]:
    """Return the files below a folder in order; each folder is visited once."""
    visited: set[str] = set()
    files: list[Path] = []

    def leave_out(error: OSError) -> None:
        reading.note("left out: folders that cannot be read", str(error.filename))

    for here, inner, names in os.walk(folder, onerror=leave_out, followlinks=True):
        inner.sort()
        real = os.path.realpath(here)
        if real in visited:
            what = "left out: links to folders that are read under another name"
            reading.note(what, os.path.relpath(here, folder))
            inner.clear()
        else:
            visited.add(real)
            files += [Path(here, name) for name in names]
    return sorted(files)


def _plain_name(path: Path) -> str:
    """Return the name of a file in small letters, without the ending .gz."""
    return path.name.lower().removesuffix(".gz")


def _of_file(
    path: Path, name: str, group: str, field: str, reading: CorpusReading
) -> Iterator[Document]:
    """Yield the documents of a file; each row is a group."""
    reading.files += 1
    plain = _plain_name(path)
    if plain.endswith(".parquet"):
        found = _dataset(str(path), "parquet", data_files=str(path))
        rows: Iterable[tuple[int, Any]] = enumerate(found, 1)
    elif plain.endswith(".csv"):
        rows = _csv_rows(path)
    elif plain.endswith((*_LINES, ".json")):
        rows = _json_rows(path, is_whole=plain.endswith(".json"))
    else:
        with _opened(path) as file:
            text = file.read()
        has_nul = "\0" in text
        if has_nul and _HALVES.search(text):
            reading.note("left out: files with NUL bytes that are not UTF-8", name)
            return
        if has_nul:
            reading.note("read: texts with NUL bytes, as archives and UTF-16 have", name)
        yield Document(name, group, text)
        return
    for number, row in rows:
        yield _of_row(row, field, f"{path}:{number}", f"{group}:{number}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a text, compressed or not; errors of reading name the file."""
    try:
        raw: Any = (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb")
        with raw, io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape") as file:
            yield file
    except RequestError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RequestError(f"{path} cannot be read: {reason}") from error


def _json_rows(path: Path, *, is_whole: bool) -> Iterator[tuple[int, Any]]:
    with _opened(path) as file:
        if is_whole:
            content = _json(file.read(), str(path), "; JSON Lines need the ending .jsonl")
            yield from enumerate(content if isinstance(content, list) else [content], 1)
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _json(line, f"{path}:{number}")


def _csv_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with _opened(path) as file:
        yield from csv_rows(path, file)


def _json(text: str, name: str, advice: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name} must be JSON: {error}{advice}") from error


def _dataset(source: str, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Yield the rows of a dataset of the package ``datasets``."""
    try:
        import datasets
    except ImportError as error:
        raise RequestError(f"{source} needs datasets: pip install datasets") from error
    try:
        yield from datasets.load_dataset(*arguments, split="train", streaming=True, **options)
    # The package raises errors of many kinds.
    except Exception as error:
        raise RequestError(f"{source} cannot be read: {error}") from error


def _of_row(row: Any, field: str, name: str, group: str) -> Document:
    text = row.get(field, f"the fields {list(row)}") if isinstance(row, dict) else row
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        advice = "--field names another field"
        raise RequestError(f"{name} must have a text in the field {field!r}, got {text}; {advice}")
    return Document(name, group, text)
