"""One block of a model: a sequence layer and a channel mixer, each normalised and residual."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from statemix.layers import Layer, LayerSpec, State
from statemix.models.channel_mixers import ChannelMixer, MixerSpec

Norm = Literal["rms", "layer", "none"]

NORMS: dict[Norm, Callable[..., nn.Module]] = {
    "rms": lambda hidden_size, **placement: nn.RMSNorm(hidden_size, eps=1e-5, **placement),
    "layer": lambda hidden_size, **placement: nn.LayerNorm(hidden_size, eps=1e-5, **placement),
    "none": lambda _, **_placement: nn.Identity(),
}
"""Name -> maker of a normalisation of a width, which also takes ``device`` and ``dtype``."""


class Block(nn.Module):
    r"""A sequence layer (the mixer) and, if there is one, a channel mixer.

    .. math::
        x \leftarrow x + \mathrm{mixer}(\mathrm{norm}(x)), \qquad
        x \leftarrow x + \mathrm{channel\_mixer}(\mathrm{norm}(x))

    Args:
        hidden_size: width of the residual stream.
        mixer: sequence layer.
        channel_mixer: position-wise network after the sequence layer; None means no network.
        norm: normalisation before each part: "rms", "layer" or "none".
        residual: add the input of each part to its output.
        dropout: probability with which training zeroes an entry of a part's output.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shape:
        x (B, T, hidden_size), state of the mixer or None -> the same shapes.

    Raises:
        ValueError: if ``dropout`` is not in 0..1 or a part refuses an option.

    Example:
        >>> block = Block(8, LayerSpec("bd_lru", num_blocks=4, block_size=2), MixerSpec("swiglu"))
        >>> y, state = block(torch.randn(2, 5, 8))
        >>> y.shape, type(block.mixer).__name__, type(block.channel_mixer).__name__
        (torch.Size([2, 5, 8]), 'BDLRU', 'SwiGLU')
    """

    def __init__(
        self,
        hidden_size: int,
        mixer: LayerSpec,
        channel_mixer: MixerSpec | None = None,
        *,
        norm: Norm = "rms",
        residual: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        placement = placement_of(device, dtype)
        self.residual = residual
        self.dropout = nn.Dropout(dropout)
        self.norm = NORMS[norm](hidden_size, **placement)
        self.mixer: Layer = mixer.build(hidden_size=hidden_size, **placement)
        self.channel_mixer: ChannelMixer | None = None
        self.channel_norm: nn.Module | None = None
        if channel_mixer is not None:
            self.channel_mixer = channel_mixer.build(hidden_size=hidden_size, **placement)
            self.channel_norm = NORMS[norm](hidden_size, **placement)

    def zero_biases(self) -> None:
        """Ask the parts to start with zero biases."""
        self.mixer.zero_biases()
        if self.channel_mixer is not None:
            self.channel_mixer.zero_biases()

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        y, state = self.mixer(self.norm(x), state, cu_seqlens)
        x = self._added(x, y)
        if self.channel_mixer is not None and self.channel_norm is not None:
            x = self._added(x, self.channel_mixer(self.channel_norm(x)))
        return x, state

    def _added(self, x: Tensor, y: Tensor) -> Tensor:
        y = self.dropout(y)
        return x + y if self.residual else y


def placement_of(device: torch.device | str | None, dtype: torch.dtype | None) -> dict[str, Any]:
    """Return the arguments ``device`` and ``dtype`` of a constructor, without those left open."""
    given = {"device": device, "dtype": dtype}
    return {name: value for name, value in given.items() if value is not None}
