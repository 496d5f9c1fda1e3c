"""LSTM: PyTorch's, with the call of the other layers."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from statemix.layers.layer import Layer, at_least_float32, check_sizes
from statemix.ops.checks import check_cu_seqlens_values

Sequences = TypeVar("Sequences", Tensor, rnn.PackedSequence)


class LSTM(Layer):
    r"""One layer of ``torch.nn.LSTM`` whose output has the width of its input.

    .. math::
        (i_t, f_t, g_t, o_t) &= W x_t + c + U h_{t-1} + d \\
        c_t &= \sigma(f_t) \odot c_{t-1} + \sigma(i_t) \odot \tanh(g_t), \qquad
        y_t = h_t = \sigma(o_t) \odot \tanh(c_t)

    Source: Hochreiter and Schmidhuber (1997) with forget gates. Parameters are initialised as
    PyTorch does, uniformly in +-1/sqrt(hidden_size): the forget bias is *not* raised to 1.

    The state is one tensor, float32 or wider: (B, 2, hidden_size) with h in front of c. Packed
    sequences run as a ``PackedSequence``, which reads ``cu_seqlens`` on the host.

    Args:
        hidden_size: width of input, output and memory.
        device: of the parameters.
        dtype: of the parameters.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state (B, 2, hidden_size).

    Raises:
        ValueError: if ``hidden_size`` is below 1.
        TypeError: if ``hidden_size`` is not an int.

    Example:
        >>> layer = LSTM(hidden_size=8)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y.shape, state.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 2, 8]))
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size)
        self.hidden_size = hidden_size
        self.lstm = nn.LSTM(hidden_size, hidden_size, batch_first=True, device=device, dtype=dtype)

    @property
    def state_axes(self) -> Mapping[str, int]:
        return {"h_c": 2, "hidden_size": self.hidden_size}

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.hidden_size**-0.5
        for parameter in self.lstm.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def init_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        weight = next(self.lstm.parameters())
        dtype = at_least_float32(weight.dtype if dtype is None else dtype)
        device = weight.device if device is None else device
        return torch.zeros(batch_size, 2, self.hidden_size, device=device, dtype=dtype)

    def forward(
        self, x: Tensor, state: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        num_sequences = self._check_sequence(x, state, cu_seqlens)
        if cu_seqlens is not None:
            check_cu_seqlens_values(cu_seqlens, x.shape[1])
        if state is None:
            state = self.init_state(num_sequences)
        state = state.to(at_least_float32(state.dtype))
        if x.numel() == 0:  # torch.nn.LSTM refuses sequences without tokens
            return x.clone(), state
        if cu_seqlens is None:
            return self._run(x, state)
        lengths = cu_seqlens.diff().tolist()
        filled = [n for n, length in enumerate(lengths) if length]
        sequences = [s for s in torch.split(x[0], lengths) if len(s)]
        packed = rnn.pack_sequence(sequences, enforce_sorted=False)
        outputs, final = self._run(packed, state[filled])
        y = torch.cat(rnn.unpack_sequence(outputs)).unsqueeze(0)
        return y, state.index_copy(0, torch.tensor(filled, device=state.device), final)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        self._check_step(x_t, state)
        y, state = self._run(x_t.unsqueeze(1), state.to(at_least_float32(state.dtype)))
        return y.squeeze(1), state

    def _run(self, x: Sequences, state: Tensor) -> tuple[Sequences, Tensor]:
        h, c = state.to(next(self.lstm.parameters()).dtype).transpose(0, 1).unsqueeze(1).unbind()
        y, (h, c) = self.lstm(x, (h.contiguous(), c.contiguous()))
        return y, torch.cat([h, c]).transpose(0, 1).to(state.dtype)

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}"
