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

from statemix.interrupts import Interrupts
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

    The first Ctrl-C or SIGTERM waits until the end: an error that a handler raises within such an
    operation aborts the process.

    Args:
        spec: the layer.
        hidden_size: width of input and output.
        batch_size: number of sequences.
        length: tokens of each sequence. Of a long one, only the first count.
        dtype: dtype of parameters and activations; None means torch's default.

    Returns:
        The bytes; those of the tensors so far if the layer cannot run on shapes alone.

    Raises:
        OptionError: if the options do not fit the layer.
        KeyboardInterrupt: after Ctrl-C or SIGTERM.

    Example:
        >>> largest_tensor(LayerSpec("conv", kernel_size=2), hidden_size=4, batch_size=3, length=5)
        288
    """
    with Interrupts() as interrupts:
        found = _followed(spec, hidden_size, batch_size, length, dtype)
    interrupts.check()
    return found


def _followed(
    spec: LayerSpec, hidden_size: int, batch_size: int, length: int, dtype: torch.dtype | None
) -> int:
    largest = _Largest()
    with _silent(), FakeTensorMode():
        try:
            layer: Layer = spec.build(hidden_size=hidden_size, device="cpu", dtype=dtype)
        except (ValueError, TypeError):
            raise
        except Exception as error:  # noqa: BLE001  building the layer with data will report it
            return _if_overflown(error)
        x = torch.empty(batch_size, min(length, _TOKENS), hidden_size, dtype=dtype)
        try:
            with largest:
                layer(x)
        except Exception as error:  # noqa: BLE001  running the layer with data will report it
            return max(largest.nbytes, _if_overflown(error))
    return largest.nbytes


def _if_overflown(error: Exception) -> int:
    """Return more bytes than PyTorch can count if it could not count them, otherwise 0."""
    return 2**63 if "overflow" in str(error) else 0


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches the operations, and keeps the bytes of the largest tensor that they have made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
