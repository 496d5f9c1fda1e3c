"""Resumable checkpoints: written under a temporary name, renamed when whole, never unpickled."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from statemix.files import naming

_PREFIX = "step-"
_UNFINISHED = "unfinished"
_MANIFEST = "manifest.json"
_STATE = "state.json"
# The newest checkpoint, and one to fall back on.
_KEPT = 2

# Errors of reading a checkpoint that is not whole.
_DAMAGE = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    SafetensorError,
)

TensorFiles = dict[str, dict[str, Tensor]]


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees all of it or none, even after a power cut."""
    unfinished = path.with_name(path.name + ".tmp")
    _write_synced(unfinished, content)
    unfinished.replace(path)
    _sync_directory(path.parent)


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as bytes in the safetensors format."""
    return dump_tensors({name: tensor.detach().contiguous() for name, tensor in tensors.items()})


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    """Save the checkpoint of a step and keep the previous one.

    All files are written into a folder with a temporary name and reach the disk before the folder
    is renamed. So a checkpoint with its final name is whole. The manifest holds the SHA-256 of each
    file, and the state their names.

    Args:
        folder: folder of the run's checkpoints; made if absent.
        step: optimiser steps done.
        tensors: name of a file without its suffix -> name of a tensor -> tensor.
        state: everything else, as JSON.
    """
    folder.mkdir(exist_ok=True)
    # Sync the run folder too: the metrics must survive a power cut together with the checkpoint.
    _sync_directory(folder.parent)
    unfinished = folder / _UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    files = {f"{name}.safetensors": tensor_bytes(group) for name, group in tensors.items()}
    files[_STATE] = json.dumps({"files": sorted(files), **state}, indent=2).encode()
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files[_MANIFEST] = json.dumps(hashes, indent=2).encode()
    for name, content in files.items():
        _write_synced(unfinished / name, content)
    _sync_directory(unfinished)
    final = folder / _name(step)
    if final.exists():
        # A resumed run that is interrupted before its next step saves the same step again.
        _remove(final)
    unfinished.rename(final)
    _sync_directory(folder)
    for old in _newest_first(folder)[_KEPT:]:
        _remove(old)


def load_checkpoint(
    folder: Path, report: Callable[[str], None]
) -> tuple[TensorFiles, dict[str, Any]] | None:
    """Load the newest checkpoint that is whole, and remove newer damaged ones.

    Damaged checkpoints would otherwise count among the newest, which the next save keeps.

    Args:
        folder: folder of the run's checkpoints.
        report: called with one line for each damaged checkpoint.

    Returns:
        tensors: tensors as given to :func:`save_checkpoint`, on the CPU.
        state: state as given to it. A single None replaces both if no checkpoint is whole.

    Raises:
        OSError: if a checkpoint cannot be read. It may be whole, so nothing is removed.
    """
    found = None
    damaged: dict[Path, str] = {}
    for path in _newest_first(folder):
        try:
            found = _load(path)
            break
        except _DAMAGE as error:
            damaged[path] = " ".join(str(error).split())
        except OSError as error:
            raise OSError(f"cannot read checkpoint {path}: {error.strerror}") from error
    for path, reason in damaged.items():
        report(f"removing damaged checkpoint {path.name}: {reason}")
        _remove(path)
    return found


def newest_before(folder: Path, step: int) -> Path | None:
    """Return the newest checkpoint of fewer steps, or None if there is none.

    Args:
        folder: folder of the run's checkpoints.
        step: optimiser steps.
    """
    older = (path for path in _newest_first(folder) if path.name < _name(step))
    return next(older, None)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished run."""
    shutil.rmtree(folder, ignore_errors=True)


def _name(step: int) -> str:
    return f"{_PREFIX}{step:09d}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _load(path: Path) -> tuple[TensorFiles, dict[str, Any]]:
    hashes = json.loads((path / _MANIFEST).read_bytes())
    if not isinstance(hashes, dict) or _STATE not in hashes:
        raise ValueError(f"{_MANIFEST} does not list the files of a checkpoint")
    unlisted = sorted(set(os.listdir(path)) - {_MANIFEST, *hashes})
    if unlisted:
        raise ValueError(f"{_MANIFEST} does not list {unlisted[0]}")
    tensors: TensorFiles = {}
    state: dict[str, Any] = {}
    for name, expected in hashes.items():
        content = (path / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != expected:
            raise ValueError(f"the SHA-256 of {name} differs from {_MANIFEST}")
        if name == _STATE:
            state = json.loads(content)
        else:
            tensors[name.removesuffix(".safetensors")] = load_tensors(content)
    # The checksum of the state protects this list. Checkpoints of older versions lack it.
    for name in state.pop("files", ()):
        if name not in hashes:
            raise ValueError(f"{_MANIFEST} does not list {name}")
    return tensors, state


def _newest_first(folder: Path) -> list[Path]:
    # glob would treat a folder that cannot be read as empty.
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(names, reverse=True) if name.startswith(_PREFIX)]


def _write_synced(path: Path, content: bytes) -> None:
    with naming(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(folder: Path) -> None:
    # Some file systems refuse to sync a directory; the rename is still atomic there.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
