"""States of layers as trees of tensors, and operations that need not know their parts."""

import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from statemix.ops.checks import bind, check_dense, check_floating, check_placement
from statemix.ops.layout import at_least_float32

Kind = TypeVar("Kind")

State = Any
"""A tensor, or a NamedTuple (or tuple) of states; the batch is the first axis of every tensor.

A layer's state is opaque: pass it from one call, or from ``init_state``, to the next.
"""


def map_state(function: Callable[..., Tensor], state: State, *others: State) -> State:
    """Apply a function to the corresponding tensors of states of the same structure.

    The results become another state of that structure. A TypeError names a state that is none.
    """
    if isinstance(state, Tensor):
        return function(state, *others)
    if not isinstance(state, tuple):
        raise TypeError(f"state must be a tensor or a NamedTuple, got {type(state).__name__}")
    parts = [map_state(function, *these) for these in zip(state, *others, strict=True)]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def loadable(kind: type[Kind]) -> type[Kind]:
    """Let ``torch.load`` read states of a class as it is by default, with ``weights_only=True``."""
    torch.serialization.add_safe_globals([kind])
    return kind


def owned(part: Tensor) -> Tensor:
    """Return a copy that keeps no other memory; asking whether a part is a view costs as much."""
    return part.clone(memory_format=torch.contiguous_format)


def tensors(state: State, name: str = "state") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a state with its name, such as ``state.h`` or ``state.0``."""
    if isinstance(state, Tensor):
        yield name, state
        return
    if not isinstance(state, tuple):
        raise TypeError(f"{name} must be a tensor or a NamedTuple, got {type(state).__name__}")
    for part_name, part in zip(getattr(state, "_fields", range(len(state))), state, strict=True):
        yield from tensors(part, f"{name}.{part_name}")


def take_rows(state: State, rows: Tensor) -> State:
    """Select, repeat or reorder the sequences of a state.

    Args:
        state: the state of B sequences.
        rows: indices of the sequences wanted, shape (N,), int32 or int64, on the state's device.
            Indices may repeat, as in beam search.

    Returns:
        The state of N sequences, differentiable.

    Raises:
        ValueError: if ``rows`` has another shape or device, or (on the CPU) an index is out of
            range.
        TypeError: if ``rows`` is not a tensor of indices, or ``state`` not one of dense tensors.

    Example:
        >>> import torch
        >>> state = torch.tensor([[1.0], [2.0]])
        >>> take_rows(state, torch.tensor([1, 1, 0])).flatten().tolist()
        [2.0, 2.0, 1.0]
    """
    bind({}, "rows", rows, "N")
    if rows.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"rows must be int32 or int64, got {rows.dtype}")

    def taken(tensor: Tensor) -> Tensor:
        check_dense("state", tensor)
        if tensor.ndim == 0:
            raise ValueError("state must have a batch axis, got a tensor of shape ()")
        if rows.device != tensor.device:
            raise ValueError(f"rows must be on {tensor.device}, got {rows.device}")
        try:
            return tensor.index_select(0, rows)
        except (IndexError, RuntimeError) as error:
            if "bounds" not in str(error) and not isinstance(error, IndexError):
                raise
            raise ValueError(f"rows must be in 0..{len(tensor) - 1}, got {rows}") from error

    return map_state(taken, state)


def check_like(state: State, template: State, num_sequences: int, axis: str) -> None:
    """Check structure, shapes and dtypes of a state with ``num_sequences`` rows against another."""
    check_structure("state", state, template)
    for (name, tensor), (_, like) in zip(tensors(state), tensors(template), strict=True):
        check_dense(name, tensor)
        wanted = (num_sequences, *like.shape[1:])
        if tensor.shape != wanted:
            shape = ", ".join([f"{axis}={num_sequences}", *map(str, like.shape[1:])])
            raise ValueError(f"{name} must have shape ({shape}), got {tuple(tensor.shape)}")
        if like.dtype.is_floating_point:
            check_floating(name, tensor)
        elif tensor.dtype.is_floating_point:
            raise TypeError(f"{name} must have an integer dtype, got {tensor.dtype}")


def check_structure(name: str, state: State, template: State) -> None:
    """Check that a state has the structure of a template; messages call the state ``name``."""
    if isinstance(template, Tensor):
        if not isinstance(state, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(state).__name__}")
        return
    if type(state) is not type(template):
        raise TypeError(f"{name} must be a {type(template).__name__}, got {type(state).__name__}")
    if len(state) != len(template):
        raise TypeError(f"{name} must have {len(template)} parts, got {len(state)}")
    names = getattr(template, "_fields", range(len(template)))
    for part_name, part, like in zip(names, state, template, strict=True):
        check_structure(f"{name}.{part_name}", part, like)


def zero_states(
    layer: nn.Module,
    batch_size: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    *shapes: tuple[int, ...],
) -> tuple[Tensor, ...]:
    """Return the zeros of ``init_state``; None means the device or dtype of :func:`placement`."""
    # While torch.jit.trace runs, sizes are tensors.
    traced = isinstance(batch_size, Tensor) and torch._C._get_tracing_state() is not None
    if isinstance(batch_size, bool) or not (traced or isinstance(batch_size, int | torch.SymInt)):
        raise TypeError(f"batch_size must be an int, got {batch_size!r}")
    # A symbolic size would become a guard of the compiled graph.
    if isinstance(batch_size, int) and not 0 <= batch_size < 2**31:
        raise ValueError(f"batch_size must be in 0..2^31 - 1, got {reprlib.repr(batch_size)}")
    check_placement(device, dtype)
    if device is None or dtype is None:
        known_device, known_dtype = placement(layer)
        device, dtype = device or known_device, dtype or known_dtype
    dtype = at_least_float32(dtype)
    return tuple(torch.zeros((batch_size, *shape), device=device, dtype=dtype) for shape in shapes)


def placement(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return the device and the widest dtype of a module's parameters and buffers.

    Offloaded tensors are on "meta": another device counts if there is one.
    """
    known = [one for one in (*module.parameters(), *module.buffers()) if one.is_floating_point()]
    devices = [one.device for one in known if not one.is_meta] or [one.device for one in known]
    widened = (at_least_float32(one.dtype) for one in known)
    return (
        devices[0] if devices else torch.device("cpu"),
        reduce(torch.promote_types, widened, torch.float32),
    )


@contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and all its parts back into their modes at the end."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
