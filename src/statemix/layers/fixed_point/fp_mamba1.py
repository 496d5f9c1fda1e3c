"""FP-Mamba1: a selective scan of diagonal states whose outputs mix its inputs."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.layers.fixed_point.fixed_point_layer import Budget
from statemix.layers.fixed_point.fp_mamba import FPMamba, FPMambaState, Projected
from statemix.layers.fixed_point.mixers import MixerName
from statemix.layers.fixed_point.normed import MixerInputs, NormedLinear
from statemix.layers.fixed_point.solver import Gradient
from statemix.layers.layer import Flops
from statemix.layers.padded import (
    reset_linear,
    reset_steps,
    rms_norm,
    valid_tokens,
    without_autocast,
)
from statemix.ops import flops
from statemix.ops.selective_scan import selective_scan
from statemix.registry import passed_on


class FPMamba1(FPMamba):
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
        hidden_size: width of input and output.
        d_state: columns of the state, the size of b and c.
        d_conv: taps of the short convolution; 0 leaves only SiLU.
        expand: N, the width of x, divided by ``hidden_size``.
        mixer: "householder", "dplr", "kronecker" or "monarch".
        rank: vectors of the first two, size of the last one's blocks; "kronecker" has none.
        mixer_inputs: "both" (x_t and y_{t-1}), "sum" (x_t + y_{t-1}) or "token" (x_t alone,
            and neither B, C nor the gate depend on y_{t-1} either).
        contraction: None is the layer as published. A number in (0, 1) makes each iteration a
            contraction by at least that factor at each token, given the one before: Q_t comes as
            much nearer to I as the scan requires, and the LayerNorm follows the iteration.
        max_iterations: see :class:`FixedPointLayer`, as for all that follow.
        window: see there.
        budget: see there.
        tolerance: see there.
        quantile: see there.
        damping: see there.
        gradient: see there.
        device: device of the parameters.
        dtype: dtype of the parameters. The state is always float32 or wider.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state :class:`FPMambaState` with ``ssm`` of
        shape (B, expand * hidden_size, d_state).

    Raises:
        OptionError: if a size or a number is out of range, a name is unknown, or ``rank`` does not
            divide the state of a Monarch mixer or is given for a Kronecker mixer.

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
        super().__init__(**passed_on(locals(), FPMamba))
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
    def _conv_channels(self) -> int:
        return self.inner_size

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
            projections=2 * inner * maps + self._mixer_projections,
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
        return Projected(values, z, B.to(dtype), C.to(dtype), steps, None, rates, conv)

    def _arranged(self, ssm: Tensor) -> Tensor:
        return ssm.mT.contiguous().mT

    def _scan(
        self, projected: Projected, values: Tensor, B: Tensor, C: Tensor, ssm: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert projected.rates is not None
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
