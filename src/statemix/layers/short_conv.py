"""A short depthwise causal convolution with SiLU, as DeltaNet and Mamba-2 apply before mixing."""

import torch
from torch import Tensor, nn

from statemix.layers.padded import last_inputs
from statemix.ops import flops
from statemix.ops.layout import at_least_float32


class ShortConvolution(nn.Module):
    r"""Depthwise causal convolution followed by SiLU; a part of layers, not a layer itself.

    .. math::
        y_t = \mathrm{silu}\Big(c + \sum_{j=0}^{K-1} w_j \odot x_{t-K+1+j}\Big)

    Source: Fu et al. (2023), Gu and Dao (2023). It computes in float32 or wider.

    Args:
        channels: number of channels.
        kernel_size: number K of taps. 0 leaves only SiLU.
        bias: whether to learn c.

    Shape:
        x (B, T, channels) -> y (B, T, channels), state (B, max(K - 1, 0), channels): the last
        inputs, in order of time. Outputs and states are float32 or wider.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels = channels
        self.kernel_size = kernel_size
        self.num_kept = max(kernel_size - 1, 0)
        self.weight = self.bias = None
        if kernel_size:
            weight = torch.empty(kernel_size, channels, device=device, dtype=dtype)
            self.weight = nn.Parameter(weight)
        if kernel_size and bias:
            self.bias = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw the parameters, uniformly in +-1/sqrt(kernel_size)."""
        for parameter in self.parameters():
            bound = self.kernel_size**-0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    @property
    def flops_per_token(self) -> int:
        """FLOPs of one token."""
        return self.channels * (2 * self.kernel_size + flops.SILU)

    def forward(
        self, x: Tensor, state: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run over rows of tokens, of which ``lengths`` (B,), or all, count for the state."""
        dtype = torch.promote_types(at_least_float32(x.dtype), state.dtype)
        window = torch.cat([state.to(dtype), x.to(dtype)], 1)
        if self.weight is None:
            y = window
        else:
            y = sum_over_taps(window, self.weight.to(dtype))
            if self.bias is not None:
                y = y + self.bias.to(dtype)
        kept = last_inputs(window, self.num_kept, lengths).to(state.dtype)
        return nn.functional.silu(y), kept


def sum_over_taps(window: Tensor, weight: Tensor) -> Tensor:
    r"""Return :math:`y_t = \sum_j w_j \odot x_{t+j}` of x (B, T + K - 1, channels)."""
    length = window.shape[1] - len(weight) + 1
    if window.is_cpu and length:
        # With the channels innermost in memory, a convolution of images of height 1 is three to
        # five times as fast as shifted sums or a convolution of sequences.
        images = window.mT.unsqueeze(2)
        y = nn.functional.conv2d(images, weight.mT[:, None, None], groups=weight.shape[1])
        return y.squeeze(2).mT
    return shifted_sum(window, weight, length)


def shifted_sum(window: Tensor, weight: Tensor, length: int) -> Tensor:
    """Return the same sum without a convolution, which would round to TF32 on a GPU."""
    taps = (weight[j] * window[:, j : j + length] for j in range(1, len(weight)))
    return sum(taps, weight[0] * window[:, :length])
