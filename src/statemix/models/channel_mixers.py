"""Position-wise networks that mix the channels of one token; ``CHANNEL_MIXERS`` lists them."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.ops.checks import check_sizes
from statemix.registry import Registry, Spec


class MixerSpec(Spec):
    """A channel mixer by name, with its options."""

    kind = "channel mixer"


class ChannelMixer(nn.Module):
    """Base of channel mixers: maps (..., hidden_size) to the same shape, position by position.

    Its constructor has the parameter ``hidden_size``, the width of input and output, and the
    keywords ``device`` and ``dtype`` of the parameters; its other parameters are its options.
    """

    name: ClassVar[str]

    def zero_biases(self) -> None:
        """Set biases to zero, as the synthetic benchmarks start; by default, do nothing."""


class SwiGLU(ChannelMixer):
    r"""Gated linear unit with SiLU and no biases.

    .. math:: y = W_o (\mathrm{silu}(W_a x) \odot W_b x)

    Source: Shazeer, "GLU variants improve Transformer".

    Args:
        intermediate_size: inner width. None means MAD's: two thirds of four times ``hidden_size``,
            so that it has as many parameters as :class:`MLP`, rounded up to a multiple of 16.
    """

    name = "swiglu"

    def __init__(
        self,
        hidden_size: int,
        *,
        intermediate_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if intermediate_size is None:
            intermediate_size = -(-(8 * hidden_size // 3) // 16) * 16
        check_sizes(hidden_size=hidden_size, intermediate_size=intermediate_size)
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False, **placed)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False, **placed)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False, **placed)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class MLP(ChannelMixer):
    r"""Two linear maps with a GELU between them.

    .. math:: y = W_2 \, \mathrm{gelu}(W_1 x + c_1) + c_2

    Args:
        intermediate_size: inner width. None means four times ``hidden_size``.
    """

    name = "mlp"

    def __init__(
        self,
        hidden_size: int,
        *,
        intermediate_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if intermediate_size is None:
            intermediate_size = 4 * hidden_size
        check_sizes(hidden_size=hidden_size, intermediate_size=intermediate_size)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, device=device, dtype=dtype)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, device=device, dtype=dtype)

    def zero_biases(self) -> None:
        nn.init.zeros_(self.up_proj.bias)
        nn.init.zeros_(self.down_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.gelu(self.up_proj(x)))
        return out


CHANNEL_MIXERS: Registry[type[ChannelMixer]] = Registry(
    "channel mixer", [SwiGLU, MLP], common=("hidden_size", "device", "dtype")
)
"""The channel mixers by name."""
