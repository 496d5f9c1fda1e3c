"""Layers in plain PyTorch that need nothing else of this library.

:func:`statemix.lm.remote_code.export_remote_code` puts them into the file that a stored model
carries, so that it loads where Statemix is not installed. They compute what the layers of
``statemix.layers`` compute, with the same parameters, in a loop over time.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

State = Any


class OptionError(ValueError):
    """A constructor refuses an option."""


def loadable(kind: type) -> type:
    """Return a class of states itself."""
    return kind


def check_once(layer: nn.Module, x: Tensor) -> None:
    """Do nothing: all layers of this file keep packed sequences apart."""
    del layer, x


def map_state(change: Callable[[Tensor], Tensor], state: State) -> State:
    """Return a state with every tensor changed."""
    if isinstance(state, Tensor):
        return change(state)
    return type(state)(*(map_state(change, part) for part in state))


def pack(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens of padded rows in one row, and their bounds."""
    mask = mask.bool()
    return x[mask].unsqueeze(0), nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))


def unpack(packed: Tensor, mask: Tensor) -> Tensor:
    """Undo :func:`pack`, with zeros at the padding."""
    mask = mask.bool()
    return packed.new_zeros(*mask.shape, *packed.shape[2:]).index_put((mask,), packed[0])


class Layer(nn.Module):
    """A layer that runs over rows of tokens, or over packed ones, each from a state of its own."""

    init_state: Callable[..., State]
    run: Callable[..., tuple[Tensor, State]]
    reset_parameters: Callable[[], None]

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        num_sequences = len(x) if cu_seqlens is None else len(cu_seqlens) - 1
        if state is None:
            state = self.init_state(num_sequences, x)
        if cu_seqlens is None:
            return self.run(x, state)
        outputs, after = [], []
        for n, row in enumerate(torch.split(x, cu_seqlens.diff().tolist(), dim=1)):
            y, one = self.run(row, map_state(_row(n), state))
            outputs.append(y)
            after.append(one)
        return torch.cat(outputs, 1), _joined(after)


def _row(n: int) -> Callable[[Tensor], Tensor]:
    return lambda part: part[n : n + 1]


def _joined(states: list[State]) -> State:
    if isinstance(states[0], Tensor):
        longest = max(part.shape[1] for part in states)
        # Caches of attention have the length of their sequences.
        room = [(0, 0) * (part.ndim - 2) + (0, longest - part.shape[1]) for part in states]
        return torch.cat([nn.functional.pad(p, r) for p, r in zip(states, room, strict=True)])
    return type(states[0])(*map(_joined, map(list, zip(*states, strict=True))))


def normalized(gates: Tensor, gate: str) -> Tensor:
    """Return the m + 1 gates of each row of a unit after normalisation."""
    if gate == "column_softmax":
        inputs = nn.functional.pad(gates[..., -1], (0, 1)).softmax(-1).unsqueeze(-1)
        state = inputs[..., -1:, :] * gates[..., :-1].softmax(-2)
        return torch.cat([state, inputs[..., :-1, :]], -1)
    if gate == "softmax":
        return gates.softmax(-1)
    if gate == "sigmoid":
        return nn.functional.logsigmoid(gates).softmax(-1)
    if gate == "none":
        return gates
    rows = {"relu": gates.relu(), "signed": gates, "tanh": gates.tanh()}.get(gate)
    if rows is None:
        raise OptionError(f"gate must be a family other than 'householder', got {gate!r}")
    return rows / (rows.abs().sum(-1, keepdim=True) + 1e-6)


class GatedLayer(Layer):
    """The part that BD-LRU and H-LRU share: projections, temperature, initial state."""

    unit_state: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        gates: tuple[int, ...],
        state: tuple[int, ...],
        columns: int = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        self.gates, self.state, self.gate = gates, state, options.pop("gate", "softmax")
        temperature = options.pop("gate_temperature", 1.0)
        first = options.pop("initial_state", "zero")
        # These decide how weights are drawn and trained, or how fast the layer is.
        for name in (
            "initial_std",
            "input_gate_bias",
            "memory",
            "gate_noise",
            "block_dropout",
            "checkpoint_every",
            "backend",
        ):
            options.pop(name, None)
        if options.pop("selective", True) is not True or options:
            raise OptionError(
                f"a layer that travels alone must have gates of its input, got {options}"
            )
        units, values = gates[-1], math.prod(gates) // (gates[-1] * gates[-2]) * columns
        self.gate_proj = nn.Linear(hidden_size, math.prod(gates))
        self.value_proj = nn.Linear(hidden_size, values * units, bias=False)
        self.out_proj = nn.Linear(values * units, hidden_size, bias=False)
        self.learned_state = nn.Parameter(torch.zeros(state)) if first == "learned" else None
        self.register_buffer("unit_state", None)
        if first == "unit":
            self.unit_state = torch.zeros(state)
            self.unit_state[:, 0] = 1
        self.register_buffer("temperature", torch.tensor(temperature))

    def reset_parameters(self) -> None:
        """Redraw the projections."""
        for part in (self.gate_proj, self.value_proj, self.out_proj):
            part.reset_parameters()

    def init_state(self, num_sequences: int, like: Tensor) -> Tensor:
        """Return the first state of sequences, in float32 or wider."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        zeros = torch.zeros(num_sequences, *self.state, dtype=dtype, device=like.device)
        first = self.unit_state if self.learned_state is None else self.learned_state
        return zeros if first is None else zeros + first.to(zeros)

    def rows(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the normalised gates with units before rows, and the values likewise."""
        raw = self.gate_proj(x).to(dtype).unflatten(-1, self.gates).movedim(-1, 2)
        values = self.value_proj(x).to(dtype).unflatten(-1, (-1, self.gates[-1])).movedim(-1, 2)
        return normalized(raw / self.temperature.to(dtype), self.gate), values


class BDLRU(GatedLayer):
    """h_t = A_t h_{t-1} + a_{0,t} v_t in blocks of m entries, or of m rows and C columns."""

    def __init__(
        self,
        hidden_size: int,
        *,
        num_blocks: int,
        block_size: int,
        value_channels: int = 1,
        **options: Any,
    ) -> None:
        shape = (block_size, block_size + 1, num_blocks)
        channels = (value_channels,) if value_channels > 1 else ()
        state = (num_blocks, block_size, *channels)
        super().__init__(hidden_size, shape, state, value_channels, **options)

    def run(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Run over whole rows from a state."""
        gates, values = self.rows(x, h.dtype)
        columns = h.view(*h.shape[:2], self.gates[0], -1)
        states = []
        for t in range(x.shape[1]):
            A, a = gates[:, t, ..., :-1], gates[:, t, ..., -1:]
            columns = A @ columns + a * values[:, t].reshape(columns.shape)
            states.append(columns)
        if not states:
            return x, h
        # In memory order, units come last.
        read = torch.stack(states, 1).movedim(2, -1).flatten(2)
        return self.out_proj(read.to(x.dtype)), columns.view_as(h)


class HLRU(GatedLayer):
    """h_t = sum_i a_{i,t} h_{t-i} + a_{0,t} v_t in channels of order m."""

    def __init__(
        self,
        hidden_size: int,
        *,
        num_channels: int,
        order: int,
        readout: str = "lags",
        **options: Any,
    ) -> None:
        if options.pop("realization", "controller") != "controller":
            raise OptionError("realization must be 'controller' in a layer that travels alone")
        super().__init__(hidden_size, (order + 1, num_channels), (num_channels, order), **options)
        self.readout = readout
        if readout == "lags":
            self.out_proj = nn.Linear(order * num_channels, hidden_size, bias=False)

    def rows(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        raw = self.gate_proj(x).to(dtype).unflatten(-1, self.gates).movedim(-1, 2)
        return normalized(raw / self.temperature.to(dtype), self.gate), self.value_proj(x).to(dtype)

    def run(self, x: Tensor, lags: Tensor) -> tuple[Tensor, Tensor]:
        """Run over whole rows from the last m values of each channel, the latest first."""
        gates, values = self.rows(x, lags.dtype)
        read = []
        for t in range(x.shape[1]):
            h = (gates[:, t, :, :-1] * lags).sum(-1) + gates[:, t, :, -1] * values[:, t]
            lags = torch.cat([h.unsqueeze(-1), lags[..., :-1]], -1)
            read.append(lags.mT.flatten(1) if self.readout == "lags" else h)
        if not read:
            return x, lags
        return self.out_proj(torch.stack(read, 1).to(x.dtype)), lags


class CausalConv(Layer):
    """A convolution over the last tokens."""

    def __init__(self, hidden_size: int, *, kernel_size: int, depthwise: bool = False) -> None:
        super().__init__()
        groups = hidden_size if depthwise else 1
        self.conv = nn.Conv1d(hidden_size, hidden_size, kernel_size, groups=groups)
        self.kept = kernel_size - 1

    def reset_parameters(self) -> None:
        """Redraw the weights."""
        self.conv.reset_parameters()

    def init_state(self, num_sequences: int, like: Tensor) -> Tensor:
        """Return the inputs before the first token, which are zero."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        return like.new_zeros(num_sequences, self.kept, like.shape[-1], dtype=dtype)

    def run(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Run over whole rows from the inputs before them."""
        window = torch.cat([before, x.to(before.dtype)], 1)
        if not x.shape[1]:
            return x, before
        return self.conv(window.to(x.dtype).mT).mT, window[:, window.shape[1] - self.kept :]


class AttentionState(NamedTuple):
    """Keys and values of all tokens so far, and which entries are tokens."""

    keys: Tensor
    values: Tensor
    used: Tensor


class Attention(Layer):
    """Causal softmax attention, with rotary positions on request."""

    def __init__(self, hidden_size: int, *, num_heads: int, rope: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.rope = num_heads, hidden_size // num_heads, rope
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def reset_parameters(self) -> None:
        """Redraw the projections."""
        self.qkv_proj.reset_parameters()
        self.out_proj.reset_parameters()

    def init_state(self, num_sequences: int, like: Tensor) -> AttentionState:
        """Return an empty cache."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        empty = like.new_zeros(num_sequences, 0, self.num_heads, self.head_dim, dtype=dtype)
        return AttentionState(empty, empty, empty[..., 0, 0])

    def run(self, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        """Run over whole rows from a cache."""
        batch, length = x.shape[:2]
        qkv = self.qkv_proj(x).unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = qkv.to(state.keys.dtype).unbind(2)
        if self.rope:
            places = torch.arange(length, device=x.device) + state.used.sum(1, keepdim=True)
            q, k = _rotated(q, places), _rotated(k, places)
        fresh = (k, v, state.used.new_ones(batch, length))
        cache = AttentionState(*(torch.cat(pair, 1) for pair in zip(state, fresh, strict=True)))
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        earlier = state.used.bool()[:, None, None].expand(batch, 1, length, -1)
        mask = torch.cat([earlier, causal.expand(batch, 1, length, length)], -1)
        q, k, v = (part.transpose(1, 2) for part in (q, cache.keys, cache.values))
        o = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(o.transpose(1, 2).flatten(2).to(x.dtype)), cache


def _rotated(x: Tensor, places: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    speeds = 10_000.0 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angles = (places.to(x.dtype).unsqueeze(-1) * speeds).unsqueeze(2)
    first, second = x.chunk(2, -1)
    sin, cos = angles.sin(), angles.cos()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class SwiGLU(nn.Module):
    """Gated linear unit with SiLU and no biases."""

    def __init__(self, hidden_size: int, *, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


LAYERS: dict[str, Callable[..., Layer]] = {
    "bd_lru": BDLRU,
    "h_lru": HLRU,
    "attention": Attention,
    "conv": CausalConv,
}
"""The layers that travel alone, by name."""


class LayerSpec:
    """A layer by name, with its options."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options

    def build(self, *, hidden_size: int) -> Layer:
        """Construct the layer."""
        layer: Layer = LAYERS[self.name](hidden_size, **self.options)
        return layer
