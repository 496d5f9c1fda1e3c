"""FP-Mamba2: a scan of matrix states with scalar decays whose outputs mix its inputs."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.errors import OptionError
from statemix.layers.chunks import ssd
from statemix.layers.fixed_point.fixed_point_layer import Budget
from statemix.layers.fixed_point.fp_mamba import FPMamba, FPMambaState, Projected
from statemix.layers.fixed_point.mixers import MixerName
from statemix.layers.fixed_point.normed import MixerInputs
from statemix.layers.fixed_point.solver import Gradient
from statemix.layers.layer import Flops
from statemix.layers.mamba2 import project_heads
from statemix.layers.option_checks import check_sizes
from statemix.layers.padded import (
    reset_decay,
    reset_linear,
    rms_norm,
)
from statemix.ops import flops
from statemix.registry import passed_on


class FPMamba2(FPMamba):
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
    is released), with one group. There, the norm lets the map have several fixed points, so that
    sequences and single steps may converge to different ones. Ours: ``contraction``, which
    guarantees one.

    In float32 the layer holds inputs up to about 1e9, and gradients for inputs up to about 1e4.

    Args:
        hidden_size: width of input and output.
        d_state: columns of the state, the size of b and c.
        d_conv: taps of the short convolution; 0 leaves only SiLU.
        expand: N, the width of x, divided by ``hidden_size``.
        head_dim: channels of a head; must divide N. None means 64, or the largest divisor of both.
        mixer: "householder", "dplr", "kronecker" or "monarch".
        rank: vectors of the first two, size of the last one's blocks; "kronecker" has none.
        mixer_inputs: "both" (x_t and y_{t-1}), "sum" (x_t + y_{t-1}) or "token" (x_t alone,
            and neither B nor C depend on y_{t-1} either).
        contraction: None is the layer as published. A number in (0, 1) makes each iteration a
            contraction by at least that factor at each token, given the one before: Q_t comes as
            much nearer to I as the scan requires, and gate and norm follow the iteration.
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
        shape (B, N / head_dim, head_dim, d_state).

    Raises:
        OptionError: if a size or a number is out of range, a name is unknown, ``head_dim`` or the
            ``rank`` of a Monarch mixer does not divide N, or ``rank`` is given for a Kronecker
            mixer.

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
        super().__init__(**passed_on(locals(), FPMamba))
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
            hidden_size, inner + self._conv_channels + self.num_heads, bias=False, **placed
        )
        self.A_log = nn.Parameter(torch.empty(self.num_heads, **placed))
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads, **placed))
        self.D = nn.Parameter(torch.empty(self.num_heads, **placed))
        self.reset_parameters()

    @property
    def _conv_channels(self) -> int:
        return self.inner_size + 2 * self.d_state

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
            + self._mixer_projections,
            transition=(self.usual_budget(length) + 1) * (self._mixing_flops + scan + gate),
            other=self.conv.flops_per_token + steps,
        )

    def _project(self, x: Tensor, state: FPMambaState, lengths: Tensor | None) -> Projected:
        p = project_heads(self, x, state, lengths)
        return Projected(p.values, p.z, p.B, p.C, p.steps, p.decays, None, p.conv)

    def _scan(
        self, projected: Projected, values: Tensor, B: Tensor, C: Tensor, ssm: Tensor
    ) -> tuple[Tensor, Tensor]:
        values = values.view(*values.shape[:-1], self.num_heads, self.head_dim)
        inputs = values * projected.steps.unsqueeze(-1)
        assert projected.decays is not None
        o, last = ssd(inputs, projected.decays, B, C, ssm)
        return (o + self.D.to(o.dtype).unsqueeze(-1) * values).flatten(2), last

    def _normalised(self, projected: Projected, o: Tensor) -> Tensor:
        gated = o * functional.silu(projected.z.to(o.dtype))
        return rms_norm(gated, self.norm_weight.to(o.dtype))

    def _gated(self, z: Tensor, y: Tensor, before: Tensor | None) -> Tensor:
        del z, before
        return y
