"""Shards of tensors on disk: each process writes what it holds, and any number of them read it.

PyTorch's distributed checkpoints in its safetensors format: nothing is pickled.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statemix.training.parallel import is_sharded

TensorFiles = dict[str, dict[str, Tensor]]
"""Name of a file without its suffix -> name of a tensor -> tensor."""


def write_shards(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
    """Write tensors, of which each process holds shards or all; all processes must call this.

    Args:
        folder: an empty folder on a disk that all processes share.
        tensors: as in :func:`statemix.training.checkpoint.save_checkpoint`.

    Returns:
        "file/name" of each tensor that is another one, such as a tied weight -> that other one.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

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
    save(flat, storage_writer=writer)
    return ties


def read_shards(folder: Path, ties: Mapping[str, str], like: Mapping[str, Tensor]) -> TensorFiles:
    """Read the tensors of :func:`write_shards`.

    Args:
        folder: folder of the files.
        ties: result of :func:`write_shards`.
        like: the weights of the model by name. A tensor that belongs to a sharded weight, and has
            its shape, is sharded like it; all others are whole.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    flat: dict[str, Tensor] = {}
    metadata: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    for key, stored in metadata.items():
        weight = _weight_of(key.partition("/")[2], like)
        dtype = stored.properties.dtype
        if weight is not None and weight.shape == stored.size:
            flat[key] = torch.empty_like(weight, dtype=dtype)
        else:
            flat[key] = torch.empty(stored.size, dtype=dtype)
    with warnings.catch_warnings():
        # Every process reads by itself, and PyTorch warns of it.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(flat, storage_reader=reader, no_dist=True)
    found: TensorFiles = {}
    for key, tensor in (flat | {key: flat[other] for key, other in ties.items()}).items():
        file, _, name = key.partition("/")
        found.setdefault(file, {})[name] = tensor
    return found


def spread_tensors(tensors: TensorFiles, like: Mapping[str, Tensor]) -> TensorFiles:
    """Return tensors whose weights, and what belongs to them, are sharded as the model is.

    Args:
        tensors: tensors by file and name.
        like: as in :func:`read_shards`.
    """
    return {
        file: {name: _spread(tensor, _weight_of(name, like)) for name, tensor in group.items()}
        for file, group in tensors.items()
    }


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
