"""LSTM: PyTorch's, with the interface of the other layers."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from statemix.layers.exporting import is_open, register_loop
from statemix.layers.layer import Flops
from statemix.layers.padded import PaddedLayer
from statemix.layers.state import loadable
from statemix.ops import flops
from statemix.ops.checks import check_placement, check_sizes

# Under autocast, PyTorch calls the LSTM of oneDNN, which lacks bfloat16 on processors without
# AVX-512 and gradients in float16. Builds of PyTorch without oneDNN do not have this function, and
# need no care.
_has_bfloat16 = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
_LACKS_BFLOAT16 = not _has_bfloat16()


@loadable
class LSTMState(NamedTuple):
    """State of an LSTM: h and c, each (B, memory_size), float32 or wider."""

    h: Tensor
    c: Tensor


class LSTM(PaddedLayer):
    r"""One layer of ``torch.nn.LSTM`` whose output has the width of its input.

    .. math::
        (i_t, f_t, g_t, o_t) &= W x_t + c + U h_{t-1} + d \\
        c_t &= \sigma(f_t) \odot c_{t-1} + \sigma(i_t) \odot \tanh(g_t), \qquad
        h_t = \sigma(o_t) \odot \tanh(c_t)

    The output is h_t, or :math:`W_y h_t` if ``memory_size`` is given.

    Source: Hochreiter and Schmidhuber (1997) with forget gates. Parameters are initialised as in
    PyTorch, uniformly in +-1/sqrt(memory_size); the forget bias is *not* raised to 1.

    Args:
        memory_size: width of h and c. None means ``hidden_size``, without an output projection.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state h and c, each (B, memory_size).

    Example:
        >>> layer = LSTM(hidden_size=8)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y.shape, state.h.shape, state.c.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 8]), torch.Size([2, 8]))
    """

    name = "lstm"
    entry = "lstm"
    state_class = LSTMState

    def __init__(
        self,
        hidden_size: int,
        *,
        memory_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        size = hidden_size if memory_size is None else memory_size
        check_sizes(hidden_size=hidden_size, memory_size=size)
        check_placement(device, dtype)
        self.hidden_size = hidden_size
        self.memory_size = size
        self.lstm = nn.LSTM(hidden_size, size, batch_first=True, device=device, dtype=dtype)
        self.out_proj: nn.Module = nn.Identity()
        if memory_size is not None:
            self.out_proj = nn.Linear(size, hidden_size, bias=False, device=device, dtype=dtype)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.memory_size**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    @property
    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.memory_size,),) * 2

    def flops_per_token(self, length: int) -> Flops:
        del length
        size = self.memory_size
        out = sum(2 * weight.numel() for weight in self.out_proj.parameters())
        # Three sigmoids, two hyperbolic tangents, three products and a sum.
        gating = size * (3 * flops.SIGMOID + 2 * flops.TANH + 4)
        return Flops(
            projections=2 * self.hidden_size * 4 * size + out,
            transition=2 * size * 4 * size + gating,
            other=0,
        )

    def _run(self, x: Tensor, state: LSTMState, lengths: Tensor | None) -> tuple[Tensor, LSTMState]:
        h, after = self._recur(x, state, lengths)
        return self.out_proj(h), after

    def _recur(
        self, x: Tensor, state: LSTMState, lengths: Tensor | None
    ) -> tuple[Tensor, LSTMState]:
        if x.shape[0] == 0:  # torch.nn.LSTM refuses no sequences
            return self._linked(x[..., :1]).expand(*x.shape[:2], self.memory_size), state
        if x.is_cpu and torch.is_autocast_enabled("cpu") and x.dtype != torch.float64:
            wanted = torch.get_autocast_dtype("cpu")
            # Packed rows, too, would come in float32.
            if _LACKS_BFLOAT16 or lengths is not None or wanted == torch.float16:
                with torch.autocast("cpu", enabled=False):
                    y, after = self._recur(x.to(next(self.lstm.parameters()).dtype), state, lengths)
                return y.to(wanted), after
        h_c = tuple(part.to(x.dtype).unsqueeze(0).contiguous() for part in state)
        if lengths is not None:
            packed = rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True)
            outputs, (h, c) = self.lstm(packed, h_c)
            y, _ = rnn.pad_packed_sequence(outputs, batch_first=True)
        elif torch.compiler.is_exporting():
            # The module would leave a copy of its parameters in the graph's.
            run = _of_any_length if is_open(x.shape[1]) else _lstm
            for hook in self.lstm._forward_pre_hooks.values():
                hook(self.lstm, (x, h_c))  # Pruning computes the weights in such a hook.
            weights = [getattr(self.lstm, name) for name in self.lstm._flat_weights_names]
            y, h, c = run(x, h_c[0], h_c[1], weights)
        else:
            y, (h, c) = self.lstm(x, h_c)
        return y, LSTMState(h[0].to(state.h.dtype), c[0].to(state.c.dtype))


def _lstm(x: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Run what ``torch.nn.LSTM`` runs, in evaluation mode."""
    return torch.lstm(
        x,
        (h, c),
        weights,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=False,
        bidirectional=False,
        batch_first=True,
    )


_of_any_length = register_loop(
    "lstm",
    _lstm,
    lambda x, h, c, _: (
        x.new_empty(*x.shape[:2], h.shape[-1]),
        h.new_empty(h.shape),
        c.new_empty(c.shape),
    ),
)
