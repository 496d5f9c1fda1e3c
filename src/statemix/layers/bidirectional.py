"""Bidirectional: two layers, of which the second reads every sequence from its end."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from statemix.errors import OptionError
from statemix.layers.checking import check_once
from statemix.layers.layer import Layer
from statemix.layers.state import State
from statemix.ops.checks import check_choice
from statemix.ops.packing import pack, positions, unpack

Combine = Literal["concat", "sum"]


class Bidirectional(nn.Module):
    """Two layers over the same sequences, one from the first token on and one from the last.

    It does what ``bidirectional=True`` does in ``torch.nn.LSTM``. Each token sees its whole
    sequence, so there is no step, and no state is carried from one call to the next. Every sequence
    is reversed by itself: padding and other packed sequences change nothing.

    Args:
        forward_layer: layer that reads from the first token on.
        backward_layer: layer that reads from the last token on, of the same ``hidden_size``.
        combine: "concat" puts the outputs of ``forward_layer`` before those of ``backward_layer``,
            as PyTorch does; "sum" adds them.

    Shape:
        x (B, T, hidden_size) -> y (B, T, 2 * hidden_size), or with "sum" (B, T, hidden_size).

    Example:
        >>> from statemix.layers import BDLRU
        >>> layers = [BDLRU(hidden_size=8, num_blocks=4, block_size=2) for _ in range(2)]
        >>> both = Bidirectional(*layers)
        >>> mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
        >>> y, (first, last) = both(torch.randn(2, 5, 8), attention_mask=mask)
        >>> y.shape, first.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 4, 2]))
    """

    def __init__(
        self, forward_layer: Layer, backward_layer: Layer, *, combine: Combine = "concat"
    ) -> None:
        super().__init__()
        for layer in (forward_layer, backward_layer):
            if not isinstance(layer, Layer):
                raise TypeError(f"both parts must be a Layer, got {type(layer).__name__}")
        widths = forward_layer.hidden_size, backward_layer.hidden_size
        if widths[0] != widths[1]:
            raise OptionError(f"both layers must have the same hidden_size, got {widths}")
        check_choice("combine", combine, list(get_args(Combine)))
        self.forward_layer, self.backward_layer = forward_layer, backward_layer
        self.combine = combine

    def forward(
        self, x: Tensor, *, cu_seqlens: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[State, State]]:
        """Run over whole, packed or padded sequences.

        Args:
            x: shape (B, T, hidden_size).
            cu_seqlens: bounds of N sequences packed into one row (B = 1), shape (N+1,).
            attention_mask: 1 for tokens and 0 for padding, shape (B, T), bool or integer; padding
                may be anywhere in a row.

        Returns:
            y: outputs, with zeros at padding.
            states: the state of ``forward_layer`` after the last token of each sequence, and that
                of ``backward_layer`` after the first token.

        Raises:
            ValueError, TypeError: as in :meth:`Layer.forward`, or for bounds beside a mask.
        """
        if attention_mask is not None:
            if cu_seqlens is not None:
                raise ValueError("attention_mask must be None with cu_seqlens")
            packed, bounds = pack(x, attention_mask)
            y, states = self(packed, cu_seqlens=bounds)
            return unpack(y, attention_mask), states
        if cu_seqlens is not None:
            check_once(self.forward_layer, x)
            check_once(self.backward_layer, x)
        first, last = self.forward_layer(x, None, cu_seqlens)  # which checks the arguments
        places = torch.arange(x.shape[1] - 1, -1, -1, device=x.device)
        if cu_seqlens is not None:
            sequence, position = positions(cu_seqlens, x.shape[1])
            places = cu_seqlens[sequence + 1] - 1 - position
        second, begun = self.backward_layer(x[:, places], None, cu_seqlens)
        second = second[:, places]
        y = first + second if self.combine == "sum" else torch.cat([first, second], dim=-1)
        return y, (last, begun)

    def extra_repr(self) -> str:
        return f"combine={self.combine!r}"
