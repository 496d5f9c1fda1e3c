"""FP-Mamba1 and FP-Mamba2: selective scans whose outputs mix their inputs."""

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.errors import OptionError
from statemix.layers.chunks import ssd
from statemix.layers.fixed_point.fixed_point_layer import (
    Advanced,
    Budget,
    FixedPointLayer,
    Tensors,
    shifted,
)
from statemix.layers.fixed_point.mixers import MixerName
from statemix.layers.fixed_point.solver import Gradient
from statemix.layers.fixed_point.state_mixer import MixerInputs, NormedLinear
from statemix.layers.layer import Flops
from statemix.layers.mamba2 import Projected, project_heads
from statemix.layers.padded import (
    ShortConvolution,
    last_inputs,
    reset_decay,
    reset_linear,
    reset_steps,
    rms_norm,
    unit_length,
    valid_tokens,
)
from statemix.layers.state import loadable
from statemix.ops import flops
from statemix.ops.checks import check_sizes
from statemix.ops.portable import without_autocast
from statemix.ops.selective_scan import selective_scan
from statemix.registry import passed_on


@loadable
class FPMambaState(NamedTuple):
    """State of FP-Mamba, float32 or wider.

    Attributes:
        ssm: state of the scan; its shape is in the class of the layer.
        output: y of the last token, shape (B, expand * hidden_size).
        conv: the last inputs of the short convolution, (B, max(d_conv - 1, 0), channels).
    """

    ssm: Tensor
    output: Tensor
    conv: Tensor


class _FPMamba(FixedPointLayer):
    """A selective state space model whose outputs are the fixed point of its scan.

    The short convolution also sees B and C (``conv_maps`` is 2) or the values alone (0).
    """

    D: nn.Parameter

    entry = "in_proj"
    state_class = FPMambaState

    def __init__(
        self, *, d_state: int, d_conv: int, conv_maps: int, device: Any, dtype: Any, **options: Any
    ) -> None:
        super().__init__(device=device, dtype=dtype, **options)
        check_sizes(d_state=d_state)
        check_sizes(0, d_conv=d_conv)
        self.d_state = d_state
        self.d_conv = d_conv
        inner = self.inner_size
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        if self.mixer_inputs != "token":
            self.map_proj = NormedLinear(inner, 2 * d_state, "token", **placed)
        self.conv = ShortConvolution(inner + conv_maps * d_state, d_conv, bias=True, **placed)
        self.norm_weight = nn.Parameter(torch.empty(inner, **placed))
        self.out_proj = nn.Linear(inner, self.hidden_size, bias=False, **placed)

    @property
    @abstractmethod
    def _ssm_shape(self) -> tuple[int, ...]:
        """Shape of the state of one sequence's scan."""

    @abstractmethod
    def _project(self, x: Tensor, state: FPMambaState, lengths: Tensor | None) -> Projected:
        """Return the projections of the input; padding has step 0 and decay 1."""

    @abstractmethod
    def _scan(
        self, projected: Projected, values: Tensor, B: Tensor, C: Tensor, ssm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return readouts (B, T, N), D included, and the last state of the scan."""

    def _arranged(self, ssm: Tensor) -> Tensor:
        """Return the state of the scan in the memory order that every iteration reads."""
        return ssm

    @abstractmethod
    def _normalised(self, projected: Projected, o: Tensor) -> Tensor:
        """Return y of readouts o; without contraction, the iteration feeds it back."""

    def _gated(self, z: Tensor, y: Tensor, before: Tensor | None) -> Tensor:
        """Return the gated y, shape (B, T, N), given z, y and y one token earlier, if it counts."""
        del z, before
        return y

    @property
    def _feeds_back(self) -> bool:
        """Whether tokens depend on the output before them."""
        return self.mixer_inputs != "token" and self.max_iterations != 1

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw the parameters that both layers have."""
        self.state_mixer.reset_parameters(generator)
        if self.mixer_inputs != "token":
            self.map_proj.reset_parameters(generator)
        self.conv.reset_parameters(generator)
        nn.init.ones_(self.norm_weight)
        reset_linear(self.out_proj, generator)

    @property
    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return self._ssm_shape, (self.inner_size,), (self.conv.num_kept, self.conv.channels)

    def _run(
        self, x: Tensor, state: FPMambaState, lengths: Tensor | None
    ) -> tuple[Tensor, FPMambaState]:
        p = self._project(x, state, lengths)
        dtype = p.values.dtype
        valid = None if lengths is None else valid_tokens(x, lengths)
        prepared = [part.to(dtype) for part in self.state_mixer.prepare(p.values.to(x.dtype))]
        with without_autocast(x.device):
            feeds_back = self._feeds_back
            maps = self.map_proj(None).to(dtype) if feeds_back else None
            share = self._share(p)
            first = state.output.to(dtype)

            def piece(y: Tensor, carried: Tensors, span: slice) -> Advanced:
                part = p.during(span)
                ssm, last = carried
                before = shifted(y, last) if feeds_back else torch.zeros_like(y)
                change = self.state_mixer.change(prepared, span, before, part.values - y)
                if share is not None:
                    change = share[:, span] * change
                both = torch.cat([part.B, part.C], -1)
                if maps is not None:
                    both = both + maps(before)
                B, C = (unit_length(one) for one in both.chunk(2, -1))
                o, ssm = self._scan(part, part.values - change, B, C, ssm)
                if self.contraction is None:
                    o = self._normalised(part, o)
                return o, (ssm, y[:, -1])

            carried = (self._arranged(state.ssm.to(dtype)), first)
            start = torch.zeros_like(p.values)
            y = self._solved(piece, carried, start, valid).value
            # The state that belongs to y, through which gradients flow as through y.
            argument = start if self.max_iterations == 1 else y
            _, (ssm, _) = piece(argument, carried, slice(y.shape[1]))
            final = last_inputs(torch.cat([first.unsqueeze(1), y], 1), 1, lengths)[:, 0]
            read = y if self.contraction is None else self._normalised(p, y)
        before = shifted(y, first).to(x.dtype) if feeds_back else None
        gated = self._gated(p.z, read.to(x.dtype), before)
        out: Tensor = self.out_proj(gated)
        return out, FPMambaState(
            ssm.to(state.ssm.dtype).contiguous(), final.to(state.output.dtype), p.conv
        )

    @property
    def _mixing_flops(self) -> int:
        """FLOPs of one iteration for a token, but for the scan and the norm."""
        seen = 0 if self.mixer_inputs == "token" else self.state_mixer.projections
        # The part of y in both maps, and their lengths; the sums around the mixer.
        maps = 2 * self.d_state * (2 * self.inner_size + 1) if self._feeds_back else 0
        lengths = 2 * flops.l2_norm(self.d_state)
        share = 0 if self.contraction is None else self.inner_size
        return seen + self.state_mixer.flops + maps + lengths + 2 * self.inner_size + share

    def _share(self, projected: Projected) -> Tensor | None:
        """Return the share of the mixer's deviation that makes a contraction; None means all."""
        if self.contraction is None:
            return None
        # b and c have length 1, so that a readout grows with its value at most by this gain.
        gain = projected.steps + self.D.abs().to(projected.steps.dtype)
        bounds = gain.amax(-1, keepdim=True) * self.state_mixer.bound
        return (self.contraction / bounds).clamp(max=1)


class FPMamba1(_FPMamba):
    r"""Mamba whose channels are mixed by iterating its scan.

    The output y is the fixed point of

    .. math::
        u_t &= Q_t (x_t - y_t) + y_t \\
        S_t &= e^{\Delta_t A} \odot S_{t-1} + (\Delta_t \odot u_t) b_t^\top, \qquad
        y_t = \mathrm{LayerNorm}(S_t c_t + D \odot u_t) \\
        [b_t, c_t] &= \text{of length 1 each, from } W_{bc} x_t + W_y y_{t-1}

    with :math:`[x, z] = W_i\, \text{input}`, a short convolution and SiLU for x,
    :math:`\Delta_t = \mathrm{softplus}(W_\Delta x_t + c)` of low rank, A < 0 and
    Q_t from a state mixer of x_t and y_{t-1} (``mixer_inputs``). Each iteration mixes all tokens
    and runs one diagonal scan, beginning with y = 0; a single one is Mamba with normalised maps.
    The output of the layer is :math:`W_o (\mathrm{silu}(z_t + W_z y_{t-1}) \odot y_t)`.

    Source: Movahedi et al., "Fixed-Point RNNs", FP-Mamba1 as in its code. There, the LayerNorm lets
    the map have several fixed points, so sequences and single steps may converge to different
    points. Ours: ``contraction``, which guarantees a single fixed point.

    In float32 the layer holds inputs up to about 1e9, and gradients for inputs up to about 1e4.

    Args:
        d_state: columns of the state, the size of b and c.
        d_conv: taps of the short convolution; 0 leaves only SiLU.
        expand: N, the width of x, divided by ``hidden_size``.
        mixer_inputs: "both" (x_t and y_{t-1}), "sum" (x_t + y_{t-1}) or "token" (x_t alone,
            and neither B, C nor the gate depend on y_{t-1} either).
        contraction: None is the layer as published. A number in (0, 1) makes each iteration a
            contraction by at least that factor at each token, given the one before: Q_t comes as
            much nearer to I as the scan requires, and the LayerNorm follows the iteration.

    :class:`FPRNN` documents the other options.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state :class:`FPMambaState` with ``ssm`` of
        shape (B, expand * hidden_size, d_state).

    Example:
        >>> layer = FPMamba1(hidden_size=8, d_state=4)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y.shape, state.ssm.shape, state.output.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 16, 4]), torch.Size([2, 16]))
    """

    name = "fp_mamba1"

    def __init__(
        self,
        hidden_size: int,
        *,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        mixer: MixerName = "householder",
        rank: int = 1,
        mixer_inputs: MixerInputs = "both",
        contraction: float | None = None,
        max_iterations: int | None = None,
        window: int | None = None,
        budget: Budget = "fixed",
        tolerance: float = 1e-2,
        quantile: float = 1.0,
        damping: float = 0.99,
        gradient: Gradient = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(conv_maps=0, **passed_on(locals(), _FPMamba))
        inner = self.inner_size
        self._low = math.ceil(hidden_size / 16)
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(hidden_size, 2 * inner, bias=False, **placed)
        self.x_proj = nn.Linear(inner, self._low + 2 * d_state, bias=False, **placed)
        self.dt_proj = nn.Linear(self._low, inner, **placed)
        if mixer_inputs != "token":
            self.gate_proj = NormedLinear(inner, inner, "token", **placed)
        self.A_log = nn.Parameter(torch.empty((inner, d_state), **placed))
        self.D = nn.Parameter(torch.empty(inner, **placed))
        self.norm_bias = nn.Parameter(torch.empty(inner, **placed))
        self.reset_parameters()

    @property
    def _ssm_shape(self) -> tuple[int, ...]:
        return (self.inner_size, self.d_state)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters; A is -1 ... -d_state, steps and D as in Mamba."""
        super().reset_parameters(generator)
        for linear in (self.in_proj, self.x_proj, self.dt_proj):
            reset_linear(linear, generator)
        reset_steps(self.dt_proj.bias, generator)
        if self.mixer_inputs != "token":
            self.gate_proj.reset_parameters(generator)
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1, self.d_state + 1).log().expand_as(self.A_log))
        nn.init.ones_(self.D)
        nn.init.zeros_(self.norm_bias)

    def flops_per_token(self, length: int) -> Flops:
        """Count as many iterations as the budget allows, and the one that gives the state."""
        inner, entries = self.inner_size, self.inner_size * self.d_state
        # Delta u; Delta A and its exponential; products with b, the scan and the readout; D u.
        scan = inner + (2 + 1 + 2 + 2) * entries + 2 * inner
        # The mean, its difference, the length and the bias.
        norm = 3 * inner + flops.rms_norm(inner)
        maps = 3 * self.hidden_size + 2 * self._low + 2 * self.d_state + inner * self._feeds_back
        steps = inner * (flops.SOFTPLUS + 1)
        return Flops(
            projections=2 * inner * maps + self.state_mixer.projections,
            transition=(self.usual_budget(length) + 1) * (self._mixing_flops + scan + norm),
            other=self.conv.flops_per_token + steps + inner * (1 + flops.SILU + 1),
        )

    def _project(self, x: Tensor, state: FPMambaState, lengths: Tensor | None) -> Projected:
        to_mix, z = self.in_proj(x).chunk(2, -1)
        with without_autocast(x.device):
            values, conv = self.conv(to_mix, state.conv, lengths)
            dtype = torch.promote_types(values.dtype, state.ssm.dtype)
            values = values.to(dtype)
        low, B, C = self.x_proj(values.to(x.dtype)).split(
            [self._low, self.d_state, self.d_state], -1
        )
        raw_steps = self.dt_proj(low).to(dtype)
        with without_autocast(x.device):
            steps = functional.softplus(raw_steps)
            if lengths is not None:
                steps = steps * valid_tokens(x, lengths).unsqueeze(-1)
            rates = self.A_log.to(dtype).exp().mT.contiguous()
        return Projected(values, z, B.to(dtype), C.to(dtype), steps, conv, rates=rates)

    def _arranged(self, ssm: Tensor) -> Tensor:
        return ssm.mT.contiguous().mT

    def _scan(
        self, projected: Projected, values: Tensor, B: Tensor, C: Tensor, ssm: Tensor
    ) -> tuple[Tensor, Tensor]:
        written = projected.steps * values
        read, last = selective_scan(projected.steps, projected.rates, written, B, C, ssm.mT)
        return torch.addcmul(read, self.D.to(values.dtype), values), last.mT

    def _normalised(self, projected: Projected, o: Tensor) -> Tensor:
        del projected
        centred = o - o.mean(-1, keepdim=True)
        return rms_norm(centred, self.norm_weight.to(o.dtype)) + self.norm_bias.to(o.dtype)

    def _gated(self, z: Tensor, y: Tensor, before: Tensor | None) -> Tensor:
        if before is not None:
            z = z + self.gate_proj(before).constant
        return functional.silu(z) * y


class FPMamba2(_FPMamba):
    r"""Mamba-2 whose channels are mixed by iterating its scan.

    The output y is the fixed point of

    .. math::
        u_t &= Q_t (x_t - y_t) + y_t \\
        S_t &= e^{\Delta_t A} S_{t-1} + \Delta_t u_t b_t^\top, \qquad
        y_t = \mathrm{RMSNorm}\big((S_t c_t + D u_t) \odot \mathrm{silu}(z_t)\big) \\
        [b_t, c_t] &= \text{of length 1 each, from } [B_t, C_t] + W_y y_{t-1}

    where S, D, A and the steps belong to heads of ``head_dim`` channels, all heads share b and c,
    one linear map of the input gives z, x, B, C and the raw steps, a short convolution and SiLU
    follow for x, B and C, and Q_t comes from a state mixer of x_t and y_{t-1} (``mixer_inputs``).
    Each iteration mixes all tokens and runs one scan, beginning with y = 0; a single one is Mamba-2
    with normalised maps. The output of the layer is :math:`W_o y_t`.

    Source: Movahedi et al., "Fixed-Point RNNs", FP-Mamba2 as in its code (which does not run as it
    is released), with one group. As for FP-Mamba1, ``contraction`` is ours.

    In float32 the layer holds inputs up to about 1e9, and gradients for inputs up to about 1e4.

    Args:
        head_dim: channels of a head; must divide N. None means 64, or the largest divisor of both.

    :class:`FPMamba1` documents the other options; with a contraction, gate and norm follow the
    iteration.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state :class:`FPMambaState` with ``ssm`` of
        shape (B, N / head_dim, head_dim, d_state).

    Example:
        >>> layer = FPMamba2(hidden_size=8, d_state=4, head_dim=4)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y.shape, state.ssm.shape, state.output.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 4, 4, 4]), torch.Size([2, 16]))
    """

    name = "fp_mamba2"

    def __init__(
        self,
        hidden_size: int,
        *,
        d_state: int = 128,
        d_conv: int = 4,
        expand: int = 2,
        head_dim: int | None = None,
        mixer: MixerName = "householder",
        rank: int = 1,
        mixer_inputs: MixerInputs = "both",
        contraction: float | None = None,
        max_iterations: int | None = None,
        window: int | None = None,
        budget: Budget = "fixed",
        tolerance: float = 1e-2,
        quantile: float = 1.0,
        damping: float = 0.99,
        gradient: Gradient = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(conv_maps=2, **passed_on(locals(), _FPMamba))
        inner = self.inner_size
        self.head_dim = math.gcd(inner, 64) if head_dim is None else head_dim
        check_sizes(head_dim=self.head_dim)
        if inner % self.head_dim:
            raise OptionError(
                f"head_dim must divide expand * hidden_size, got {self.head_dim} and {inner}"
            )
        self.num_heads = inner // self.head_dim
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(
            hidden_size, inner + self.conv.channels + self.num_heads, bias=False, **placed
        )
        self.A_log = nn.Parameter(torch.empty(self.num_heads, **placed))
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads, **placed))
        self.D = nn.Parameter(torch.empty(self.num_heads, **placed))
        self.reset_parameters()

    @property
    def _ssm_shape(self) -> tuple[int, ...]:
        return (self.num_heads, self.head_dim, self.d_state)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters; A, steps and D as in :class:`Mamba2`."""
        super().reset_parameters(generator)
        reset_linear(self.in_proj, generator)
        reset_decay(self.A_log, self.dt_bias, generator, least=1.0)
        nn.init.ones_(self.D)

    def flops_per_token(self, length: int) -> Flops:
        """Count as many iterations as the budget allows, and the one that gives the state."""
        gate = self.inner_size * (flops.SILU + 1) + flops.rms_norm(self.inner_size)
        scan = 5 * self.inner_size * self.d_state + 3 * self.inner_size
        steps = self.num_heads * (flops.SOFTPLUS + 2)
        return Flops(
            projections=2 * self.hidden_size * (self.in_proj.out_features + self.inner_size)
            + self.state_mixer.projections,
            transition=(self.usual_budget(length) + 1) * (self._mixing_flops + scan + gate),
            other=self.conv.flops_per_token + steps,
        )

    def _project(self, x: Tensor, state: FPMambaState, lengths: Tensor | None) -> Projected:
        return project_heads(self, x, state, lengths)

    def _scan(
        self, projected: Projected, values: Tensor, B: Tensor, C: Tensor, ssm: Tensor
    ) -> tuple[Tensor, Tensor]:
        values = values.view(*values.shape[:-1], self.num_heads, self.head_dim)
        inputs = values * projected.steps.unsqueeze(-1)
        o, last = ssd(inputs, projected.decays, B, C, ssm)
        return (o + self.D.to(o.dtype).unsqueeze(-1) * values).flatten(2), last

    def _normalised(self, projected: Projected, o: Tensor) -> Tensor:
        gated = o * functional.silu(projected.z.to(o.dtype))
        return rms_norm(gated, self.norm_weight.to(o.dtype))
