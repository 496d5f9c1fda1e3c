"""The sequence layers of a model with their inputs on some tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statemix.layers import Layer, Recurrence


@dataclass(frozen=True)
class Recorded:
    """A sequence layer of a model, and its input on some tokens.

    Attributes:
        name: dotted name of the layer within the model.
        layer: the layer.
        x: its input, shape (B, T, hidden_size). T exceeds the number of tokens by those that the
            model itself prepends.
    """

    name: str
    layer: Layer
    x: Tensor

    def recurrence(self) -> Recurrence | None:
        """Return the layer's recurrence on this input, detached; None if it runs none."""
        with torch.no_grad():
            return self.layer.recurrence(self.x)


def record(model: nn.Module, tokens: Tensor) -> list[Recorded]:
    """Run a model on tokens and return its sequence layers, those inside other layers too.

    Args:
        model: a model whose forward pass takes tokens; it is left in evaluation mode.
        tokens: shape (B, T), integers.

    Returns:
        The layers in the order in which the model defines them, without those that were not called.
    """
    layers = {name: part for name, part in model.named_modules() if isinstance(part, Layer)}
    inputs: dict[str, Tensor] = {}

    def noting(name: str) -> Any:
        def note(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            inputs[name] = arguments[0].detach()

        return note

    hooks = [layer.register_forward_pre_hook(noting(name)) for name, layer in layers.items()]
    try:
        model.eval()
        with torch.no_grad():
            model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return [Recorded(name, layers[name], inputs[name]) for name in layers if name in inputs]
