"""Common base of the baselines: packed sequences as padded rows, exact sums, printing."""

import contextlib
import math
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from statemix.layers.layer import Layer, at_least_float32
from statemix.layers.state import State, map_state
from statemix.ops.checks import check_cu_seqlens_values


class PaddedLayer(Layer):
    """A layer that computes packed sequences as rows padded to the longest of them.

    A subclass implements :meth:`_run` on rows of tokens, of which those at and after a given length
    change no state. Packed sequences read ``cu_seqlens`` on the host. Each option of the
    constructor is an attribute of the same name.
    """

    @abstractmethod
    def _run(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Run over rows of tokens.

        Args:
            x: shape (B, T, hidden_size).
            state: state of B sequences, float32 or wider.
            lengths: number of tokens in each row, shape (B,), int64; the others are padding, whose
                outputs are arbitrary. None means T in every row.

        Returns:
            y: shape of ``x``.
            state: state after the last token of each row, in the dtypes of ``state``.
        """

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        num_sequences = self._check_sequence(x, state, cu_seqlens)
        state = _widened(self.init_state(num_sequences) if state is None else state)
        if cu_seqlens is None:
            return self._run(x, state, None)
        check_cu_seqlens_values(cu_seqlens, x.shape[1])
        if num_sequences == 0:
            return x.clone(), state
        lengths = cu_seqlens.diff().long()
        rows = rnn.pad_sequence(list(torch.split(x[0], lengths.tolist())), batch_first=True)
        y, state = self._run(rows, state, lengths)
        return y[valid_tokens(rows, lengths)].unsqueeze(0), state

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        self._check_step(x_t, state)
        y, state = self._run(x_t.unsqueeze(1), _widened(state), None)
        return y.squeeze(1), state

    def extra_repr(self) -> str:
        hidden = ("device", "dtype", "return")
        names = [name for name in type(self).__init__.__annotations__ if name not in hidden]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


def _widened(state: State) -> State:
    return map_state(lambda part: part.to(at_least_float32(part.dtype)), state)


def valid_tokens(x: Tensor, lengths: Tensor) -> Tensor:
    """Return which tokens of x (B, T, ...) are no padding: shape (B, T), bool."""
    return torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)


def last_inputs(window: Tensor, count: int, lengths: Tensor | None) -> Tensor:
    """Return the last inputs of each row, for the state of a convolution.

    Args:
        window: shape (B, count + T, channels): the earlier inputs, then T tokens.
        count: number of inputs wanted.
        lengths: number of tokens in each row, shape (B,); None means T.

    Returns:
        The last ``count`` inputs, shape (B, count, channels).
    """
    if lengths is None:
        return window[:, window.shape[1] - count :]
    places = lengths.unsqueeze(1) + torch.arange(count, device=window.device)
    return window.gather(1, places.unsqueeze(-1).expand(-1, -1, window.shape[2]))


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which sums over many tokens keep the dtype of their terms."""
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def reset_linear(linear: nn.Linear | nn.Conv1d, generator: torch.Generator | None) -> None:
    """Redraw the parameters of a linear map or convolution as PyTorch does by default."""
    bound = 1 / math.sqrt(linear.weight[0].numel())
    nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
    if linear.bias is not None:
        nn.init.uniform_(linear.bias, -bound, bound, generator=generator)


def reset_decay(
    A_log: Tensor, dt_bias: Tensor, generator: torch.Generator | None, *, least: float
) -> None:
    """Redraw the decays of Mamba-2 and of gated delta rules.

    Args:
        A_log: logarithm of the rate A, which becomes uniform from ``least`` to 16.
        dt_bias: bias of the raw step, so that softplus(dt_bias) is log-uniform in [0.001, 0.1].
        generator: source of the numbers.
        least: smallest rate.
    """
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
