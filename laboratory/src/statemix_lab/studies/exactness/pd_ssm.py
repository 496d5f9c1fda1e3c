"""PD-SSM, a layer of another work, in short. Importing this module registers it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.layers import LAYERS, Layer
from statemix.layers.padded import reset_linear
from statemix.ops import block_scan
from statemix.ops.checks import check_sizes
from statemix.ops.layout import at_least_float32


@LAYERS.register
class PDSSM(Layer):
    r"""Blocks whose entries a token moves and then scales.

    .. math::
        h_t &= P_t \operatorname{diag}(d_t) h_{t-1} + W_b x_t, \qquad
        d_t = \sigma(W_d x_t + 3), \qquad y_t = W_o h_t \\
        P_t &= \mathrm{hardmax}\Big(\sum_k \mathrm{softmax}(W_s x_t)_k M_k\Big)

    Every column of P_t has a single 1. Its gradient is that of a softmax over the column, which is
    the gate ``column_softmax`` without its input gates. The first state is zero.

    Source: Terzić et al. (2025), "Structured Sparse Transition Matrices to Enable State Tracking in
    State-Space Models", arXiv:2509.22284. There, the diagonal is complex, and a nonlinear map reads
    the state.

    Args:
        num_blocks: number of blocks.
        block_size: entries of a block.
        num_matrices: matrices M_k, shared by all tokens.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state (B, num_blocks, block_size).
    """

    name = "pd_ssm"
    entry = "in_proj"

    def __init__(
        self,
        hidden_size: int,
        *,
        num_blocks: int,
        block_size: int,
        num_matrices: int = 16,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size, num_blocks=num_blocks, block_size=block_size)
        check_sizes(num_matrices=num_matrices)
        self.hidden_size, self.num_matrices = hidden_size, num_matrices
        self.num_blocks, self.block_size = num_blocks, block_size
        size = num_blocks * block_size
        self.in_proj = nn.Linear(hidden_size, size, device=device, dtype=dtype)
        self.diagonal = nn.Linear(hidden_size, size, device=device, dtype=dtype)
        self.choice = nn.Linear(hidden_size, num_matrices, device=device, dtype=dtype)
        shape = (num_matrices, num_blocks, block_size, block_size)
        self.matrices = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.out_proj = nn.Linear(size, hidden_size, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters: matrices from a normal distribution, the rest as in PyTorch."""
        for projection in (self.in_proj, self.diagonal, self.choice, self.out_proj):
            reset_linear(projection, generator)
        nn.init.normal_(self.matrices, generator=generator)

    def transitions(self, x: Tensor) -> Tensor:
        """Return P diag(d): x (B, T, hidden_size) -> (B, T, num_blocks, m, m)."""
        mixed = torch.einsum("btk,khij->bthij", self.choice(x).softmax(-1), self.matrices)
        soft = mixed.softmax(-2)
        hard = functional.one_hot(mixed.argmax(-2), self.block_size).mT.to(soft)
        # The difference is zero, and has the gradient of the softmax.
        moves = hard + (soft - soft.detach())
        kept = torch.sigmoid(self.diagonal(x) + 3)
        return moves * kept.view(*x.shape[:2], self.num_blocks, 1, self.block_size)

    def forward(
        self, x: Tensor, state: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        self._check_sequence(x, state, cu_seqlens)
        inputs = self.in_proj(x).unflatten(-1, (self.num_blocks, self.block_size))
        states, state = block_scan(self.transitions(x), inputs, state, cu_seqlens)
        return self.out_proj(states.flatten(-2)), state

    def step(self, x_t: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        self._check_step(x_t, state)
        y, state = self(x_t.unsqueeze(1), state)
        return y.squeeze(1), state

    def init_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        weight = self.in_proj.weight
        return torch.zeros(
            (batch_size, self.num_blocks, self.block_size),
            device=weight.device if device is None else device,
            dtype=at_least_float32(weight.dtype if dtype is None else dtype),
        )
