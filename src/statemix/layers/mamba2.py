"""Mamba-2: a matrix state with one input-dependent decay per head."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.errors import OptionError
from statemix.layers import fla
from statemix.layers.chunks import log_decays, ssd
from statemix.layers.layer import Flops, Recurrence
from statemix.layers.padded import (
    PaddedLayer,
    ShortConvolution,
    reset_decay,
    reset_linear,
    rms_norm,
    valid_tokens,
)
from statemix.layers.state import loadable
from statemix.ops import flops
from statemix.ops.checks import check_placement, check_sizes
from statemix.ops.portable import without_autocast


@loadable
class Mamba2State(NamedTuple):
    """State of Mamba-2, float32 or wider.

    Attributes:
        ssm: shape (B, num_heads, head_dim, d_state).
        conv: the last inputs of the short convolution, (B, max(d_conv - 1, 0), channels).
    """

    ssm: Tensor
    conv: Tensor


class Mamba2(PaddedLayer):
    r"""State space model whose state is a matrix with a scalar decay per head (SSD).

    .. math::
        S_t &= e^{\Delta_t A} S_{t-1} + \Delta_t x_t B_t^\top, \qquad
        o_t = S_t C_t + D x_t \\
        y_t &= W_o\, \mathrm{RMSNorm}(o_t \odot \mathrm{silu}(z_t)), \qquad
        \Delta_t = \mathrm{softplus}(\delta_t + c)

    in each head of ``head_dim`` channels, with A < 0. All heads share B and C. One linear map of
    the input gives z, x, B, C and delta; a short convolution and SiLU follow for x, B and C.

    Source: Dao and Gu (2024), "Transformers are SSMs". Names, defaults and initialisation follow
    ``mamba_ssm.Mamba2`` with one group: A uniform in [-16, -1], steps softplus(c) log-uniform in
    [0.001, 0.1], D = 1. Chunks are computed as masked attention, which is exact. On a GPU, in
    bfloat16 or float16, kernels of flash-linear-attention serve if it is installed.

    The state grows with the third power of the input: in float32 it holds inputs up to about 1e12,
    and where no gate of a token is open, gradients up to about 1e7.

    Args:
        d_state: columns of the state, the size of B and C.
        d_conv: taps of the short convolution; 0 leaves only SiLU.
        expand: width of x and z divided by ``hidden_size``.
        head_dim: channels of a head; must divide ``expand * hidden_size``.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state :class:`Mamba2State`.

    Example:
        >>> layer = Mamba2(hidden_size=8, d_state=4, head_dim=8)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y.shape, state.ssm.shape, state.conv.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 2, 8, 4]), torch.Size([2, 3, 24]))
    """

    name = "mamba2"
    entry = "in_proj"
    state_class = Mamba2State

    def __init__(
        self,
        hidden_size: int,
        *,
        d_state: int = 128,
        d_conv: int = 4,
        expand: int = 2,
        head_dim: int = 64,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size, d_state=d_state, expand=expand, head_dim=head_dim)
        check_sizes(0, d_conv=d_conv)
        check_placement(device, dtype)
        inner = expand * hidden_size
        if inner % head_dim:
            raise OptionError(
                f"head_dim must divide expand * hidden_size, got {head_dim} and {inner}"
            )
        self.hidden_size = hidden_size
        self.d_state = d_state
        self.d_conv = d_conv
        self.expand = expand
        self.head_dim = head_dim
        self.num_heads = inner // head_dim
        self._widths = (inner, d_state, d_state)

        channels = sum(self._widths)
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(
            hidden_size, inner + channels + self.num_heads, bias=False, **placed
        )
        self.conv = ShortConvolution(channels, d_conv, bias=True, **placed)
        self.A_log = nn.Parameter(torch.empty(self.num_heads, **placed))
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads, **placed))
        self.D = nn.Parameter(torch.empty(self.num_heads, **placed))
        self.norm_weight = nn.Parameter(torch.empty(inner, **placed))
        self.out_proj = nn.Linear(inner, hidden_size, bias=False, **placed)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters as the class describes; projections as in PyTorch."""
        reset_linear(self.in_proj, generator)
        reset_linear(self.out_proj, generator)
        self.conv.reset_parameters(generator)
        reset_decay(self.A_log, self.dt_bias, generator, least=1.0)
        nn.init.ones_(self.D)
        nn.init.ones_(self.norm_weight)

    @property
    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        conv = (self.conv.num_kept, self.conv.channels)
        return (self.num_heads, self.head_dim, self.d_state), conv

    def flops_per_token(self, length: int) -> Flops:
        del length
        inner = self._widths[0]
        steps = self.num_heads * (flops.SOFTPLUS + 2)  # Delta, Delta A, and its exponential.
        inputs, skip = inner, 2 * inner  # Delta x and D x.
        gated_norm = inner * (flops.SILU + 1) + flops.rms_norm(inner)
        return Flops(
            projections=2 * self.hidden_size * (self.in_proj.out_features + inner),
            # S decays (1), receives an outer product (2) and is read (2).
            transition=5 * inner * self.d_state,
            other=self.conv.flops_per_token + steps + inputs + skip + gated_norm,
        )

    def _run(
        self, x: Tensor, state: Mamba2State, lengths: Tensor | None
    ) -> tuple[Tensor, Mamba2State]:
        p = project_heads(self, x, state, lengths)
        dtype = p.values.dtype
        with without_autocast(x.device):
            # Readouts multiply four projections of the input and the gate is a fifth: their
            # product may overflow although its direction, all that the norm keeps, does not.
            z = p.z.to(dtype)
            largest = p.C.detach().abs().amax(-1, keepdim=True)
            size = (largest * z.detach().amax(-1, keepdim=True).clamp(min=1)).clamp(min=1)
            scale = size.clamp(max=1 / torch.finfo(dtype).tiny).reciprocal()
            values = p.values.view(*x.shape[:2], self.num_heads, self.head_dim)
            inputs = values * p.steps.unsqueeze(-1)
            arguments = (inputs, p.decays, p.B, p.C * scale, state.ssm.to(dtype))
            if fla.serves(x, p.z.dtype, self.d_state):
                o, ssm = fla.ssd(*arguments, p.z.dtype)
            else:
                o, ssm = ssd(*arguments)
            D = self.D.to(dtype) * scale
            o = (o + D.unsqueeze(-1) * values).flatten(2)
            o = o * functional.silu(z)
            o = rms_norm(o, self.norm_weight.to(dtype), scale).to(p.z.dtype)
        return self.out_proj(o), Mamba2State(ssm.to(state.ssm.dtype), p.conv)

    def recurrence(self, x: Tensor) -> Recurrence:
        """Return a unit for each head: one scalar transition for all entries of its matrix."""
        state = self.init_state(self._check_sequence(x, None, None), x.device, x.dtype)
        p = project_heads(self, x, state, None)
        with without_autocast(x.device):
            decays = p.decays.exp()[..., None, None]
            values = p.values.view(*x.shape[:2], self.num_heads, self.head_dim)
            inputs = (values * p.steps.unsqueeze(-1)).unsqueeze(-1) * p.B[:, :, None, None]
        return Recurrence(
            decays,
            torch.ones_like(decays),
            inputs.flatten(-2).unsqueeze(-2),
            state.ssm.flatten(-2).unsqueeze(-2),
            unit="head",
        )


class Projected(NamedTuple):
    """Projections of the input of Mamba-2 and FP-Mamba, and the state of the convolution."""

    values: Tensor  # x of the equations, (B, T, N)
    z: Tensor  # input of the output gate, (B, T, N), in the dtype of the projection
    B: Tensor  # input maps, (B, T, d_state)
    C: Tensor  # readout maps, (B, T, d_state)
    steps: Tensor  # Delta, (B, T, N) or (B, T, H)
    conv: Tensor
    rates: Any = None  # -A, (S, N), if the scan multiplies it with the steps
    decays: Any = None  # Delta A, the logarithm of the transitions, (B, T, H), if it does not

    def during(self, span: slice) -> "Projected":
        """Return the same for some of the tokens."""
        names = ("values", "z", "B", "C", "steps") + ("decays",) * (self.decays is not None)
        return self._replace(**{name: getattr(self, name)[:, span] for name in names})


def project_heads(layer: Any, x: Tensor, state: Any, lengths: Tensor | None) -> Projected:
    """Project the input of Mamba-2, or of a layer with the same maps, heads and state."""
    inner, d_state, heads = layer.expand * layer.hidden_size, layer.d_state, layer.num_heads
    z, to_mix, raw_steps = layer.in_proj(x).split([inner, inner + 2 * d_state, heads], -1)
    with without_autocast(x.device):
        mixed, conv = layer.conv(to_mix, state.conv, lengths)
        dtype = torch.promote_types(mixed.dtype, state.ssm.dtype)
        values, B, C = mixed.to(dtype).split([inner, d_state, d_state], -1)
        raw_steps = raw_steps.to(dtype) + layer.dt_bias.to(dtype)
        steps = functional.softplus(raw_steps)
        decays = log_decays(layer.A_log.to(dtype), raw_steps)
        if lengths is not None:
            valid = valid_tokens(x, lengths).unsqueeze(-1)
            steps, decays = steps * valid, decays * valid
    return Projected(values, z, B, C, steps, conv, decays=decays)
