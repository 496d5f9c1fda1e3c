"""Weights as bytes, and whether those of a model survive a file."""

from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from statemix.errors import RequestError
from statemix.memory import is_shortage

# Stands behind the name of a complex tensor, which is stored as pairs of real numbers.
_COMPLEX = "#complex"


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
            if is_shortage(error):
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            text = f"weights of the model cannot be stored: {name!r}: {reason}"
            raise RequestError(text) from error
        weights[name] = stored.to(tensor.device)
    before = {name: stored.clone() for name, stored in weights.items()}
    try:
        model.load_state_dict(weights)
    except (RuntimeError, ValueError, TypeError) as error:
        if is_shortage(error):
            raise
        reason = " ".join(str(error).split())
        raise RequestError(f"weights of the model cannot be loaded: {reason}") from error
    for name, tensor in model.state_dict().items():
        if not _bits_equal(tensor, before[name]):
            raise RequestError(
                f"weights of the model must be loaded as they were stored, {name!r} is not"
            )


def _bits_equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and tensor_bytes({"": one}) == tensor_bytes({"": other})


def forms(weights: Mapping[str, Any]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and dtype of each tensor."""
    return {name: (t.shape, t.dtype) for name, t in weights.items() if isinstance(t, Tensor)}


def check_forms(before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Check that weights have the names, shapes and dtypes that they had.

    Raises:
        RequestError: if they have not; the message names one.
    """
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            place = "before" if name not in after else "after"
            which = "with another shape or dtype" if name in before and name in after else "only"
            raise RequestError(
                "weights of the model must be the same before and after a call, got "
                f"{name!r} {which} {place} it"
            )
