"""Calls of a layer with plain tensors in and out, as ``torch.export`` and what builds on it want.

The graph of a decoding step has only operators of PyTorch. That of whole sequences of any length
calls the library's own, which are registered by ``import statemix.layers``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from statemix.layers.layer import Layer, used_weight
from statemix.layers.state import map_state, owned, placement, tensors
from statemix.ops.checks import check_sizes


class _Call(nn.Module):
    """Base of both kinds of calls."""

    _axes: tuple[str, ...] = ()

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        if not isinstance(layer, Layer):
            raise TypeError(f"layer must be a Layer, got {type(layer).__name__}")
        self.layer = layer
        self.eval()

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        template = self.layer.init_state(1, device="meta")
        wanted = sum(1 for _ in tensors(template))
        if len(state) != wanted:
            raise ValueError(f"state must be {wanted} tensors, got {len(state)}")
        rest = iter(state)
        call = self.layer if self._axes else self.layer.step
        y, after = call(x, map_state(lambda _: next(rest), template))
        return y, *(part for _, part in tensors(after))

    def dynamic_shapes(self) -> dict[str, Any]:
        """Return the axes that may have any size, as ``torch.export.export`` wants them.

        They are the batch, "B", the tokens of whole sequences, "T", and those of a growing state,
        "S".
        """
        batch, growing = Dim("B", min=1), Dim("S", min=0)
        state = []
        for (_, short), (_, long) in zip(
            tensors(self.layer.state_after(3)), tensors(self.layer.state_after(5)), strict=True
        ):
            sizes = enumerate(zip(short.shape, long.shape, strict=True))
            longer = {axis: growing for axis, (before, after) in sizes if before != after}
            state.append({0: batch, **longer})
        axes = {axis: Dim(name, min=1) for axis, name in enumerate(self._axes, 1)}
        return {"x": {0: batch, **axes}, "state": tuple(state)}

    def _example(self, batch_size: int, *length: int) -> tuple[Tensor, ...]:
        check_sizes(batch_size=batch_size)
        device, dtype = placement(self.layer)
        weight = used_weight(self.layer._modules.get(self.layer.entry))
        dtype = dtype if weight is None else weight.dtype
        x = torch.zeros(batch_size, *length, self.layer.hidden_size, device=device, dtype=dtype)
        # A state that grows must have begun to, or its length would look like a constant.
        parts = [part for _, part in tensors(self.layer.state_after(3))]
        state = [
            torch.zeros(batch_size, *part.shape[1:], device=device, dtype=part.dtype)
            for part in parts
        ]
        return x, *state


class DecodeStep(_Call):
    """``Layer.step`` with a state of plain tensors, in a graph of PyTorch's own operators.

    If the layer names a backend, the graph keeps it, as an operator of this library. Layers that
    iterate take as many iterations as their budget allows.

    Args:
        layer: the layer. Its parameters are shared, and it is put into evaluation mode.

    Shape:
        x (B, hidden_size) and the tensors of the state -> y (B, hidden_size) and the tensors of the
        next state.

    Example:
        >>> from statemix.layers import BDLRU
        >>> step = DecodeStep(BDLRU(hidden_size=8, num_blocks=4, block_size=2))
        >>> program = torch.export.export(
        ...     step, step.inputs(), dynamic_shapes=step.dynamic_shapes()
        ... )
        >>> y, state = program.module()(torch.randn(3, 8), torch.zeros(3, 4, 2))
        >>> y.shape, state.shape
        (torch.Size([3, 8]), torch.Size([3, 4, 2]))
    """

    def inputs(self, batch_size: int = 2) -> tuple[Tensor, ...]:
        """Return examples of all arguments: zeros, on the device of the layer.

        Args:
            batch_size: number of sequences.

        Returns:
            x, shape (batch_size, hidden_size), in the dtype of the parameters, and the tensors of a
            state; a growing state holds three tokens.
        """
        return self._example(batch_size)


class WholeSequence(_Call):
    """``Layer.forward`` with a state of plain tensors, in a graph for any number of tokens.

    Layers that iterate must have ``max_iterations``, and no ``window``: a graph always takes that
    many iterations. Layers that loop over time are operators of this library in the graph, which
    has no gradients there. It is exported as :class:`DecodeStep` is.

    Args:
        layer: the layer. Its parameters are shared, and it is put into evaluation mode.

    Shape:
        x (B, T, hidden_size) and the tensors of the state -> y (B, T, hidden_size) and the tensors
        of the state after the last token.
    """

    _axes = ("T",)

    def inputs(self, batch_size: int = 2, length: int = 7) -> tuple[Tensor, ...]:
        """Return examples as :meth:`DecodeStep.inputs` does: x (batch_size, length, hidden_size).

        Args:
            batch_size: number of sequences.
            length: tokens of a sequence.
        """
        check_sizes(length=length)
        return self._example(batch_size, length)


def is_open(length: int) -> bool:
    """Return whether a length is left open by an export."""
    return torch.compiler.is_exporting() and isinstance(length, torch.SymInt)


def register_loop(name: str, loop: Callable[..., Any], outputs: Any) -> Callable[..., Any]:
    """Register ``statemix::name``; ``outputs`` returns the shapes and dtypes of its results."""

    def fresh(*arguments: object) -> tuple[Tensor, ...]:
        return tuple(map(owned, loop(*arguments)))

    schema = torch.library.infer_schema(loop, mutates_args=())
    operator = torch.library.custom_op(f"statemix::{name}", fresh, mutates_args=(), schema=schema)
    operator.register_fake(outputs)
    return operator
