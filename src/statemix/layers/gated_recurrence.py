"""Common base of BDLRU and HLRU: projections, selectivity, gate temperature, initial state."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statemix import ops
from statemix.errors import OptionError
from statemix.layers.layer import Flops, Layer
from statemix.layers.padded import reset_linear
from statemix.layers.state import State, zero_states
from statemix.ops.checks import (
    FLOATING,
    bind,
    check_choice,
    check_deviations,
    check_finite,
    check_floating,
    check_number,
    check_placement,
    check_sizes,
)
from statemix.ops.decoding import allowed, are_plain, has_hooks, is_linear, linear, projected_step
from statemix.ops.dispatch import check_bounds
from statemix.ops.layout import at_least_float32, split_units

Selectivity = Literal[True, False, "pointwise"]
InitialState = Literal["zero", "learned", "unit"]
Memory = tuple[float, float]

_PROJECTIONS = ("value_proj", "gate_proj", "out_proj")
# Gate families whose input gates alone decide how fast a unit forgets, within any bounds.
_REMEMBERING = ("softmax", "householder", "column_softmax")


class ForwardCall(NamedTuple):
    """What one call of ``forward`` has fixed, also for pieces that run again."""

    temperature: Tensor
    noise: float = 0.0  # standard deviation in the raw gates
    seen: Tensor | None = None  # factors of the states that the output projection sees, (B, 1, H)


class GatedRecurrence(Layer):
    r"""A layer of independent linear recurrences ("units") with jointly normalised gates.

    A unit is a block (BDLRU) or a channel (HLRU), which document the options. Its raw gates are

    .. math::
        g_t = (W_g x_t + c_g) / \tau, \qquad
        g_t^k = (w^k x_t^k + c^k) / \tau, \qquad
        g_t = c / \tau

    for ``selective`` True, "pointwise" and False (Dubinin et al., Appendix G). All projections use
    the memory order of the kernels, units last, so that no tensor is copied between them.

    ``state_axes`` names the axes of a sequence's state, of which the first counts units; the other
    numbers are those of one unit. ``kernel`` has arguments of :func:`projected_step`, or is None.
    """

    schedulable: ClassVar[tuple[str, ...]] = ("gate_temperature", "gate_noise")
    entry = "value_proj"
    sliceable = True

    temperature: Tensor
    learned_state: nn.Parameter | None
    unit_state: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        *,
        state_axes: dict[str, int],
        gate_shape: tuple[int, ...],
        num_values: int,
        num_readouts: int,
        kernel: tuple[str, int | None] | None,
        gate: str,
        gate_temperature: float,
        selective: Selectivity,
        initial_state: InitialState,
        initial_std: float,
        input_gate_bias: float,
        memory: Memory | None,
        gate_noise: float,
        checkpoint_every: int | None,
        backend: str | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size)
        check_placement(device, dtype)
        if not isinstance(selective, bool | str) or selective not in get_args(Selectivity):
            choices = list(get_args(Selectivity))
            raise OptionError(f"selective must be one of {choices}, got {selective!r}")
        check_choice("initial_state", initial_state, get_args(InitialState))
        check_deviations(initial_std=initial_std)
        if initial_std and initial_state != "learned":
            raise OptionError(
                f"initial_std must be 0 with initial_state={initial_state!r}, got {initial_std}"
            )
        ops.check_backend(backend)
        check_finite(input_gate_bias=input_gate_bias)
        unit_option, num_units = next(iter(state_axes.items()))
        num_gates = math.prod(gate_shape) * num_units
        if selective == "pointwise" and hidden_size != num_units:
            raise OptionError(
                f"hidden_size must equal {unit_option} with selective='pointwise', got "
                f"{hidden_size} and {num_units}"
            )
        check_sizes(**{f"{unit_option} times the gates per unit": num_gates})
        _check_memory(memory, gate, input_gate_bias)
        _check_temperature(gate_temperature)
        if checkpoint_every is not None:
            check_sizes(checkpoint_every=checkpoint_every)
        self.checkpoint_every = checkpoint_every
        self.gate_noise = gate_noise
        self.hidden_size = hidden_size
        self.gate = gate
        self.selective = selective
        self.initial_state = initial_state
        self.initial_std = initial_std
        self.input_gate_bias = input_gate_bias
        self.memory = memory
        self.backend = backend
        self._kernel = kernel
        self._num_units = num_units
        self._num_columns = num_values // math.prod(gate_shape[:-1])
        self._gate_shape = gate_shape
        self._state_axes = state_axes
        self._state_shape = tuple(state_axes.values())

        if selective is True:
            self.gate_proj = nn.Linear(hidden_size, num_gates, device=device, dtype=dtype)
        else:
            shape = (num_units, *gate_shape)
            if selective == "pointwise":
                self.gate_weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.gate_bias = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        self.value_proj = nn.Linear(hidden_size, num_values * num_units, bias=False, **placed)
        self.out_proj = nn.Linear(num_readouts * num_units, hidden_size, bias=False, **placed)
        empty = torch.empty(self._state_shape, **placed)
        self.learned_state = nn.Parameter(empty) if initial_state == "learned" else None
        self.register_buffer("unit_state", empty if initial_state == "unit" else None)
        wide = at_least_float32(self.value_proj.weight.dtype)
        self.register_buffer("temperature", torch.ones((), device=device, dtype=wide))
        self._constructed_temperature = gate_temperature
        self.reset_parameters()

    @abstractmethod
    def _run(
        self, x: Tensor, state: Tensor, cu_seqlens: Tensor | None, call: ForwardCall, group: Any
    ) -> tuple[Tensor, Tensor]:
        """Run over checked arguments of ``forward``."""

    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        *,
        group: "dist.ProcessGroup | None" = None,
        _with_noise: bool = True,
    ) -> tuple[Tensor, Tensor]:
        num_sequences = self._check_sequence(x, state, cu_seqlens)
        if state is None:
            state = self.init_state(num_sequences, x.device, x.dtype)
        if group is not None:
            check_slice(group, cu_seqlens, self.checkpoint_every)
        call = ForwardCall(self.temperature)
        if self.training and _with_noise:
            call = self._add_draws(call, x.new_ones(num_sequences, 1, 1), group)
        # PyTorch runs no piece again in exported graphs or transforms.
        once = torch.compiler.is_exporting() or torch._C._are_functorch_transforms_active()
        if self.checkpoint_every is None or once:
            return self._run(x, state, cu_seqlens, call, group)
        # Only the states between pieces are kept. A schedule may change the temperature meanwhile.
        call = call._replace(temperature=self.temperature.clone())
        outputs = []
        for piece, bounds in _pieces(x, cu_seqlens, self.checkpoint_every):
            y, state = checkpoint(
                *(self._run, piece, state, bounds, call, None),
                use_reentrant=False,
                preserve_rng_state=call.noise > 0,
            )
            outputs.append(y)
            # It may be a view, which would keep the states of a whole piece.
            state = state.clone()
        return torch.cat(outputs, dim=1), state

    def check_state(self, state: State, num_sequences: int, axis: str = "B") -> None:
        sizes = {axis: num_sequences, **self._state_axes}
        bind(sizes, "state", state, " ".join(sizes))
        check_floating("state", state)

    def step(self, x_t: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        fits = state is not None and self._fits(x_t, state)
        if not fits:
            self._check_step(x_t, state)
        if has_hooks(self):
            # They may fetch the layer's own parameters, or change what goes in and out.
            # A forward of the user's own need not know the option.
            noiseless = {"_with_noise": False} if self.training else {}
            y, state = self(x_t.unsqueeze(1), state, **noiseless)
            return y.squeeze(1), state
        if state is None:
            return self.step(x_t, self.init_state(x_t.shape[0], x_t.device, x_t.dtype))
        modules, stepped = self._modules, None
        direct = fits and allowed() and all(is_linear(modules.get(name)) for name in _PROJECTIONS)
        if direct:
            values, gates = linear(modules["value_proj"], x_t), linear(modules["gate_proj"], x_t)
            if self._kernel is not None:
                stepped = projected_step(
                    *self._kernel, gates, values, state, self.gate, self.temperature, self.backend
                )
        else:
            values, gates = self.value_proj(x_t), self._projected_gates(x_t)
        if stepped is None:
            stepped = self._step_of_units(self._of_units(gates, values.dtype), values, state)
        h_t, state = stepped
        read = self._read_out(h_t, state)
        return linear(modules["out_proj"], read) if direct else self.out_proj(read), state

    @abstractmethod
    def _step_of_units(self, gates: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Advance raw gates (B, H, *gate_shape) and projected values; h_t has their order."""

    def _read_out(self, h_t: Tensor, state: Tensor) -> Tensor:
        """Return the input of the output projection, from those of :meth:`_step_of_units`."""
        del state
        return h_t

    def _fits(self, x_t: Tensor, state: Tensor) -> bool:
        """Return whether a quick comparison accepts the arguments; the full check takes long."""
        value_proj = self._modules.get("value_proj")
        weight = None if value_proj is None else value_proj._parameters.get("weight")
        return (
            weight is not None
            and are_plain(x_t, state)
            and x_t.ndim == 2
            and x_t.shape[1] == self.hidden_size
            and state.shape == (x_t.shape[0], *self._state_shape)
            and x_t.dtype == weight.dtype
            and state.dtype in FLOATING
            and x_t.device == state.device == weight.device
        )

    @property
    def gate_temperature(self) -> float:
        """Divisor of the raw gates.

        With ``softmax`` or ``column_softmax``, a value below 1 moves gates towards 0 and 1.
        It is saved with the model in float32 or wider and is not trained. A new value takes effect
        at the next call, even in a compiled layer.
        """
        if self.temperature.is_meta:
            return self._constructed_temperature
        return self.temperature.item()

    @gate_temperature.setter
    def gate_temperature(self, value: float) -> None:
        _check_temperature(value)
        # In place, so that compiled graphs and replicas keep reading the same tensor.
        with torch.no_grad():
            self.temperature.fill_(float(value))

    @property
    def gate_noise(self) -> float:
        """Standard deviation of the normal noise that :meth:`forward` adds to the raw gates.

        It is added in training mode alone, to every gate by itself, before the temperature divides.
        PyTorch's global generator draws it.
        """
        return self._gate_noise

    @gate_noise.setter
    def gate_noise(self, value: float) -> None:
        check_deviations(gate_noise=value)
        self._gate_noise = float(value)

    def _add_draws(self, call: ForwardCall, ones: Tensor, group: Any) -> ForwardCall:
        """Add the noise of training, for ``ones`` (B, 1, 1); ``_run`` draws that of gates."""
        del ones, group
        return call._replace(noise=self._gate_noise)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters and reset the gate temperature to the constructor's.

        Pointwise and constant gates are drawn as linear maps of one input each.
        """
        self.gate_temperature = self._constructed_temperature
        if self.selective is True:
            reset_linear(self.gate_proj, generator)
        else:
            if self.selective == "pointwise":
                nn.init.uniform_(self.gate_weight, -1, 1, generator=generator)
            nn.init.uniform_(self.gate_bias, -1, 1, generator=generator)
        reset_linear(self.value_proj, generator)
        reset_linear(self.out_proj, generator)
        if self.learned_state is not None:
            nn.init.zeros_(self.learned_state)
            if self.initial_std:
                nn.init.normal_(self.learned_state, std=self.initial_std, generator=generator)
        if self.unit_state is not None:
            self.unit_state.zero_()[:, 0] = 1
        self._move_input_gates()

    def zero_biases(self) -> None:
        """Set the biases of dense and pointwise gates to zero, so that no gate is preferred.

        Those of the input gates become ``input_gate_bias``, or what ``memory`` asks for. Gates that
        are learned constants (``selective=False``) are not biases and keep their values.
        """
        if self.selective is True:
            nn.init.zeros_(self.gate_proj.bias)
        elif self.selective == "pointwise":
            nn.init.zeros_(self.gate_bias)
        else:
            return
        self._move_input_gates()

    @torch.no_grad()
    def _move_input_gates(self) -> None:
        if self.selective is True:
            # Units come first, as in the other biases.
            biases = self.gate_proj.bias.view(*self._gate_shape, self._num_units).movedim(-1, 0)
        else:
            biases = self.gate_bias
        biases = biases[..., -1]
        if self.memory is None:
            biases += self.input_gate_bias
            return
        shortest, longest = self.memory
        places = (torch.arange(self._num_units, dtype=torch.float64) + 0.5) / self._num_units
        spans = shortest * (longest / shortest) ** places
        raw = self._constructed_temperature * self._input_gates_of(spans)
        biases.copy_(raw.view(-1, *(1 for _ in biases.shape[1:])))

    @abstractmethod
    def _input_gates_of(self, spans: Tensor) -> Tensor:
        """Return the raw input gates with which units remember for these numbers of tokens."""

    def init_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        (zeros,) = zero_states(self, batch_size, device, dtype, self._state_shape)
        first = self.first_state
        return zeros if first is None else zeros + first.to(zeros)

    @property
    def first_state(self) -> Tensor | None:
        """The state of every unit when none is given, shape (H, m, ...); None means zeros."""
        return self.unit_state if self.learned_state is None else self.learned_state

    def flops_per_token(self, length: int) -> Flops:
        """Count as every layer does: constant gates are normalised only once, hence for free."""
        del length
        num_gates = self._num_units * math.prod(self._gate_shape)
        dense = num_gates if self.selective is True else 0
        widths = (self.value_proj.out_features, self.out_proj.in_features)
        family = ops.GATES[self.gate]
        *rows, size = self._gate_shape
        normalised = self._num_units * (1 if family.blocks_only else math.prod(rows))
        gates = 2 * num_gates if self.selective == "pointwise" else 0
        gates += normalised * family.flops(size - 1) if self.selective is not False else 0
        return Flops(
            projections=2 * self.hidden_size * (dense + sum(widths)),
            # Each row multiplies m entries of the state and its input, in each column.
            transition=2 * num_gates * self._num_columns,
            other=gates,
        )

    def split_gates(self, flat: Tensor) -> Tensor:
        """Return outputs of the gate projection as raw gates of units: (..., H, *gate_shape)."""
        return split_units(flat, self._gate_shape, self._num_units)

    def _raw_gates(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return gates (..., H, *gate_shape), H innermost in memory, in the dtype of values."""
        return self._of_units(self._projected_gates(x), dtype)

    def _projected_gates(self, x: Tensor) -> Tensor:
        """Return the argument of :meth:`_of_units`: the projection, if there is one."""
        if self.selective is True:
            gates: Tensor = self.gate_proj(x)
            return gates
        bias = self.gate_bias.movedim(0, -1).contiguous()
        if self.selective == "pointwise":
            weight = self.gate_weight.movedim(0, -1).contiguous()
            channels = x.reshape(*x.shape[:-1], *(1 for _ in self._gate_shape), x.shape[-1])
            gates = bias + channels * weight
        else:
            gates = bias.expand(*x.shape[:-1], *bias.shape)
        return gates.movedim(-1, x.ndim - 1)

    def _of_units(self, gates: Tensor, dtype: torch.dtype) -> Tensor:
        """Return :meth:`_raw_gates` of projected gates."""
        if self.selective is True:
            gates = self.split_gates(gates)
        return gates if gates.dtype == dtype else gates.to(dtype)

    def _add_noise(self, gates: Tensor, noise: float) -> Tensor:
        """Return raw gates with noise of this standard deviation."""
        return gates + noise * torch.randn_like(gates) if noise else gates

    def _normalised(
        self, gates: Tensor, dtype: torch.dtype, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the state gates (..., m) and input gates (...) of raw gates, in a dtype."""
        return ops.normalize(gates.to(dtype), self.gate, temperature=temperature)

    # The parameter is positional in torch.nn.Module.
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002
        """Keep conversions such as ``.to(torch.bfloat16)`` from rounding the temperature."""
        before = self.temperature
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = self.temperature
        wide = at_least_float32(after.dtype)
        is_known = not (before.is_meta or after.is_meta)
        self.temperature = before.to(after.device, wide) if is_known else after.to(wide)
        return self


def _check_temperature(value: object) -> None:
    least, most = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    check_number("gate_temperature", value, "positive and finite", lambda t: least <= t <= most)


def _check_memory(memory: object, gate: str, input_gate_bias: float) -> None:
    if memory is None:
        return
    if not isinstance(memory, tuple | list) or len(memory) != 2:
        raise OptionError(f"memory must be two numbers of tokens or None, got {memory!r}")
    for tokens in memory:
        check_finite(memory=tokens)
    if not 1 <= memory[0] <= memory[1]:
        raise OptionError(f"memory must rise from 1 or more, got {memory!r}")
    if gate not in _REMEMBERING:
        raise OptionError(
            f"memory must be None unless gate is one of {_REMEMBERING}, got {memory!r} with "
            f"{gate!r}"
        )
    if input_gate_bias:
        raise OptionError(f"input_gate_bias must be 0 with memory, got {input_gate_bias}")


def check_slice(
    group: object, cu_seqlens: Tensor | None, checkpoint_every: int | None = None
) -> None:
    """Check that a layer can run over a slice of sequences whose time processes share."""
    if cu_seqlens is not None:
        raise ValueError("cu_seqlens must be None with a group: each row is one sequence's slice")
    if checkpoint_every is not None:
        raise ValueError(f"checkpoint_every must be None with a group, got {checkpoint_every}")
    if not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        kind = type(group).__name__
        raise TypeError(f"group must be a torch.distributed.ProcessGroup, got {kind}")


def _pieces(
    x: Tensor, cu_seqlens: Tensor | None, length: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Cut x (B, T, hidden_size) and its bounds; rows of many sequences stay whole."""
    if cu_seqlens is None:
        yield from ((piece, None) for piece in torch.split(x, length, dim=1))
        return
    # Those of the pieces would hide wrong ones.
    check_bounds(cu_seqlens, x.shape[1])
    if len(cu_seqlens) > length + 1:
        length = x.shape[1]
    begun = 0
    for piece in torch.split(x, length, dim=1):
        yield piece, (cu_seqlens - begun).clamp(0, piece.shape[1])
        begun += length
