"""Recurrences that loop over time in Python, as operators that a graph can call for any length.

A loop has no place in an exported graph unless its number of rounds is known. These operators hide
it. They have no gradients: exported graphs are for inference.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Loop = Callable[..., tuple[Tensor, ...]]


def is_open(length: int) -> bool:
    """Return whether a length is left open by an export."""
    return torch.compiler.is_exporting() and isinstance(length, torch.SymInt)


def register(name: str, loop: Loop, outputs: Loop) -> Callable[..., Any]:
    """Register a loop as the operator ``statemix::name``.

    Args:
        name: name of the operator.
        loop: the function, annotated for ``torch.library.infer_schema``.
        outputs: its results by shape and dtype, from the same arguments.

    Returns:
        The operator, whose results are contiguous and share no memory with its arguments.
    """

    def fresh(*arguments: object) -> tuple[Tensor, ...]:
        found = loop(*arguments)
        return tuple(one.clone(memory_format=torch.contiguous_format) for one in found)

    schema = torch.library.infer_schema(loop, mutates_args=())
    operator = torch.library.custom_op(f"statemix::{name}", fresh, mutates_args=(), schema=schema)
    operator.register_fake(outputs)
    return operator
