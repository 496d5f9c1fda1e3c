"""BDLRU: linear recurrence over dense blocks with jointly normalised gates."""

import math
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import dropout

from statemix import ops
from statemix.layers.gated_recurrence import (
    ForwardCall,
    GatedRecurrence,
    InitialState,
    Memory,
    Selectivity,
)
from statemix.layers.layer import Recurrence
from statemix.ops.checks import check_choice, check_finite, check_number, check_sizes
from statemix.ops.layout import at_least_float32, join_units, split_units
from statemix.ops.packing import positions
from statemix.ops.sequence_parallel import state_before
from statemix.registry import passed_on

TRACKING: dict[str, Any] = {"initial_state": "learned", "initial_std": 1.0, "input_gate_bias": -6.0}
"""Options of :meth:`BDLRU.tracker` for gates of rows."""
COLUMN_TRACKING: dict[str, Any] = {"initial_state": "unit", "input_gate_bias": -6.0}
"""Options of :meth:`BDLRU.tracker` for gates of columns."""


class BDLRU(GatedRecurrence):
    r"""Block-diagonal linear recurrent unit.

    .. math::
        (A_t, a_{0,t}) &= \mathrm{normalise}\big((W_g x_t + c_g) / \tau\big),
            \qquad v_t = W_v x_t \\
        h_t &= A_t h_{t-1} + a_{0,t} \odot v_t, \qquad y_t = W_y h_t

    in each of ``num_blocks`` blocks. A row of a block shares one normalisation with its input
    gate, or a column with all input gates; each gate family documents the resulting bound.

    With C = ``value_channels`` above 1, :math:`h_t` and :math:`v_t` are m x C matrices. Every
    column follows the equation with the same gates, and :math:`W_y` reads all m C entries.

    Source: Dubinin et al., "Improved state mixing in higher-order and block diagonal linear
    recurrent networks", Eq. 5. Channels share gates as those of a head do in Dao and Gu (2024),
    "Transformers are SSMs". Our additions: value channels in blocks, gate temperature, learned
    initial state, bias of the input gates.

    Args:
        num_blocks: number H of blocks; the state has ``num_blocks * block_size * value_channels``
            entries.
        block_size: entries m per block. 1 gives a diagonal network; composing permutations of n
            elements exactly requires n.
        value_channels: columns C of a block's state that share its gates. The gates then cost 1/C
            per entry of the state.
        gate: name of a gate family, one of ``ops.GATES``. ``"none"`` does not bound the state,
            which may grow exponentially with the number of tokens.
        gate_temperature: temperature tau, the attribute of the same name, at least 1e-38.
        selective: True: every gate sees every channel. "pointwise": the gates of block k see only
            channel k (requires ``num_blocks == hidden_size``). False: gates are learned constants.
        initial_state: state to use when none is given: "zero", "learned" (a parameter), or "unit":
            the first entry of every block is 1, and the others are 0. With
            ``gate="column_softmax"`` such a state is a distribution over the entries, which tokens
            move but do not blur at a low temperature.
        initial_std: standard deviation from which a learned initial state is drawn; with 0 it
            starts at zero.
        input_gate_bias: added to the initial biases of the raw input gates a_0. With gates that are
            never negative, a negative number closes them, so that the layer begins by mixing what a
            learned initial state holds.
        memory: None, or two numbers of tokens such as (1, 500). Block k is then initialised to
            remember for tau_k tokens: with an input of zeros, and raw state gates of zero, its
            states shrink by exp(-1 / tau_k) per token. The tau_k are evenly spaced in the logarithm
            between the two numbers. The biases of the input gates become
            log(m) + log(exp(1 / tau_k) - 1) with ``gate="softmax"``, where a_0 is the sigmoid of
            the bias minus log(m); 3 + log(exp(1 / tau_k) - 1) with ``gate="householder"``, where
            a_0 is the sigmoid of the bias minus 3; and -log(m) + log(exp(1 / tau_k) - 1) with
            ``gate="column_softmax"``, where the sum of all a_0 of a block is the sigmoid of the
            bias plus log(m). Other families are refused.
        gate_noise: standard deviation of normal noise that is added to the raw gates in training,
            the attribute of the same name.
        block_dropout: probability with which the output projection does not see a block in
            training, the attribute of the same name.
        checkpoint_every: None keeps the gates, values and states of all tokens for the backward
            pass. A number n keeps only the state after every n tokens, and computes the rest again
            in the backward pass. A packed row of more than n sequences is computed again as a
            whole. ``torch.func`` ignores the option.
        backend: as in ``ops.bd_lru``; None chooses the fastest for the device.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state (B, num_blocks, block_size), or
        (B, num_blocks, block_size, value_channels) with more than one channel.

    Example:
        >>> layer = BDLRU(hidden_size=8, num_blocks=4, block_size=2)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y_t, state = layer.step(torch.randn(2, 8), state)
        >>> y.shape, y_t.shape, state.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 8]), torch.Size([2, 4, 2]))
    """

    name = "bd_lru"
    schedulable = (*GatedRecurrence.schedulable, "block_dropout")

    def __init__(
        self,
        hidden_size: int,
        *,
        num_blocks: int,
        block_size: int,
        value_channels: int = 1,
        gate: str = "softmax",
        gate_temperature: float = 1.0,
        selective: Selectivity = True,
        initial_state: InitialState = "zero",
        initial_std: float = 0.0,
        input_gate_bias: float = 0.0,
        memory: Memory | None = None,
        gate_noise: float = 0.0,
        block_dropout: float = 0.0,
        checkpoint_every: int | None = None,
        backend: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes(num_blocks=num_blocks, block_size=block_size, value_channels=value_channels)
        check_choice("gate", gate, list(ops.GATES))
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.value_channels = value_channels
        self.block_dropout = block_dropout
        axes = {"num_blocks": num_blocks, "block_size": block_size}
        super().__init__(
            state_axes=axes if value_channels == 1 else axes | {"value_channels": value_channels},
            gate_shape=(block_size, block_size + 1),
            num_values=block_size * value_channels,
            num_readouts=block_size * value_channels,
            kernel=("block", block_size),
            **passed_on(locals(), GatedRecurrence),
        )

    @property
    def block_dropout(self) -> float:
        """Probability with which :meth:`forward` hides a block from the output projection.

        In training mode alone, each block of each sequence is hidden with this probability,
        at all positions, and the others are divided by 1 - ``block_dropout``. The states do not
        change. PyTorch's global generator draws the blocks, with ``group`` that of its first rank.
        """
        return self._block_dropout

    @block_dropout.setter
    def block_dropout(self, value: float) -> None:
        check_number("block_dropout", value, "at least 0 and below 1", lambda p: 0 <= p < 1)
        self._block_dropout = float(value)

    def _add_draws(self, call: ForwardCall, ones: Tensor, group: Any) -> ForwardCall:
        call = super()._add_draws(call, ones, group)
        if not self._block_dropout:
            return call
        seen = dropout(ones.repeat(1, 1, self.num_blocks), self._block_dropout)
        if group is not None:
            # The processes of a sequence hide the same blocks.
            dist.broadcast(seen, group=group, group_src=0)
        return call._replace(seen=seen)

    @classmethod
    def tracker(cls, hidden_size: int, **options: Any) -> Self:
        """Return a layer that is ready to learn a finite-state machine.

        Its blocks start in random learned states, and its input gates start closed, so that tokens
        mix what the blocks hold instead of replacing it. With ``gate="column_softmax"``, the blocks
        start in the unit state instead: a block of m entries can then follow any automaton of m
        states. With softmax over rows or columns, lower the gate temperature towards the end of
        training with :func:`statemix.sharpen`: gates near 0 and 1 copy what the blocks hold.

        Args:
            hidden_size: width of input and output.
            **options: options of the constructor; they take precedence.

        Example:
            >>> BDLRU.tracker(64, num_blocks=16, block_size=2).input_gate_bias
            -6.0
        """
        columns = options.get("gate") == "column_softmax"
        return cls(hidden_size, **{**(COLUMN_TRACKING if columns else TRACKING), **options})

    def _input_gates_of(self, spans: Tensor) -> Tensor:
        # A softmax weighs the input gate against m state gates, and columns weigh m input gates
        # against one share of the state.
        weight = math.log(self.block_size)
        shifts = {"softmax": weight, "column_softmax": -weight, "householder": 3.0}
        return spans.reciprocal().expm1().log() + shifts[self.gate]

    def _run(
        self, x: Tensor, state: Tensor, cu_seqlens: Tensor | None, call: ForwardCall, group: Any
    ) -> tuple[Tensor, Tensor]:
        values = self._values(x)
        gates = self._add_noise(self._raw_gates(x, values.dtype), call.noise)
        options: dict[str, Any] = {
            "gate": self.gate,
            "temperature": call.temperature,
            "backend": self.backend,
        }
        if group is not None:
            state = state_before(ops.bd_lru, gates, values, state, group=group, **options)
        states, state = ops.bd_lru(
            gates, values, initial_state=state, cu_seqlens=cu_seqlens, **options
        )
        if call.seen is not None:
            seen = call.seen.to(states.dtype)
            if cu_seqlens is not None:
                seen = seen[positions(cu_seqlens, x.shape[1])[0]].transpose(0, 1)
            states = states * seen.reshape(*seen.shape, *(1 for _ in self._state_shape[1:]))
        return self.out_proj(self._joined(states)), state

    def _step_of_units(self, gates: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h_t, state = ops.bd_lru_step(
            *(gates, self._split_values(values), state, self.gate),
            temperature=self.temperature,
            backend=self.backend,
        )
        return self._joined(h_t), state

    def recurrence(self, x: Tensor) -> Recurrence:
        num_sequences = self._check_sequence(x, None, None)
        values = self._values(x)
        gates = self._raw_gates(x, values.dtype)
        transitions, input_gates = self._normalised(
            gates, at_least_float32(gates.dtype), self.temperature
        )
        state = self.init_state(num_sequences, x.device, x.dtype)
        if self.value_channels == 1:
            values, state = values.unsqueeze(-1), state.unsqueeze(-1)
        rows = torch.cat([transitions, input_gates.unsqueeze(-1)], dim=-1)
        if self.gate == "column_softmax":
            # Columns of the state with the share of the input, then the inputs with that of the
            # state.
            rows = torch.cat([rows.mT, 1 - rows.sum(-2).unsqueeze(-1)], dim=-1)
        return Recurrence(
            transitions,
            torch.diag_embed(input_gates),
            values.to(transitions.dtype),
            state,
            rows,
            unit="block",
        )

    def _values(self, x: Tensor) -> Tensor:
        return self._split_values(self.value_proj(x))

    def _split_values(self, flat: Tensor) -> Tensor:
        return split_units(flat, self._state_shape[1:], self.num_blocks)

    def _joined(self, states: Tensor) -> Tensor:
        return join_units(states, len(self._state_shape) - 1)


BEGIN, FINISH, SHARP = 0.5, 0.9, 1 / 8
# At a low temperature, gates of the first two families are near 0 and 1, and transitions of the
# third near 0 or reflections. The others have limits that lose the state, or do not change.
_SHARPENED = ("softmax", "column_softmax", "householder")


def sharpen(model: nn.Module, progress: float) -> float:
    r"""Set the gate temperature of all layers in a model that have one.

    .. math:: 1 / \tau = 1 + 7\, \mathrm{clamp}\Big(\frac{p - 0.5}{0.9 - 0.5}, 0, 1\Big)

    Raw gates are divided by tau. With ``softmax`` or ``column_softmax``, gates are then near 0 and
    1 in the last tenth of training; with ``householder``, transitions are near reflections or 0.
    Call it before every forward pass. The temperature is part of the state dict.

    Args:
        model: a model or a layer.
        progress: share of the training that is done, p, a finite number.

    Returns:
        The temperature tau.

    Raises:
        ValueError: if no layer has a gate temperature, a layer has gates of another family, or
            ``progress`` is not finite.

    Example:
        >>> from statemix.layers import BDLRU
        >>> layer = BDLRU.tracker(8, num_blocks=2, block_size=2)
        >>> [sharpen(layer, progress) for progress in (0.0, 0.5, 1.0)], layer.gate_temperature
        ([1.0, 1.0, 0.125], 0.125)
    """
    check_finite(progress=progress)
    done = min(max((progress - BEGIN) / (FINISH - BEGIN), 0.0), 1.0)
    temperature = 1 / (1 + (1 / SHARP - 1) * done)
    gated = [module for module in model.modules() if isinstance(module, GatedRecurrence)]
    if not gated:
        raise ValueError("model must contain a layer with a gate temperature, such as BDLRU")
    for layer in gated:
        check_choice("gate of a layer to sharpen", layer.gate, _SHARPENED)
    for layer in gated:
        layer.gate_temperature = temperature
    return temperature
