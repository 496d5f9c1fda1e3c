"""Position-wise networks that mix the channels of one token, by name."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

ChannelMixer = Literal["none", "swiglu", "mlp"]

# MAD's inner widths are multiples of this, for the tensor cores of GPUs.
_MULTIPLE = 16


class SwiGLU(nn.Module):
    r"""Gated linear unit with SiLU and no biases.

    .. math:: y = W_o (\mathrm{silu}(W_a x) \odot W_b x)

    Source: Shazeer, "GLU variants improve Transformer". The inner width is MAD's: two thirds of
    four times ``hidden_size``, so that its parameters number those of :class:`MLP`, rounded up to
    a multiple of 16.

    Args:
        hidden_size: width of the input and output.

    Shape:
        x (..., hidden_size) -> y (..., hidden_size).
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        inner = 8 * hidden_size // 3
        inner = -(-inner // _MULTIPLE) * _MULTIPLE
        self.gate_proj = nn.Linear(hidden_size, inner, bias=False)
        self.up_proj = nn.Linear(hidden_size, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class MLP(nn.Module):
    r"""Two linear maps with a GELU between them, four times as wide inside.

    .. math:: y = W_2 \, \mathrm{gelu}(W_1 x + c_1) + c_2

    Args:
        hidden_size: width of the input and output.

    Shape:
        x (..., hidden_size) -> y (..., hidden_size).
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, 4 * hidden_size)
        self.down_proj = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.gelu(self.up_proj(x)))
        return out


CHANNEL_MIXERS: dict[ChannelMixer, Callable[[int], nn.Module] | None] = {
    "none": None,
    "swiglu": SwiGLU,
    "mlp": MLP,
}
