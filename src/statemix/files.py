"""Files: folders, rows, atomic writes and tensors, and errors that name their file."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from statemix.errors import RequestError

# Stands behind the name of a complex tensor, which is stored as pairs of real numbers.
_COMPLEX = "#complex"


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


def open_for_append(name: str, path: Path) -> None:
    """Create ``path`` if necessary and check, before long work, that it can be appended to.

    Args:
        name: the option that holds the path.
        path: the file.

    Raises:
        RequestError: if it is not writable.
    """
    if path.is_fifo():
        # Opening it would wait for a reader.
        raise RequestError(f"{name} must be a writable file, got {str(path)!r} (a pipe)")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise RequestError(
            f"{name} must be a writable file, got {str(path)!r} ({error.strerror})"
        ) from error


def append(path: Path, text: str) -> None:
    """Append all of ``text`` or nothing: a row cut off by a full disk would corrupt the next.

    A last line without a newline, as many editors leave it, gets one first.

    Raises:
        OSError: if the file cannot be written, with its name.
    """
    rest = text.encode()
    with naming(path), path.open("ab+", buffering=0) as file:
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
    write_synced(unfinished, content)
    unfinished.replace(path)
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


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as bytes in the safetensors format.

    Tensors that share memory, such as tied weights, are stored once each.
    """
    stored, storages = {}, set()
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        if tensor.is_complex():
            name, tensor = name + _COMPLEX, torch.view_as_real(tensor.resolve_conj())
        tensor = tensor.resolve_neg().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        stored[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return save(stored)


def load_tensors(content: bytes) -> dict[str, Tensor]:
    """Undo :func:`tensor_bytes`."""
    return {
        name.removesuffix(_COMPLEX): (
            torch.view_as_complex(tensor) if name.endswith(_COMPLEX) else tensor
        )
        for name, tensor in load(content).items()
    }


def check_storable(model: nn.Module) -> None:
    """Check that the weights of a model can be stored, and loaded into a model like it.

    Args:
        model: the model; it keeps its weights.

    Raises:
        RequestError: if they cannot; the message names the tensor.
    """
    weights = dict(model.state_dict())
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            condition = f"must hold tensors alone, got a {type(value).__name__} as {name!r}"
            raise RequestError(f"weights of the model {condition}")
        if nn.parameter.is_lazy(value):
            raise RequestError(
                f"weights of the model must have shapes before the first call, {name!r} has none"
            )
    absent = [name for name, _ in model.named_parameters() if name not in weights]
    if absent:
        raise RequestError(f"state_dict of the model must hold every parameter, not {absent[0]!r}")
    for name, tensor in weights.items():
        try:
            (stored,) = load_tensors(tensor_bytes({name: tensor})).values()
        except (RuntimeError, ValueError, TypeError, KeyError, SafetensorError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            text = f"weights of the model cannot be stored: {name!r}: {reason}"
            raise RequestError(text) from error
        weights[name] = stored.to(tensor.device)
    before = {name: stored.clone() for name, stored in weights.items()}
    try:
        model.load_state_dict(weights)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise RequestError(f"weights of the model cannot be loaded: {reason}") from error
    for name, tensor in model.state_dict().items():
        if not _bits_equal(tensor, before[name]):
            raise RequestError(
                f"weights of the model must be loaded as they were stored, {name!r} is not"
            )


def _bits_equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and tensor_bytes({"": one}) == tensor_bytes({"": other})
