"""HLRU: scalar linear recurrences over the last m outputs with jointly normalised gates."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from statemix import ops
from statemix.layers.gated_recurrence import (
    ForwardCall,
    GatedRecurrence,
    InitialState,
    Memory,
    Selectivity,
)
from statemix.layers.layer import Recurrence
from statemix.layers.state import owned
from statemix.ops.checks import check_choice, check_sizes
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
        num_channels: number H of channels; the state has ``num_channels * order`` entries.
        order: lags m per channel. 1 gives a diagonal network.
        gate: name of a gate family, one of ``ops.GATES`` that is not for blocks only. ``"none"``
            does not bound the state, which may grow exponentially with the number of tokens.
        gate_temperature: as in :class:`BDLRU`.
        selective: as in :class:`BDLRU`, with channels in place of blocks.
        initial_state: as in :class:`BDLRU`, with channels in place of blocks.
        initial_std: as in :class:`BDLRU`.
        input_gate_bias: as in :class:`BDLRU`.
        memory: as in :class:`BDLRU`, with ``gate="softmax"`` alone and outputs that shrink by
            exp(-1 / tau_k) per token in the long run. The biases of the input gates become
            log(sum_i (exp(i / tau_k) - 1)), i = 1 ... m: the largest root of
            z^m = (1 - a_0) / m (z^(m-1) + ... + 1) is then exp(-1 / tau_k).
        gate_noise: as in :class:`BDLRU`.
        checkpoint_every: as in :class:`BDLRU`.
        realization: "controller" is the first equation, "observer" the second. The observer has
            the same eigenvalues, but coefficient i acts i - 1 steps late and the states are not
            bounded by the values. With constant gates both give the same h.
        readout: "lags": the output projection reads all m entries of the state (the last m
            outputs, or the m partial sums s of the observer). "current": it reads only h_t.
        backend: as in ``ops.h_lru``; None chooses the fastest for the device.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state (B, num_channels, order): the last
        m outputs, newest first, or s^1 ... s^m.

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
            state_axes={"num_channels": num_channels, "order": order},
            gate_shape=(order + 1,),
            num_values=1,
            num_readouts=order if readout == "lags" else 1,
            kernel=("lag", None) if realization == "controller" else None,
            **passed_on(locals(), GatedRecurrence),
        )

    def _input_gates_of(self, spans: Tensor) -> Tensor:
        lags = torch.arange(1, self.order + 1, dtype=spans.dtype, device=spans.device)
        return (lags / spans.unsqueeze(-1)).expm1().sum(-1).log()

    def _run(
        self, x: Tensor, state: Tensor, cu_seqlens: Tensor | None, call: ForwardCall, group: Any
    ) -> tuple[Tensor, Tensor]:
        values: Tensor = self.value_proj(x)
        gates = self._add_noise(self._raw_gates(x, values.dtype), call.noise)
        options: dict[str, Any] = {
            "gate": self.gate,
            "temperature": call.temperature,
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
            coefficients, _ = self._normalised(gates, final.dtype, call.temperature)
            window = partial_sums(coefficients, states.to(final.dtype), state, cu_seqlens)
        return self.out_proj(join_units(window.to(states.dtype))), final

    def _step_of_units(self, gates: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return ops.h_lru_step(
            *(gates, values, state, self.gate),
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
        coefficients, input_gates = self._normalised(
            gates, at_least_float32(gates.dtype), self.temperature
        )
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
