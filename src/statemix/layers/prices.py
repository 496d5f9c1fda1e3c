"""The price of a layer, without measurements: parameters, state, FLOPs and bytes of a token."""

from dataclasses import dataclass

import torch

from statemix.layers.layer import Flops, Layer, LayerSpec
from statemix.layers.option_checks import check_sizes
from statemix.layers.state import tensors


@dataclass(frozen=True)
class Price:
    """What token number ``length`` of one sequence costs.

    Attributes:
        num_parameters: entries of all parameters.
        state_size: entries of the state after this token, those of short convolutions and caches
            included.
        state_bytes: bytes of that state, which is float32 or wider.
        flops: FLOPs of the forward pass for this token; None if the layer does not count them.
        decode_bytes: bytes that decoding this token moves if no other sequence shares the weights:
            every parameter and the state before are read, and the state after is written. Of a
            state that grows, only the new part is written.
    """

    num_parameters: int
    state_size: int
    state_bytes: int
    flops: Flops | None
    decode_bytes: int


def price(
    spec: LayerSpec, *, hidden_size: int, length: int, dtype: torch.dtype | None = None
) -> Price:
    """Return the price of a layer. Nothing is allocated or computed.

    Args:
        spec: the layer.
        hidden_size: width of input and output.
        length: number of the priced token in its sequence, from 1. It matters to layers whose state
            grows.
        dtype: dtype of the parameters; None means torch's default.

    Example:
        >>> paid = price(LayerSpec("lstm"), hidden_size=256, length=1)
        >>> paid.state_size, paid.flops.transition == 8 * 256**2 + 25 * 256
        (512, True)
    """
    check_sizes(length=length)
    layer: Layer = spec.build(hidden_size=hidden_size, device="meta", dtype=dtype)
    _, before = _size(layer, length - 1)
    entries, after = _size(layer, length)
    parameters = list(layer.parameters())
    read = sum(parameter.nbytes for parameter in parameters) + before
    return Price(
        num_parameters=sum(parameter.numel() for parameter in parameters),
        state_size=entries,
        state_bytes=after,
        flops=layer.flops_per_token(length),
        decode_bytes=read + (after - before if after > before else after),
    )


def _size(layer: Layer, length: int) -> tuple[int, int]:
    """Return the entries and the bytes of the state after so many tokens."""
    parts = [part for _, part in tensors(layer.state_after(length))]
    return sum(part.numel() for part in parts), sum(part.nbytes for part in parts)
