"""One block of a model: a sequence layer and a channel mixer, each normalised and residual."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from statemix.layers import Layer, LayerSpec, State
from statemix.models.channel_mixers import MixerSpec

Norm = Literal["rms", "layer", "none"]

NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "rms": lambda hidden_size: nn.RMSNorm(hidden_size, eps=1e-5),
    "layer": lambda hidden_size: nn.LayerNorm(hidden_size, eps=1e-5),
    "none": lambda _: nn.Identity(),
}
"""Name -> maker of a normalisation of a width."""


class Block(nn.Module):
    r"""A sequence layer and, if there is one, a channel mixer.

    .. math::
        x \leftarrow x + \mathrm{layer}(\mathrm{norm}(x)), \qquad
        x \leftarrow x + \mathrm{mixer}(\mathrm{norm}(x))

    Args:
        hidden_size: width of the residual stream.
        layer: the sequence layer.
        channel_mixer: position-wise network after the layer; None means no network.
        norm: normalisation before each part.
        residual: add the input of each part to its output.

    Shape:
        x (B, T, hidden_size), state of the layer or None -> the same shapes.
    """

    def __init__(
        self,
        hidden_size: int,
        layer: LayerSpec,
        channel_mixer: MixerSpec | None,
        *,
        norm: Norm,
        residual: bool,
    ) -> None:
        super().__init__()
        self.residual = residual
        self.norm = NORMS[norm](hidden_size)
        self.layer: Layer = layer.build(hidden_size=hidden_size)
        self.mixer = self.mixer_norm = None
        if channel_mixer is not None:
            self.mixer = channel_mixer.build(hidden_size=hidden_size)
            self.mixer_norm = NORMS[norm](hidden_size)

    def zero_biases(self) -> None:
        """Ask the parts to start with zero biases."""
        self.layer.zero_biases()
        if self.mixer is not None:
            self.mixer.zero_biases()

    def forward(
        self, x: Tensor, state: State | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, State]:
        y, state = self.layer(self.norm(x), state, cu_seqlens)
        x = x + y if self.residual else y
        if self.mixer is not None and self.mixer_norm is not None:
            y = self.mixer(self.mixer_norm(x))
            x = x + y if self.residual else y
        return x, state
