"""HLRU: scalar linear recurrences over the last m outputs with jointly normalised gates."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from statemix import ops
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.layers.layer import Recurrence
from statemix.layers.option_checks import InitialState, Memory, Selectivity, check_sizes
from statemix.layers.pieces import Noise
from statemix.layers.state import owned
from statemix.ops.checks import check_choice
from statemix.ops.lag_kernels import companions, lagged, partial_sums
from statemix.ops.layout import at_least_float32, join_units
from statemix.ops.sequence_parallel import state_before
from statemix.registry import passed_on

Realization = Literal["controller", "observer"]
Readout = Literal["lags", "current"]


class HLRU(GatedRecurrence):
    r"""Higher-order linear recurrent unit.

    .. math::
        (a_{1,t}, \dots, a_{m,t}, a_{0,t})
            &= \mathrm{normalise}\big((W_g x_t + c_g) / \tau\big), \qquad v_t = W_v x_t \\
        h_t &= \sum_{i=1}^m a_{i,t} h_{t-i} + a_{0,t} v_t, \qquad
            y_t = W_y (h_t, \dots, h_{t-m+1})

    in each of ``num_channels`` channels, in O(m) time and memory per channel and step: the
    companion matrix of the recurrence is never formed.

    Source: Dubinin et al., "Improved state mixing in higher-order and block diagonal linear
    recurrent networks", Eq. 3. Our additions: gate temperature, learned initial state, bias
    of the input gates. Their listing, once corrected, computes the observer form instead:

    .. math:: s^k_t = a_{k,t} s^1_{t-1} + s^{k+1}_{t-1} + [k = 1]\, a_{0,t} v_t, \qquad h_t = s^1_t

    Args:
        hidden_size: width of input and output.
        num_channels: number H of channels; the state has ``num_channels * order`` entries.
        order: lags m per channel. 1 gives a diagonal network.
        gate: name of a gate family, one of ``ops.GATES`` that is not for blocks only. ``"none"``
            does not bound the state, which may grow exponentially with the number of tokens.
        gate_temperature: temperature tau, the attribute of the same name.
        selective: True: every gate sees every channel. "pointwise": the gates of channel k see
            only input channel k (requires ``num_channels == hidden_size``). False: gates are
            learned constants.
        initial_state: state to use when none is given: "zero", "learned" (a parameter), or "unit":
            the first entry of every channel is 1, and the others are 0.
        initial_std: standard deviation from which a learned initial state is drawn; with 0 it
            starts at zero.
        input_gate_bias: added to the initial biases of the raw input gates a_0. With gates that are
            never negative, a negative number closes them, so that the layer begins by mixing what a
            learned initial state holds.
        memory: None, or two numbers of tokens such as (1, 500), with ``gate="softmax"`` alone.
            Channel k is then initialised to remember for tau_k tokens: with an input of zeros, and
            raw state gates of zero, its outputs shrink by exp(-1 / tau_k) per token in the long
            run. The tau_k are evenly spaced in the logarithm between the two numbers. The biases
            of the input gates become log(sum_i (exp(i / tau_k) - 1)), i = 1 ... m: the largest root
            of z^m = (1 - a_0) / m (z^(m-1) + ... + 1) is then exp(-1 / tau_k).
        gate_noise: standard deviation of normal noise that is added to the raw gates in training,
            the attribute of the same name.
        checkpoint_every: None keeps the gates, values and states of all tokens for the backward
            pass. A number n keeps only the state after every n tokens, and computes the rest again
            in the backward pass, which saves memory and costs time. A packed row of more than n
            sequences is computed again as a whole. ``torch.func`` ignores the option.
        realization: "controller" is the first equation, "observer" the second. The observer has
            the same eigenvalues, but coefficient i acts i - 1 steps late and the states are not
            bounded by the values. With constant gates both give the same h.
        readout: "lags": the output projection reads all m entries of the state (the last m
            outputs, or the m partial sums s of the observer). "current": it reads only h_t.
        backend: as in ``ops.h_lru``; None chooses the fastest for the device.
        device: device of the parameters.
        dtype: dtype of the parameters. The state is always float32 or wider.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state (B, num_channels, order): the last
        m outputs, newest first, or s^1 ... s^m.

    Raises:
        OptionError: if a size is out of range, a name is unknown, ``gate_temperature`` is not
            positive and finite, or another number is not finite or does not fit.
        BackendUnavailableError: if ``backend`` cannot run here.

    Example:
        >>> layer = HLRU(hidden_size=8, num_channels=6, order=3)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y.shape, state.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 6, 3]))
    """

    name = "h_lru"

    def __init__(
        self,
        hidden_size: int,
        *,
        num_channels: int,
        order: int,
        gate: str = "softmax",
        gate_temperature: float = 1.0,
        selective: Selectivity = True,
        initial_state: InitialState = "zero",
        initial_std: float = 0.0,
        input_gate_bias: float = 0.0,
        memory: Memory | None = None,
        gate_noise: float = 0.0,
        checkpoint_every: int | None = None,
        realization: Realization = "controller",
        readout: Readout = "lags",
        backend: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes(num_channels=num_channels, order=order)
        check_choice("gate", gate, [g.name for g in ops.GATES.values() if not g.blocks_only])
        check_choice("realization", realization, get_args(Realization))
        check_choice("readout", readout, get_args(Readout))
        self.num_channels = num_channels
        self.order = order
        self.realization = realization
        self.readout = readout
        super().__init__(
            num_units=num_channels,
            gate_shape=(order + 1,),
            num_values=1,
            num_readouts=order if readout == "lags" else 1,
            **passed_on(locals(), GatedRecurrence),
        )

    @property
    def _state_axes(self) -> Mapping[str, int]:
        return {"num_channels": self.num_channels, "order": self.order}

    def _input_gates_of(self, spans: Tensor) -> Tensor:
        lags = torch.arange(1, self.order + 1, dtype=spans.dtype, device=spans.device)
        return (lags / spans.unsqueeze(-1)).expm1().sum(-1).log()

    def _run(
        self, x: Tensor, state: Tensor, cu_seqlens: Tensor | None, noise: Noise, group: Any
    ) -> tuple[Tensor, Tensor]:
        values: Tensor = self.value_proj(x)
        gates = self._noisy(self._raw_gates(x, values.dtype), noise.gates)
        options: dict[str, Any] = {
            "gate": self.gate,
            "temperature": self.temperature,
            "realization": self.realization,
            "backend": self.backend,
        }
        if group is not None:
            state = state_before(ops.h_lru, gates, values, state, group=group, **options)
        states, final = ops.h_lru(
            gates, values, initial_state=state, cu_seqlens=cu_seqlens, **options
        )
        if self.realization == "observer":
            final = owned(final)
        if self.readout == "current":
            return self.out_proj(states), final
        if self.realization == "controller":
            window = lagged(states, state, cu_seqlens)
        else:
            coefficients, _ = self._normalised(gates, final.dtype)
            window = partial_sums(coefficients, states.to(final.dtype), state, cu_seqlens)
        return self._read(window.to(states.dtype)), final

    @property
    def _kernel(self) -> tuple[str, int | None] | None:
        return ("lag", None) if self.realization == "controller" else None

    def _step_of_units(self, gates: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return ops.h_lru_step(
            gates,
            values,
            state,
            self.gate,
            temperature=self.temperature,
            realization=self.realization,
            backend=self.backend,
        )

    def _read_out(self, h_t: Tensor, state: Tensor) -> Tensor:
        if self.readout == "current":
            return h_t
        return join_units(state if state.dtype == h_t.dtype else state.to(h_t.dtype))

    def recurrence(self, x: Tensor) -> Recurrence:
        num_sequences = self._check_sequence(x, None, None)
        values: Tensor = self.value_proj(x)
        gates = self._raw_gates(x, values.dtype)
        coefficients, input_gates = self._normalised(gates, at_least_float32(gates.dtype))
        transitions = companions(coefficients)
        first = torch.zeros(self.order, 1, dtype=transitions.dtype, device=transitions.device)
        first[0] = 1
        return Recurrence(
            # The two realizations have each other's transposed companions.
            transitions if self.realization == "controller" else transitions.mT,
            input_gates[..., None, None] * first,
            values.to(transitions.dtype)[..., None, None],
            self.init_state(num_sequences, x.device, x.dtype).unsqueeze(-1),
            torch.cat([coefficients, input_gates.unsqueeze(-1)], dim=-1).unsqueeze(-2),
            unit="channel",
        )

    def _read(self, window: Tensor) -> Tensor:
        """Project the state entries (..., H, m) of each position."""
        y: Tensor = self.out_proj(join_units(window))
        return y
