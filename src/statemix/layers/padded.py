"""Common base and parts of the baselines: padded groups, norms, weights, convolutions."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import rnn

from statemix.layers.layer import Layer
from statemix.layers.state import State, map_state, owned, take_rows, zero_states
from statemix.ops import flops
from statemix.ops.checks import check_cu_seqlens_values
from statemix.ops.layout import at_least_float32


class PaddedLayer(Layer):
    """A layer that computes packed sequences in groups, padded to the longest of each group.

    Packed sequences cost at most twice as much as their tokens, and read ``cu_seqlens`` on the
    host. ``state_class`` is the NamedTuple of a state; None means that the state is one tensor.
    """

    state_class: ClassVar[Callable[..., State] | None] = None

    @property
    @abstractmethod
    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of every tensor in the state of one sequence."""

    @abstractmethod
    def _run(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Run over rows of tokens x (B, T, hidden_size), T >= 1; return outputs and final states.

        ``lengths`` (B,) are the tokens of each row, at least 1 and never rising; the others are
        padding, whose outputs are arbitrary. None means T in every row. States are float32 or
        wider, and keep their dtypes.
        """

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        num_sequences = self._check_sequence(x, state, cu_seqlens)
        if cu_seqlens is not None:
            check_cu_seqlens_values(cu_seqlens, x.shape[1])
        if state is None:
            state = self.init_state(num_sequences, x.device, x.dtype)
        state = map_state(lambda part: part.to(at_least_float32(part.dtype)), state)
        if x.shape[1] == 0:
            return self._linked(x), map_state(owned, state)
        if cu_seqlens is None:
            return self._run(x, state, None)
        lengths = cu_seqlens.diff().tolist()
        pieces = torch.split(x[0], lengths)
        groups = groups_of_like_length(lengths)
        outputs, after = list(pieces), []
        for group in groups:
            carried = take_rows(state, torch.tensor(group, device=x.device))
            if lengths[group[0]]:
                rows = rnn.pad_sequence([pieces[n] for n in group], batch_first=True)
                sizes = torch.tensor([lengths[n] for n in group], device=x.device)
                y, carried = self._run(rows, carried, sizes)
                for n, row in zip(group, y, strict=True):
                    outputs[n] = row[: lengths[n]]
            after.append(carried)
        order = torch.tensor([n for group in groups for n in group], device=x.device)
        final = map_state(lambda *parts: _joined(parts)[order.argsort()], *after)
        # Autocast gives the others another dtype than that of an empty piece of x.
        written = [part for part, length in zip(outputs, lengths, strict=True) if length]
        return torch.cat(written).unsqueeze(0), final

    def _linked(self, nothing: Tensor) -> Tensor:
        """Return a tensor without entries as an output that may be differentiated."""
        # Quantised layers have no parameters.
        return nothing * next(self.parameters(), nothing).sum()

    def init_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        zeros = zero_states(self, batch_size, device, dtype, *self._state_shapes)
        return zeros[0] if self.state_class is None else self.state_class(*zeros)

    def step(self, x_t: Tensor, state: State | None) -> tuple[Tensor, State]:
        self._check_step(x_t, state)
        # Hooks on the layer, such as those that offload, run only if the module is called.
        y, state = self(x_t.unsqueeze(1), state)
        return y.squeeze(1), state


def groups_of_like_length(lengths: Sequence[int]) -> list[list[int]]:
    """Divide sequences into groups, longest first; at most half of a padded group is padding.

    The longest of a group is less than half as long as that of the group before.
    """
    groups: list[list[int]] = []
    longest = total = 0
    for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        total += lengths[n]
        fits = groups and longest * (len(groups[-1]) + 1) <= 2 * total
        # Empty sequences keep to themselves: they need no computation.
        if not fits or (lengths[n] == 0 < longest):
            groups.append([])
            longest = total = lengths[n]
        groups[-1].append(n)
    return groups


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate parts of states; those that grow are padded with zeros to the longest."""
    longest = max(part.shape[1:] for part in parts)
    padded = [
        functional.pad(part, [0, 0] * (part.ndim - 2) + [0, longest[0] - part.shape[1]])
        for part in parts
    ]
    return torch.cat(padded)


def valid_tokens(x: Tensor, lengths: Tensor) -> Tensor:
    """Return which tokens of x (B, T, ...) are no padding: shape (B, T), bool."""
    return torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)


def last_inputs(window: Tensor, count: int, lengths: Tensor | None) -> Tensor:
    """Return the last ``count`` inputs of each row of a window (B, count + T, channels).

    ``lengths`` (B,) are the tokens of each row; None means T.
    """
    if lengths is None:
        return owned(window[:, window.shape[1] - count :])
    places = lengths.unsqueeze(1) + torch.arange(count, device=window.device)
    return window.gather(1, places.unsqueeze(-1).expand(-1, -1, window.shape[2]))


def unit_length(x: Tensor) -> Tensor:
    r"""Return :math:`x / \sqrt{|x|^2 + 10^{-6}}` over the last axis, as flash-linear-attention."""
    return _normalised(x, 1.0, 1e-6, 1.0)


def rms_norm(x: Tensor, weight: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    r"""Return :math:`w \odot x / \sqrt{\mathrm{mean}(x^2) + 10^{-5}}` over the last axis.

    ``scale`` (..., 1) are numbers by which the vectors were multiplied to fit their dtype, in
    (0, 1], not subnormal, and without a gradient. The result is as without them.
    """
    return _normalised(x, scale, 1e-5, 1 / x.shape[-1]) * weight


def _normalised(x: Tensor, scale: Tensor | float, eps: float, share: float) -> Tensor:
    # Squares must not overflow. Entries up to 2^32 stay as they are.
    unit = (x.detach().abs().amax(-1, keepdim=True) * 2.0**-32).clamp(min=scale)
    y = x / unit
    mean = share * y.square().sum(-1, keepdim=True) + eps * (scale / unit).square()
    return y * mean.rsqrt()


def reset_linear(linear: nn.Linear | nn.Conv1d, generator: torch.Generator | None) -> None:
    """Redraw the parameters of a linear map or convolution as PyTorch does by default."""
    bound = 1 / math.sqrt(linear.weight[0].numel())
    nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
    if linear.bias is not None:
        nn.init.uniform_(linear.bias, -bound, bound, generator=generator)


def reset_decay(
    A_log: Tensor, dt_bias: Tensor, generator: torch.Generator | None, *, least: float
) -> None:
    """Redraw decays of Mamba-2 or gated delta rules: rates exp(A_log) from ``least`` to 16."""
    nn.init.uniform_(A_log, least, 16, generator=generator)
    with torch.no_grad():
        A_log.clamp_(min=1e-6).log_()
    reset_steps(dt_bias, generator)


def reset_steps(dt_bias: Tensor, generator: torch.Generator | None) -> None:
    """Redraw a bias of raw steps, so that softplus(dt_bias) is log-uniform in [0.001, 0.1]."""
    nn.init.uniform_(dt_bias, generator=generator)
    with torch.no_grad():
        dt = 0.001 * 100 ** dt_bias.to(at_least_float32(dt_bias.dtype))
        dt_bias.copy_(dt + (-torch.expm1(-dt)).log())  # the inverse of softplus


class ShortConvolution(nn.Module):
    r"""Depthwise causal convolution followed by SiLU (Fu et al., 2023), in float32 or wider.

    .. math::
        y_t = \mathrm{silu}\Big(c + \sum_{j=0}^{K-1} w_j \odot x_{t-K+1+j}\Big)

    K = ``kernel_size``; 0 leaves only SiLU. The state is the last K - 1 inputs, in order of time.
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
        return functional.silu(y), kept


def sum_over_taps(window: Tensor, weight: Tensor) -> Tensor:
    r"""Return :math:`y_t = \sum_j w_j \odot x_{t+j}` of x (B, T + K - 1, channels)."""
    length = window.shape[1] - len(weight) + 1
    if window.is_cpu and length:
        # With the channels innermost in memory, a convolution of images of height 1 is three to
        # five times as fast as shifted sums or a convolution of sequences.
        images = window.mT.unsqueeze(2)
        y = functional.conv2d(images, weight.mT[:, None, None], groups=weight.shape[1])
        return y.squeeze(2).mT
    return shifted_sum(window, weight, length)


def shifted_sum(window: Tensor, weight: Tensor, length: int) -> Tensor:
    """Return the same sum without a convolution, which would round to TF32 on a GPU."""
    taps = (weight[j] * window[:, j : j + length] for j in range(1, len(weight)))
    return sum(taps, weight[0] * window[:, :length])
