"""The largest tensor of a forward pass, found without memory."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from statemix.layers.layer import Layer, LayerSpec

# Every layer here works in chunks of at most so many tokens; more of them take time to follow.
_TOKENS = 64


def largest_tensor(
    spec: LayerSpec,
    *,
    hidden_size: int,
    batch_size: int,
    length: int,
    dtype: torch.dtype | None = None,
) -> int:
    """Return the bytes of the largest tensor that a forward pass makes on a CPU, at least.

    Nothing is allocated or computed: the tensors have shapes alone. Unlike those on "meta", they
    choose the kernels of the CPU, whose attention keeps no scores.

    Args:
        spec: the layer.
        hidden_size: width of input and output.
        batch_size: number of sequences.
        length: tokens of each sequence. Of a long one, only the first count.
        dtype: dtype of parameters and activations; None means torch's default.

    Returns:
        The bytes; those of the tensors so far if the layer cannot run on shapes alone.

    Raises:
        ValueError: if the options do not fit the layer.
        TypeError: if an option has the wrong type.
        RuntimeError: if a parameter is larger than any memory.

    Example:
        >>> largest_tensor(LayerSpec("conv", kernel_size=2), hidden_size=4, batch_size=3, length=5)
        288
    """
    with _silent(), FakeTensorMode():
        layer: Layer = spec.build(hidden_size=hidden_size, device="cpu", dtype=dtype)
        x = torch.empty(batch_size, min(length, _TOKENS), hidden_size, dtype=dtype)
        with _Largest() as largest:
            try:
                layer(x)
            except Exception as error:  # noqa: BLE001  running the layer with data will report it
                return 2**63 if "overflow" in str(error) else largest.nbytes
    return largest.nbytes


class _Largest(TorchDispatchMode):
    """Watches the operations, and keeps the bytes of the largest tensor that they have made."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        del types
        kwargs = kwargs or {}
        # A view is no new tensor.
        given = {storage._cdata for storage in _storages((args, kwargs))}
        result: object = func(*args, **kwargs)
        new = [storage for storage in _storages(result) if storage._cdata not in given]
        self.nbytes = max([self.nbytes, *(storage.nbytes() for storage in new)])
        return result


def _storages(tree: object) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextmanager
def _silent() -> Iterator[None]:
    """Keep PyTorch from logging tensors that no machine could hold."""
    log = logging.getLogger(FakeTensorMode.__module__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
