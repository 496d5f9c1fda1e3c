"""CausalConv: a convolution over the last tokens, the baseline without a recurrence."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from statemix.layers.gated_recurrence import check_slice
from statemix.layers.layer import Flops
from statemix.layers.padded import PaddedLayer, last_inputs, reset_linear
from statemix.ops.checks import check_placement, check_sizes, check_switches
from statemix.ops.sequence_parallel import state_before


class CausalConv(PaddedLayer):
    r"""Causal convolution, dense or depthwise.

    .. math::
        y_t = c + \sum_{j=0}^{K-1} W_j\, x_{t-K+1+j}

    with matrices W_j, diagonal if ``depthwise``. It sees K tokens and nothing before them, so that
    it bounds what a layer can do without remembering.

    Source: the convolution of Dubinin et al., Figure 6, who do not say whether it is dense.

    Args:
        kernel_size: number K of taps.
        depthwise: whether each channel sees only itself.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state (B, K - 1, hidden_size): the last
        inputs, in order of time.

    Example:
        >>> layer = CausalConv(hidden_size=8, kernel_size=4)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y.shape, state.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 3, 8]))
    """

    name = "conv"
    entry = "conv"
    sliceable = True

    def __init__(
        self,
        hidden_size: int,
        *,
        kernel_size: int,
        depthwise: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size, kernel_size=kernel_size)
        check_switches(depthwise=depthwise)
        check_placement(device, dtype)
        self.hidden_size = hidden_size
        self.kernel_size = kernel_size
        self.depthwise = depthwise
        groups = hidden_size if depthwise else 1
        self.conv = nn.Conv1d(
            hidden_size, hidden_size, kernel_size, groups=groups, device=device, dtype=dtype
        )

    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        *,
        group: "dist.ProcessGroup | None" = None,
    ) -> tuple[Tensor, Tensor]:
        if group is not None:
            check_slice(group, cu_seqlens)
            num_sequences = self._check_sequence(x, state, None)
            if state is None:
                state = self.init_state(num_sequences, x.device, x.dtype)
            # The last inputs are a state of one unit, whose channels share what a token does to it.
            unit = state.unsqueeze(1)
            if self.kernel_size > 1:
                unit = state_before(self._moved_on, x.new_empty(0), x, unit, group=group)
            state = unit.squeeze(1)
        y, after = super().forward(x, state, cu_seqlens)
        return y, after

    def _moved_on(self, unused: Tensor, x: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
        """Advance the last inputs as an operator of :func:`state_before`."""
        window = torch.cat([initial_state[:, 0], x.to(initial_state.dtype)], 1)
        return unused, last_inputs(window, self.kernel_size - 1, None).unsqueeze(1)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters as ``torch.nn.Conv1d`` does."""
        reset_linear(self.conv, generator)

    def zero_biases(self) -> None:
        """Set the bias c to zero."""
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]

    @property
    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.kernel_size - 1, self.hidden_size),)

    def flops_per_token(self, length: int) -> Flops:
        del length
        inputs = 1 if self.depthwise else self.hidden_size
        weights = self.kernel_size * inputs * self.hidden_size
        return Flops(projections=2 * weights, transition=0, other=0)

    def _run(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if x.numel() == 0:  # torch.nn.Conv1d refuses windows shorter than its kernel
            return self._linked(x), state
        window = torch.cat([state.to(x.dtype), x], 1)
        y = self.conv(window.mT).mT
        exact = torch.cat([state, x.to(state.dtype)], 1)
        return y, last_inputs(exact, self.kernel_size - 1, lengths)
