"""Resumable checkpoints: written under a temporary name, renamed when whole, never unpickled."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from statemix import files
from statemix.errors import RequestError
from statemix.models import earlier_name
from statemix.training.devices import ALONE, Ranks, is_sharded
from statemix.training.settings import plain_number

TensorFiles = dict[str, dict[str, Tensor]]
"""Name of a file without its suffix -> name of a tensor -> tensor."""

_PREFIX = "step-"
_UNFINISHED = "unfinished"
_DAMAGED = "damaged-"
_MANIFEST = "manifest.json"
_STATE = "state.json"
_SUFFIX = ".safetensors"
# The state of a checkpoint in shards names the tied weights, which have one shard.
_TIES = "ties"
# The newest checkpoint, and one to fall back on.
_KEPT = 2

# Errors of reading a checkpoint that is not whole.
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_DAMAGE = (*_NO_FILE, ValueError, RecursionError, SafetensorError)

# Stands behind the name of a complex tensor, which is stored as pairs of real numbers.
_COMPLEX = "#complex"


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors in the safetensors format; those that share memory are stored once each."""
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
    tensors = load(content)
    for name in [name for name in tensors if name.endswith(_COMPLEX)]:
        tensors[name.removesuffix(_COMPLEX)] = torch.view_as_complex(tensors.pop(name))
    return tensors


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    ranks: Ranks = ALONE,
) -> None:
    """Save the checkpoint of a step and keep the previous one.

    All files are written into a folder with a temporary name and reach the disk before the folder
    is renamed. So a checkpoint with its final name is whole. The manifest holds the SHA-256 of each
    file, and the state their names. All processes call this. The first one writes, unless the
    tensors are sharded: then each process writes its shards.
    """
    sharded = any(is_sharded(tensor) for group in tensors.values() for tensor in group.values())
    unfinished = folder / _UNFINISHED
    if ranks.is_first:
        folder.mkdir(exist_ok=True)
        # The run folder, too: the metrics must survive a power cut together with the checkpoint.
        files.sync_directory(folder.parent)
        _remove(unfinished)
        unfinished.mkdir(exist_ok=True)
    if sharded:
        ranks.wait()
        tensors, state = {}, {**state, _TIES: _write_shards(unfinished, tensors)}
    if not ranks.is_first:
        return
    # The shards are there already.
    hashes = {path.name: files.sha256_of(path) for path in sorted(unfinished.glob("*" + _SUFFIX))}
    contents = {name + _SUFFIX: tensor_bytes(group) for name, group in tensors.items()}
    listed = sorted([*hashes, *contents])
    contents[_STATE] = json.dumps({"files": listed, **state}, indent=2).encode()
    hashes |= {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    contents[_MANIFEST] = json.dumps(hashes, indent=2).encode()
    for name, content in contents.items():
        files.write_synced(unfinished / name, content)
    files.sync_directory(unfinished)
    final = folder / f"{_PREFIX}{step:09d}"
    # A resumed run that is interrupted before its next step saves the same step again.
    _remove(final)
    if final.exists():
        _set_aside(final)
    unfinished.rename(final)
    files.sync_directory(folder)
    for old in _newest_first(folder)[_KEPT:]:
        _remove(old)


def load_checkpoint(
    folder: Path,
    report: Callable[[str], None],
    like: Mapping[str, Tensor] | None = None,
    ranks: Ranks = ALONE,
) -> tuple[TensorFiles, dict[str, Any]] | None:
    """Load the newest whole checkpoint: the tensors and the state that were saved, or None.

    Newer damaged ones are renamed, and ``report`` gets a line for each: the next save would count
    them among the newest, which it keeps. A checkpoint that cannot be read is not renamed: it may
    be whole. All processes call this. Tensors are on the CPU, or sharded like those of ``like``.
    """
    loaded: list[tuple[TensorFiles, dict[str, Any]]] = []

    def newest() -> str | None:
        damaged: dict[Path, str] = {}
        whole = None
        for path in _newest_first(folder):
            try:
                loaded.append(_load(path))
                whole = path.name
                break
            except _DAMAGE as error:
                damaged[path] = " ".join(str(error).split())
            except OSError as error:
                raise OSError(f"cannot read checkpoint {path}: {error.strerror}") from error
        for path, reason in damaged.items():
            aside = _set_aside(path)
            report(f"checkpoint {path.name} is damaged and set aside as {aside}: {reason}")
        return whole

    name = ranks.on_first(newest)
    if name is None:
        return None
    tensors, state = loaded[0] if loaded else _load(folder / name)
    like = like or {}
    if _TIES in state:
        return _read_shards(folder / name, state.pop(_TIES), like), state
    for group in tensors.values():
        group.update({key: _spread(tensor, _weight_of(key, like)) for key, tensor in group.items()})
    return tensors, state


def newest_before(folder: Path, step: int) -> Path | None:
    """Return the newest checkpoint of fewer steps, if there is one."""
    return next((path for path in _newest_first(folder) if _step(path.name) < step), None)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished run."""
    for path in (folder / _UNFINISHED, *_newest_first(folder)):
        _remove(path)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _step(name: str) -> int:
    """Return the step of a checkpoint, -1 if the name is not one."""
    match = re.fullmatch(_PREFIX + "([0-9]+)", name)
    return int(match[1]) if match else -1


# Files of a network file system may stay, and must not end a run.
_remove = partial(shutil.rmtree, ignore_errors=True)


def _set_aside(path: Path) -> str:
    """Give a damaged checkpoint another name, which is returned."""
    names = (f"{_DAMAGED}{path.name}{end}" for end in ("", *(f"-{n}" for n in range(2, 10**6))))
    name = next(name for name in names if not os.path.lexists(path.with_name(name)))
    path.rename(path.with_name(name))
    return name


def _load(path: Path) -> tuple[TensorFiles, dict[str, Any]]:
    hashes = json.loads((path / _MANIFEST).read_bytes())
    if not isinstance(hashes, dict) or _STATE not in hashes:
        raise ValueError(f"{_MANIFEST} does not list the files of a checkpoint")
    tensors: TensorFiles = {}
    state: dict[str, Any] = {}
    # The state comes first: it tells whether the other files are shards, which are read later.
    for name in sorted(hashes, key=lambda name: name != _STATE):
        is_shard = _TIES in state
        content = b"" if is_shard else (path / name).read_bytes()
        found = files.sha256_of(path / name) if is_shard else hashlib.sha256(content).hexdigest()
        if found != hashes[name]:
            raise ValueError(f"the SHA-256 of {name} differs from {_MANIFEST}")
        if name == _STATE:
            state = json.loads(content)
        elif not is_shard:
            tensors[name.removesuffix(_SUFFIX)] = load_tensors(content)
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
    found = [name for name in names if _step(name) >= 0]
    return [folder / name for name in sorted(found, key=_step, reverse=True)]


def _write_shards(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
    """Write tensors; return "file/name" of each that is another one, such as a tied weight -> it.

    All processes call this, and each holds its shards or the whole tensors.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_sharded

    flat, ties = {}, {}
    first: dict[tuple[Any, ...], str] = {}
    for file, group in tensors.items():
        for name, tensor in group.items():
            key = f"{file}/{name}"
            own: Any = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
            # A shard may be empty and have no address.
            place = (own.data_ptr(), tensor.shape, own.shape) if own.numel() else (key,)
            if place in first:
                ties[key] = first[place]
            else:
                first[place], flat[key] = key, tensor.detach()
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save_sharded(flat, storage_writer=writer)
    return ties


def _read_shards(folder: Path, ties: Mapping[str, str], like: Mapping[str, Tensor]) -> TensorFiles:
    """Undo :func:`_write_shards`, which returned ``ties``."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_sharded

    reader = HuggingFaceStorageReader(str(folder))
    flat: dict[str, Tensor] = {}
    metadata: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    for key, stored in metadata.items():
        weight = _weight_of(key.partition("/")[2], like)
        # A tensor of another shape than its weight, such as a factor, is not sharded.
        fits = weight is not None and weight.shape == stored.size
        form = weight if fits else torch.empty(stored.size)
        flat[key] = torch.empty_like(cast(Tensor, form), dtype=stored.properties.dtype)
    with warnings.catch_warnings():
        # Every process reads by itself, and PyTorch warns of it.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load_sharded(flat, storage_reader=reader, no_dist=True)
    found: TensorFiles = {}
    for key, tensor in (flat | {key: flat[other] for key, other in ties.items()}).items():
        file, _, name = key.partition("/")
        found.setdefault(file, {})[name] = tensor
    return found


def _spread(tensor: Tensor, weight: Any) -> Tensor:
    if weight is None or is_sharded(tensor) or weight.shape != tensor.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = weight.device_mesh, weight.placements
    tensor = tensor.to(mesh.device_type)
    # Every process has the whole tensor, and cuts out its own shard.
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def _weight_of(name: str, like: Mapping[str, Tensor]) -> Tensor | None:
    """Return the sharded weight that a tensor is, or belongs to as "weight/quantity"."""
    weight = like.get(name, like.get(name.rpartition("/")[0]))
    return weight if weight is not None and is_sharded(weight) else None


def optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimiser's tensors by "parameter/quantity", and the rest of its state as JSON."""
    own = set(model.parameters())
    further: list[Any] = [key for key in optimizer.state if key not in own]
    further += sorted(optimizer.state_dict().keys() - {"state", "param_groups"})
    if further:
        condition = "must belong to parameters and groups alone, so that runs can be resumed"
        raise RequestError(f"state of the optimizer {condition}, got {further[0]!r}")
    tensors, values = {}, {}
    for name, parameter in model.named_parameters():
        for quantity, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{quantity}"] = value
            else:
                values[f"{name}/{quantity}"] = value
    groups = [
        {option: plain_number(value) for option, value in group.items() if option != "params"}
        for group in optimizer.param_groups
    ]
    try:
        return tensors, json.loads(json.dumps({"groups": groups, "values": values}))
    except (TypeError, ValueError) as error:
        condition = "must hold tensors and JSON data alone, so that runs can be resumed"
        raise RequestError(f"state of the optimizer {condition}: {error}") from error


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
) -> None:
    """Restore the result of :func:`optimizer_state`, bit-identical and in its own dtypes."""
    groups = numbers.get("groups", [{}] * len(optimizer.param_groups))
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        group.update({name: tuple(v) if isinstance(v, list) else v for name, v in options.items()})
    group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
    own = dict(model.named_parameters())
    # Checkpoints of older versions have other names.
    parameters = {earlier_name(name): parameter for name, parameter in own.items()} | own
    optimizer.state.clear()
    for key, value in (*tensors.items(), *numbers.get("values", {}).items()):
        name, quantity = key.rsplit("/", 1)
        parameter = parameters[name]
        group = group_of.get(parameter, {})
        # PyTorch keeps numbers of steps on the CPU, where reading them waits for no device, unless
        # its kernels read them.
        on_cpu = quantity == "step" and not (group.get("fused") or group.get("capturable"))
        if isinstance(value, Tensor) and not on_cpu:
            value = value.to(parameter.device)
        if isinstance(value, Tensor) and value.shape == parameter.shape and quantity != "step":
            # Fused steps read moments in the order in which the parameter lies in memory.
            value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        optimizer.state.setdefault(parameter, {})[quantity] = value
