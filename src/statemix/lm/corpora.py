"""Texts to train on: files, source trees, datasets of the hub, and the standard library.

A corpus yields documents in a fixed order, and says which of them are held out. The split is by
group, such as a top-level package: near-copies within a group never lie on both sides.
"""

import bz2
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TextIO

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
_PLAIN = (".py", ".txt", ".md", ".rst")
_LINES = (".jsonl", ".ndjson", ".jsonlines", ".jl")
_DECODERS: dict[str, Callable[[], Any]] = {
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
}
_COMPRESSED = (".gz", *_DECODERS)
_AT_ONCE = 2**20
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
    """What has been read of a corpus, and what has been left out.

    ``notes`` has what was left out, or is unusual -> "count", and "first" names.
    """

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
        return [
            f"{what}: {noted['count']:,} ({', '.join(map(_printable, noted['first']))}"
            + (", ...)" if noted["count"] > _SHOWN else ")")
            for what, noted in self.notes.items()
        ]


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def read_corpus(
    sources: Sequence[str],
    *,
    field: str = "text",
    suffixes: Sequence[str] = (),
    reading: CorpusReading | None = None,
) -> Iterator[Document]:
    """Yield the documents of all sources, without those whose text has come before.

    Files are UTF-8. Every line ends in a newline. U+FFFD replaces bytes that are not UTF-8, and
    halves of surrogate pairs. Files that end in .gz, .bz2 or .xz, too, are decompressed.

    Args:
        sources: "stdlib" (the standard library of this Python); "hub:NAME" or "hub:NAME:CONFIG"
            (the training split of a dataset of the Hugging Face hub, streamed); or paths: a text
            file; a file of rows, ``.jsonl``, ``.jsonlines``, ``.jl``, ``.ndjson``, ``.json`` (an
            array of rows, or a row) or ``.parquet``; or a folder, whose files with the suffixes
            count, and those of folders that it links to.
        field: name of the text in rows.
        suffixes: suffixes of files in folders, in any case; none means .py, .txt, .md and .rst.
        reading: counts what is read and left out.
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


def _documents(
    source: str, field: str, endings: tuple[str, ...], reading: CorpusReading
) -> Iterable[Document]:
    if source == "stdlib":
        return standard_library(reading)
    if source.startswith("hub:"):
        return _of_hub(source.removeprefix("hub:"), field)
    path = Path(source)
    if not source or not path.exists():
        raise RequestError(f"source must be stdlib, hub:NAME or an existing path, got {source!r}")
    if path.is_dir():
        return _of_folder(path, field, endings, reading)
    if not path.is_file():
        raise RequestError(f"{path} is not a regular file, which can be read twice; make it one")
    return _of_file(path, str(path), path.name, field, reading)


def standard_library(reading: CorpusReading) -> Iterator[Document]:
    """Yield the modules of the running Python's standard library, without tests.

    The group is the top-level package or module.
    """
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        name = "/".join(parts)
        if _LEFT_OUT.intersection(parts) or name.startswith(("_sysconfigdata", "config-")):
            reading.note("left out: modules of tests, packages and tables", name)
        else:
            yield from _of_file(path, name, parts[0].removesuffix(".py"), "", reading)


def _of_folder(
    folder: Path, field: str, endings: tuple[str, ...], reading: CorpusReading
) -> Iterator[Document]:
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
    """Return the name of a file in small letters, without the ending of a compressor."""
    name = path.name.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return name


def _of_file(
    path: Path, name: str, group: str, field: str, reading: CorpusReading
) -> Iterator[Document]:
    """Yield the documents of a file; each row is a group."""
    reading.files += 1
    plain = _plain_name(path)
    if plain.endswith(".parquet"):
        found = _dataset(str(path), "parquet", data_files=str(path))
        rows: Iterable[tuple[int, Any]] = enumerate(found, 1)
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


class _Decompressed(io.RawIOBase):
    """The content of a .bz2 or .xz file.

    The standard library reads a file with a damaged second stream as if the file ended there.
    """

    def __init__(self, file: BinaryIO, decoder: Callable[[], Any]) -> None:
        self._chunks, self._left = _decompress(file, decoder), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = chunk
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def _decompress(file: BinaryIO, decoder: Callable[[], Any]) -> Iterator[bytes]:
    while chunk := file.read(_AT_ONCE):
        # Streams follow each other, with zeros in between.
        while chunk := chunk.lstrip(b"\0"):
            stream = decoder()
            yield stream.decompress(chunk)
            while not stream.eof:
                if not (chunk := file.read(_AT_ONCE)):
                    raise EOFError("the file ends within a stream")
                yield stream.decompress(chunk)
            chunk = stream.unused_data


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a text, compressed or not; errors of reading name the file."""
    suffix = path.suffix.lower()
    try:
        with contextlib.ExitStack() as stack:
            raw: Any = stack.enter_context(path.open("rb"))
            if suffix == ".gz":
                raw = stack.enter_context(gzip.open(raw))
            elif suffix in _DECODERS:
                raw = io.BufferedReader(_Decompressed(raw, _DECODERS[suffix]))
            yield io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape")
    except RequestError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
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


def _json(text: str, name: str, advice: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name} must be JSON: {error}{advice}") from error


def _of_hub(name: str, field: str) -> Iterator[Document]:
    name, _, config = name.partition(":")
    for number, row in enumerate(_dataset(f"hub:{name}", name, config or None)):
        yield _of_row(row, field, f"{name}:{number}", f"{name}:{number}")


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
    text = row.get(field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        got = (
            f"the fields {list(row)}" if isinstance(row, dict) and field not in row else repr(text)
        )
        raise RequestError(f"{name} must have a text in the field {field!r}, got {got}")
    return Document(name, group, text)
