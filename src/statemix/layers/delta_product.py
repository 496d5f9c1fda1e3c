"""DeltaNet and DeltaProduct: a matrix state, rotated by generalised Householder matrices."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.errors import OptionError
from statemix.layers import fla
from statemix.layers.chunks import delta_rule, log_decays
from statemix.layers.layer import Flops, Recurrence
from statemix.layers.padded import (
    PaddedLayer,
    ShortConvolution,
    reset_decay,
    reset_linear,
    rms_norm,
    unit_length,
    valid_tokens,
)
from statemix.layers.state import loadable
from statemix.ops import flops
from statemix.ops.checks import check_placement, check_sizes, check_switches
from statemix.ops.portable import without_autocast
from statemix.registry import passed_on


@loadable
class DeltaState(NamedTuple):
    """State of DeltaNet and DeltaProduct, float32 or wider.

    Attributes:
        memory: shape (B, num_heads, head_dim, head_dim * expand_v).
        conv: the last inputs of the short convolution, (B, max(conv_size - 1, 0), channels).
    """

    memory: Tensor
    conv: Tensor


class DeltaProduct(PaddedLayer):
    r"""Linear attention whose memory several delta-rule updates per token correct.

    Each head has a memory S of head_dim rows, one per key channel. A token decays it once and
    then applies n = ``num_householder`` updates, each with its own key, value and strength:

    .. math::
        S_{t,0} &= e^{g_t} S_{t-1,n}, \qquad
        S_{t,j} = (I - \beta_{t,j} k_{t,j} k_{t,j}^\top) S_{t,j-1}
            + \beta_{t,j} k_{t,j} v_{t,j}^\top, \quad j = 1..n \\
        o_t &= S_{t,n}^\top q_t / \sqrt{\mathrm{head\_dim}}, \qquad
        y_t = W_o\, \mathrm{RMSNorm}(o_t)

    Queries, keys and values are linear in x_t, followed by a short convolution and SiLU; queries
    and keys then have length 1. The strength is sigmoid(w x_t), doubled if ``allow_neg_eigval``, so
    that the eigenvalue 1 - beta lies in (-1, 1) instead of (0, 1). The decay is
    g_t = -exp(A) softplus(w x_t + c) with ``use_forget_gate``, otherwise 0.

    Source: Siems et al. (2025), "DeltaProduct"; eigenvalues in [-1, 1]: Grazzi et al. (2025);
    gated: Yang et al. (2025). Names follow ``GatedDeltaProduct`` of flash-linear-attention. Chunks
    of updates are solved together as a triangular system, which is exact (WY representation). On a
    GPU, in bfloat16 or float16, kernels of flash-linear-attention serve if it is installed.

    With ``use_output_gate``, gradients grow with the square of the input on their way: in float32
    they are finite for inputs up to about 1e15.

    Args:
        num_heads: number of heads.
        num_householder: updates n per token; the transition is a product of n Householder matrices.
        head_dim: size of queries and keys; None means ``hidden_size // num_heads``.
        expand_v: size of values divided by ``head_dim``.
        allow_neg_eigval: whether beta reaches 2, "[-1, 1]" in tables.
        use_forget_gate: whether the memory decays ("gated").
        use_output_gate: whether the normalised output is multiplied by silu(W x_t).
        conv_size: taps of the short convolution; 0 leaves only SiLU.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state :class:`DeltaState`.

    Example:
        >>> layer = DeltaProduct(hidden_size=8, num_heads=2, num_householder=3)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y.shape, state.memory.shape, state.conv.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 3, 56]))
    """

    name = "delta_product"
    entry = "qkv_proj"
    state_class = DeltaState

    def __init__(
        self,
        hidden_size: int,
        *,
        num_heads: int,
        num_householder: int = 4,
        head_dim: int | None = None,
        expand_v: int = 1,
        allow_neg_eigval: bool = True,
        use_forget_gate: bool = False,
        use_output_gate: bool = False,
        conv_size: int = 4,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size, num_heads=num_heads, num_householder=num_householder)
        if head_dim is None:
            if hidden_size % num_heads:
                raise OptionError(
                    f"num_heads must divide hidden_size unless head_dim is given, got {num_heads} "
                    f"and {hidden_size}"
                )
            head_dim = hidden_size // num_heads
        check_sizes(head_dim=head_dim, expand_v=expand_v)
        check_switches(
            allow_neg_eigval=allow_neg_eigval,
            use_forget_gate=use_forget_gate,
            use_output_gate=use_output_gate,
        )
        check_sizes(0, conv_size=conv_size)
        check_placement(device, dtype)
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.num_householder = num_householder
        self.head_dim = head_dim
        self.expand_v = expand_v
        self.allow_neg_eigval = allow_neg_eigval
        self.use_forget_gate = use_forget_gate
        self.use_output_gate = use_output_gate
        self.conv_size = conv_size

        keys = num_heads * head_dim
        values = keys * expand_v
        self._widths = (keys, keys * num_householder, values * num_householder)
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        self.qkv_proj = nn.Linear(hidden_size, sum(self._widths), bias=False, **placed)
        self.b_proj = nn.Linear(hidden_size, num_householder * num_heads, bias=False, **placed)
        self.conv = ShortConvolution(sum(self._widths), conv_size, **placed)
        if use_forget_gate:
            self.a_proj = nn.Linear(hidden_size, num_heads, bias=False, **placed)
            self.A_log = nn.Parameter(torch.empty(num_heads, **placed))
            self.dt_bias = nn.Parameter(torch.empty(num_heads, **placed))
        if use_output_gate:
            self.g_proj = nn.Linear(hidden_size, values, bias=False, **placed)
        self.norm_weight = nn.Parameter(torch.empty(head_dim * expand_v, **placed))
        self.out_proj = nn.Linear(values, hidden_size, bias=False, **placed)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters: projections as in PyTorch, decays as in Mamba-2."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                reset_linear(module, generator)
        self.conv.reset_parameters(generator)
        nn.init.ones_(self.norm_weight)
        if self.use_forget_gate:
            reset_decay(self.A_log, self.dt_bias, generator, least=0.0)

    @property
    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        conv = (self.conv.num_kept, self.conv.channels)
        return (self.num_heads, self.head_dim, self.head_dim * self.expand_v), conv

    def flops_per_token(self, length: int) -> Flops:
        del length
        n, heads, key = self.num_householder, self.num_heads, self.head_dim
        value = key * self.expand_v
        gates = self.use_forget_gate + self.use_output_gate * value
        columns = sum(self._widths) + heads * (n + gates + value)  # The last ones are W_o's rows.
        # An update reads S^T k (2), and adds an outer product (2); then q reads (2), S decays (1).
        per_entry = 4 * n + 2 + self.use_forget_gate
        norms = (n + 1) * flops.l2_norm(key) + key + flops.rms_norm(value)
        strengths = n * (flops.SIGMOID + self.allow_neg_eigval + value)
        decay = flops.SOFTPLUS + 2 if self.use_forget_gate else 0
        gate = value * (flops.SILU + 1) if self.use_output_gate else 0
        return Flops(
            projections=2 * self.hidden_size * columns,
            transition=heads * key * value * per_entry,
            other=self.conv.flops_per_token + heads * (norms + strengths + decay + gate),
        )

    def _run(
        self, x: Tensor, state: DeltaState, lengths: Tensor | None
    ) -> tuple[Tensor, DeltaState]:
        u = self._updates(x, state, lengths)
        gate = self.g_proj(x) if self.use_output_gate else None
        dtype = u.v.dtype
        with without_autocast(x.device):
            updates = (u.q * self.head_dim**-0.5, u.k, u.v, u.beta, u.g, state.memory.to(dtype))
            if fla.serves(x, u.dtype, self.head_dim):
                o, memory = fla.delta_rule(*updates, u.dtype)
            else:
                o, memory = delta_rule(*updates)
            o = rms_norm(o.to(dtype), self.norm_weight.to(dtype)).flatten(2)
            if gate is not None:
                o = o * functional.silu(gate.to(dtype))
            o = o.to(u.dtype)
        return self.out_proj(o), DeltaState(memory.to(state.memory.dtype), u.conv)

    def recurrence(self, x: Tensor) -> Recurrence:
        """Return a unit for each head, with a value for each of its updates."""
        state = self.init_state(self._check_sequence(x, None, None), x.device, x.dtype)
        u = self._updates(x, state, None)
        with without_autocast(x.device):
            identity = torch.eye(self.head_dim, dtype=u.k.dtype, device=x.device)
            transitions = identity if u.g is None else u.g.exp()[..., None, None] * identity
            inputs: list[Tensor] = []
            for k, beta in zip(u.k.unbind(2), u.beta.unbind(2), strict=True):
                written = beta.unsqueeze(-1) * k
                reflection = identity - written.unsqueeze(-1) * k.unsqueeze(-2)
                transitions = reflection @ transitions
                # Later updates of the same token also change what earlier ones wrote.
                inputs = [(reflection @ b.unsqueeze(-1)).squeeze(-1) for b in inputs] + [written]
        input_maps, values = torch.stack(inputs, -1), u.v.transpose(2, 3)
        return Recurrence(transitions, input_maps, values, state.memory, unit="head")

    def _updates(self, x: Tensor, state: DeltaState, lengths: Tensor | None) -> "_Updates":
        projected = self.qkv_proj(x)
        strengths = self.b_proj(x)
        decays = self.a_proj(x) if self.use_forget_gate else None
        with without_autocast(x.device):
            mixed, conv = self.conv(projected, state.conv, lengths)
            dtype = torch.promote_types(mixed.dtype, state.memory.dtype)
            per_head = (self.num_householder, self.num_heads)
            queries, keys, values = self._widths
            directions, v = mixed.to(dtype).split([queries + keys, values], -1)
            directions = unit_length(directions.unflatten(-1, (-1, self.head_dim)))
            q, k = directions.tensor_split([self.num_heads], -2)
            k = k.reshape(*k.shape[:-2], *per_head, self.head_dim)
            v = v.unflatten(-1, (*per_head, self.head_dim * self.expand_v))
            beta = strengths.to(dtype).sigmoid().unflatten(-1, per_head)
            if self.allow_neg_eigval:
                beta = 2 * beta
            g = None
            if decays is not None:
                g = log_decays(self.A_log.to(dtype), decays.to(dtype) + self.dt_bias.to(dtype))
            if lengths is not None:
                valid = valid_tokens(x, lengths)
                beta = beta * valid[..., None, None]
                g = None if g is None else g * valid[..., None]
        return _Updates(q, k, v, beta, g, conv, projected.dtype)


class _Updates(NamedTuple):
    """Arguments of the delta rule; with the state of the convolution and the dtype of outputs."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    g: Tensor | None
    conv: Tensor
    dtype: torch.dtype


class DeltaNet(DeltaProduct):
    r"""Linear attention whose memory one delta-rule update per token corrects.

    .. math::
        S_t = e^{g_t} (I - \beta_t k_t k_t^\top) S_{t-1} + \beta_t k_t v_t^\top

    It is :class:`DeltaProduct` with ``num_householder=1``, which documents the other equations.

    Source: Schlag et al. (2021), Yang et al. (2024); eigenvalues in [-1, 1]: Grazzi et al. (2025);
    with ``use_forget_gate``, Gated DeltaNet: Yang et al. (2025).

    Args:
        num_heads: number of heads.
        head_dim: size of queries and keys; None means ``hidden_size // num_heads``.
        expand_v: size of values divided by ``head_dim``.
        allow_neg_eigval: whether beta reaches 2, "[-1, 1]" in tables.
        use_forget_gate: whether the memory decays ("gated").
        use_output_gate: whether the normalised output is multiplied by silu(W x_t).
        conv_size: taps of the short convolution; 0 leaves only SiLU.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state :class:`DeltaState`.

    Example:
        >>> layer = DeltaNet(hidden_size=8, num_heads=2, conv_size=0)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y.shape, state.memory.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 2, 4, 4]))
    """

    name = "delta_net"

    def __init__(
        self,
        hidden_size: int,
        *,
        num_heads: int,
        head_dim: int | None = None,
        expand_v: int = 1,
        allow_neg_eigval: bool = True,
        use_forget_gate: bool = False,
        use_output_gate: bool = False,
        conv_size: int = 4,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_householder=1, **passed_on(locals(), DeltaProduct))
