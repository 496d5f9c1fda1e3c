"""Files of tokens: Megatron's ``.bin`` and ``.idx``, memory-mapped.

A ``.bin`` holds the token ids of all documents one after another, as unsigned 16-bit integers or
signed 32-bit ones. It is at the same time a ``.bin`` of nanoGPT. The ``.idx`` beside it holds the
lengths of the documents, in the layout of Megatron-LM's ``IndexedDataset``; the ``.json`` holds
what these lack.
"""

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statemix.errors import RequestError
from statemix.files import naming, read_json, sha256_of, write_file

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_VERSION = 1
# Megatron's codes of dtypes; it has none for unsigned 32-bit integers.
_CODES: dict[int, type[np.generic]] = {1: np.uint8, 4: np.int32, 8: np.uint16}
_FORMAT = "statemix tokens 1"
_MOST_LENGTH = 2**31 - 1


@dataclass(frozen=True)
class TokenFile:
    """The tokens of a ``.bin``, the bounds of its documents, and the content of its ``.json``."""

    path: Path
    ids: NDArray[Any]
    bounds: NDArray[np.int64]
    info: Mapping[str, Any]

    @property
    def num_bytes(self) -> int | None:
        """Bytes of text, if they are known."""
        counts = self.info.get("document_bytes")
        return None if counts is None else sum(counts)

    def document(self, number: int) -> NDArray[Any]:
        """Return the token ids of one document."""
        return self.ids[self.bounds[number] : self.bounds[number + 1]]


def check_ids(name: str, ids: Any, vocab_size: int) -> None:
    """Refuse token ids of a text, an array or a tensor, that a vocabulary does not have."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise RequestError(
            f"{name} must have tokens in 0..{vocab_size - 1}, the vocabulary, got "
            f"{int(ids.min())}..{int(ids.max())}"
        )


class TokenWriter:
    """Writes documents into a ``.bin``, which must not exist, an ``.idx`` and a ``.json``."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        self.path, self._vocab_size = path, vocab_size
        if not 1 <= vocab_size <= 2**31:
            raise RequestError(f"vocab_size must be in 1..2^31, got {vocab_size}")
        self._dtype: type[np.generic] = np.uint16 if vocab_size <= 2**16 else np.int32
        self._file = path.open("xb")
        self._digest = hashlib.sha256()
        self._lengths: list[int] = []
        self._bytes: list[int] = []

    @property
    def num_documents(self) -> int:
        return len(self._lengths)

    def add(self, ids: Sequence[int] | NDArray[Any], num_bytes: int) -> None:
        """Append the token ids of a document, whose text has a number of bytes."""
        array = np.asarray(ids, dtype=np.int64)
        if array.ndim != 1 or len(array) > _MOST_LENGTH:
            raise RequestError(
                f"document {self.num_documents} must have at most {_MOST_LENGTH} tokens, which the "
                f"index can hold, got {array.size}; split it"
            )
        check_ids(f"document {self.num_documents}", array, self._vocab_size)
        payload = array.astype(np.dtype(self._dtype).newbyteorder("<")).tobytes()
        with naming(self.path):
            self._file.write(payload)
        self._digest.update(payload)
        self._lengths.append(len(array))
        self._bytes.append(num_bytes)

    def finish(self, info: Mapping[str, Any]) -> None:
        """Write the index and the description, which states ``info`` beside sizes and checksums."""
        with naming(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        lengths = np.asarray(self._lengths, dtype=np.int64)
        places = np.concatenate([[0], lengths.cumsum()]) * np.dtype(self._dtype).itemsize
        documents = np.arange(len(lengths) + 1, dtype=np.int64)
        (code,) = (code for code, dtype in _CODES.items() if dtype is self._dtype)
        index = b"".join(
            [
                _HEADER.pack(_MAGIC, _VERSION, code, len(lengths), len(documents)),
                lengths.astype("<i4").tobytes(),
                places[:-1].astype("<i8").tobytes(),
                documents.astype("<i8").tobytes(),
            ]
        )
        described = {
            "format": _FORMAT,
            **info,
            "vocab_size": self._vocab_size,
            "num_tokens": int(lengths.sum()),
            "document_bytes": self._bytes,
            "sha256": {
                self.path.name: self._digest.hexdigest(),
                self.path.with_suffix(".idx").name: hashlib.sha256(index).hexdigest(),
            },
        }
        write_file(self.path.with_suffix(".idx"), index)
        write_file(self.path.with_suffix(".json"), (json.dumps(described) + "\n").encode())

    def close(self) -> None:
        """Close the file of an unfinished writer."""
        # Closing writes the rest, which a full disk refuses again.
        with contextlib.suppress(OSError):
            self._file.close()


def read_tokens(path: Path, *, verify: bool = False) -> TokenFile:
    """Open a ``.bin`` with its index; ``verify`` compares the checksums of the ``.json``."""
    if not path.is_file():
        raise RequestError(f"{path} must be a file of tokens, found none")
    lengths, dtype = _read_index(path.with_suffix(".idx"))
    info = _read_info(path.with_suffix(".json"), len(lengths))
    bounds = np.concatenate([[0], lengths.cumsum(dtype=np.int64)])
    wanted = int(bounds[-1]) * np.dtype(dtype).itemsize
    if path.stat().st_size != wanted:
        raise RequestError(
            f"{path} must have {wanted} bytes by its index, got {path.stat().st_size}"
        )
    if verify:
        _verify(path, info.get("sha256", {}))
    ids = np.memmap(path, dtype, "r") if wanted else np.empty(0, dtype)
    return TokenFile(path, ids, bounds, info)


def _verify(path: Path, digests: Mapping[str, str]) -> None:
    """Compare the checksums of files, and again only if their sizes or times have changed."""
    stamps = {}
    for name, digest in digests.items():
        stat = (path.parent / name).stat()
        stamps[name] = [digest, stat.st_size, stat.st_mtime_ns]
    record = path.with_suffix(".verified")
    with contextlib.suppress(RequestError):
        if read_json(record, "checksums") == stamps:
            return
    for name, digest in digests.items():
        found = sha256_of(path.parent / name)
        if found != digest:
            raise RequestError(f"{path.parent / name} must have the sha256 {digest}, got {found}")
    # A folder that cannot be written is verified each time.
    with contextlib.suppress(OSError):
        write_file(record, json.dumps(stamps).encode())


def _read_index(path: Path) -> tuple[NDArray[np.int64], type[np.generic]]:
    content = path.read_bytes() if path.exists() else b""
    if len(content) < _HEADER.size or not content.startswith(_MAGIC):
        raise RequestError(f"{path} must be an index of Megatron-LM, which begins with MMIDIDX")
    _, version, code, num_sequences, num_documents = _HEADER.unpack_from(content)
    if version != _VERSION or code not in _CODES:
        raise RequestError(
            f"{path} must have version {_VERSION} and a dtype code in {sorted(_CODES)}, "
            f"got {version} and {code}"
        )
    wanted = _HEADER.size + 12 * num_sequences + 8 * num_documents
    if len(content) != wanted:
        raise RequestError(f"{path} must have {wanted} bytes by its header, got {len(content)}")
    lengths = np.frombuffer(content, "<i4", num_sequences, _HEADER.size).astype(np.int64)
    documents = np.frombuffer(content, "<i8", num_documents, wanted - 8 * num_documents)
    ordered = (np.diff(documents, prepend=0) >= 0).all()
    if (lengths < 0).any() or not ordered or (documents.size and documents[-1] != num_sequences):
        raise RequestError(f"{path} must count the sequences of its documents")
    # A document may be several sequences.
    places = np.concatenate([[0], lengths.cumsum()])[documents]
    return np.diff(places), _CODES[code]


def _read_info(path: Path, num_documents: int) -> dict[str, Any]:
    if not path.exists():
        return {}
    info = read_json(path, "the description of tokens")
    if info.get("format") != _FORMAT:
        raise RequestError(f"{path} must have the format {_FORMAT!r}")
    digests, counts = info.get("sha256", {}), info.get("document_bytes")
    numbers = [info.get("vocab_size", 0), *(counts if isinstance(counts, list) else ())]
    # A stranger's file must not name others, such as devices without an end.
    own = {path.with_suffix(suffix).name for suffix in (".bin", ".idx")}
    if not isinstance(digests, dict) or not set(digests) <= own:
        raise RequestError(f"{path} must have the sha256 of {' and '.join(sorted(own))} alone")
    if not all(type(one) is int and 0 <= one < 2**63 for one in numbers):
        raise RequestError(f"{path} must have whole numbers as vocab_size and document_bytes")
    if counts is not None and (not isinstance(counts, list) or len(counts) != num_documents):
        raise RequestError(f"{path} must have the bytes of {num_documents} documents")
    return info
