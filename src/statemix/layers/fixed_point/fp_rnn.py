"""FPRNN: a dense linear RNN as the fixed point of a diagonal one."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix import ops
from statemix.errors import OptionError
from statemix.layers.exporting import is_open
from statemix.layers.fixed_point.closed_form import closed_form
from statemix.layers.fixed_point.fixed_point_layer import (
    Advanced,
    Budget,
    FixedPointLayer,
    Piece,
    Tensors,
    shifted,
)
from statemix.layers.fixed_point.mixers import MixerName
from statemix.layers.fixed_point.solver import Gradient
from statemix.layers.fixed_point.state_mixer import MixerInputs, Prepared, SolvableMixer
from statemix.layers.layer import Flops
from statemix.layers.padded import last_inputs, reset_linear, rms_norm, valid_tokens
from statemix.ops import flops
from statemix.ops.checks import check_choice
from statemix.ops.layout import at_least_float32
from statemix.ops.low_rank_operators import MOST_RANK
from statemix.ops.portable import without_autocast
from statemix.registry import passed_on

Solver = Literal["closed", "iterate"]


class FPRNN(FixedPointLayer):
    r"""Fixed-point RNN with a vector state.

    The state h is the fixed point of a diagonal recurrence whose input mixes the channels,

    .. math::
        h_t = \lambda_t \odot h_{t-1} + (1 - \lambda_t) \odot
            \big(Q_t (b_t \odot v_t) + (I - Q_t) h_t\big),

    so that it follows a dense one, which is never formed:

    .. math::
        h_t = A_t h_{t-1} + (I - A_t) (b_t \odot v_t), \qquad
        A_t = \big(I + (\Lambda_t^{-1} - I) Q_t\big)^{-1} =
            \big(I - (I - \Lambda_t) (I - Q_t)\big)^{-1} \Lambda_t

    with :math:`v_t = W_v x_t`, :math:`b_t = \mathrm{silu}(W_b v_t)`,
    :math:`\lambda_t = \sigma(W_\lambda v_t + c)` and Q_t from a state mixer of v_t and h_{t-1}
    (``mixer_inputs``). I - Q has rank ``rank`` or small blocks, but for "kronecker", so that A_t
    takes a system of ``rank`` unknowns for each token: the states are exact, and so are their
    gradients. The output is

    .. math::
        y_t = W_o\, \mathrm{RMSNorm}\big(\mathrm{silu}(W_z x_t) \odot
            \mathrm{silu}(W_c [v_t, h_t]) \odot h_t\big).

    Source: Movahedi et al., "Fixed-Point RNNs: Interpolating from Diagonal to Dense". Ours: no
    short convolutions before the five maps; ``contraction``; the dense form above, which follows
    from the fixed point, and its closed form; damping that grows while no iterate is better.

    With ``solver="iterate"``, as in the paper, each iteration mixes all tokens and runs one
    diagonal scan, beginning with h = 0; a single one is a diagonal layer. While the iteration has
    not converged, the output at a token depends on the budget, and the results of pieces or single
    steps may differ from the result of the whole sequence.

    The output grows with the fifth power of the input: in float32 it holds inputs up to about 1e7,
    and gradients for inputs up to about 1e4.

    Args:
        mixer: "householder", "dplr", "kronecker" or "monarch".
        rank: vectors of the first two, size of the last one's blocks; "kronecker" has none.
        mixer_inputs: "both" (v_t and h_{t-1}), "sum" (v_t + h_{t-1}) or "token" (v_t alone, which
            leaves the recurrence linear).
        expand: N divided by ``hidden_size``.
        contraction: None leaves the mixers as published: A_t may then expand, and with "dplr" of a
            rank of 3 or more, states grow without bound. A number in (0, 1) makes each iteration a
            contraction by at least that factor for given Q, by bounding Q and lambda.
        solver: "closed", which neither a Kronecker mixer nor a rank above 8 of the first two mixers
            has, or "iterate". None means "iterate" for these, or if one of the next six options is
            given, else "closed".
        max_iterations: most iterations, at least 1; None means the length of the sequence, at least
            16. With 1 no token depends on the outputs of others: the layer is the diagonal one.
        window: None iterates the whole sequence at once. A number W of tokens iterates windows of
            that length first, in order, and the whole from there; the budget is that of each solve.
            Tokens converge in order, so that this takes T (W + k) applications to tokens instead of
            T (T + k).
        budget: "fixed", or "gamma": in training, draw the budget of each batch from a Gamma
            distribution of shape 4 whose mean is the fixed one, rounded up.
        tolerance: residual below which a sequence has converged, above 0. In evaluation, a call
            that ends above it warns, unless ``max_iterations`` is 1.
        quantile: share of the sequences that must have converged, above 0.
        damping: share of the map's value in the next iterate, in (0, 1].
        gradient: "implicit" for the gradient of the fixed point; the number of last iterations that
            are differentiated, which the closed form adds to its solution; or "unrolled" for all
            iterations. None means "implicit" with the closed form and 1, as in the paper's code,
            with iterations.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state (B, expand * hidden_size).

    Raises:
        OptionError: if an option has a value that it does not accept, or one of the iteration is
            given with ``solver="closed"``.

    Example:
        >>> layer = FPRNN(hidden_size=8)
        >>> y, state = layer(torch.randn(2, 5, 8))
        >>> y.shape, state.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 8]))
    """

    name = "fp_rnn"
    entry = "in_proj"
    iterative = False  # by default

    def __init__(
        self,
        hidden_size: int,
        *,
        mixer: MixerName = "householder",
        rank: int = 1,
        mixer_inputs: MixerInputs = "both",
        expand: int = 1,
        contraction: float | None = None,
        solver: Solver | None = None,
        max_iterations: int | None = None,
        window: int | None = None,
        budget: Budget = "fixed",
        tolerance: float = 1e-3,
        quantile: float = 1.0,
        damping: float = 1.0,
        gradient: Gradient | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if solver is not None:
            check_choice("solver", solver, list(get_args(Solver)))
        is_default = gradient is None
        gradient = 1 if gradient is None else gradient
        super().__init__(**passed_on(locals(), FixedPointLayer))
        self._solver = solver
        self.iterative = self.solver == "iterate"
        if is_default and not self.iterative:
            self.gradient = "implicit"
        inner = self.inner_size
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(hidden_size, 2 * inner, bias=False, **placed)
        self.input_proj = nn.Linear(inner, inner, bias=False, **placed)
        self.decay_proj = nn.Linear(inner, inner, **placed)
        self.readout_proj = nn.Linear(2 * inner, inner, bias=False, **placed)
        self.norm_weight = nn.Parameter(torch.empty(inner, **placed))
        self.out_proj = nn.Linear(inner, hidden_size, bias=False, **placed)
        self.reset_parameters()

    @property
    def solver(self) -> Solver:
        """The way to the fixed point, "closed" or "iterate"."""
        defaults = {"max_iterations": None, "window": None, "budget": "fixed", "tolerance": 1e-3}
        defaults |= {"quantile": 1.0, "damping": 1.0}
        given = [name for name, usual in defaults.items() if getattr(self, name) != usual]
        if not isinstance(self.state_mixer, SolvableMixer):
            given.append("mixer")
        elif self.mixer != "monarch" and self.rank > MOST_RANK:
            given.append("rank")
        if self._solver == "closed" and given:
            name = given[0]
            raise OptionError(
                f"solver must be 'iterate' with {name}={getattr(self, name)!r}, got 'closed'"
            )
        return self._solver or ("iterate" if given else "closed")

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters; projections as in PyTorch."""
        linears = (self.in_proj, self.input_proj, self.decay_proj, self.readout_proj, self.out_proj)
        for linear in linears:
            reset_linear(linear, generator)
        self.state_mixer.reset_parameters(generator)
        nn.init.ones_(self.norm_weight)

    @property
    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.inner_size,),)

    def flops_per_token(self, length: int) -> Flops:
        """Count as many iterations as the budget allows, or one solution."""
        size, mixer = self.inner_size, self.state_mixer
        # Two maps into 2 N channels, one out of them, three of N, and those of the mixer.
        maps = 2 * size * (3 * self.hidden_size + 4 * size) + mixer.projections
        seen = 0 if self.mixer_inputs == "token" else mixer.projections
        if isinstance(mixer, SolvableMixer) and self.solver == "closed":
            # 1 - lambda, the differences of u and h and of u and y, and the product with lambda.
            transition = seen + mixer.resolvent_flops + 4 * size
        else:
            # Three sums and a product around the mixer, and the scan.
            iteration = seen + mixer.flops + 4 * size + 2 * size
            transition = self.usual_budget(length) * iteration
        bounded = 0 if self.contraction is None else 2 * size
        gates = size * (3 * flops.SILU + flops.SIGMOID + 3) + bounded
        return Flops(
            projections=maps,
            transition=transition,
            other=gates + flops.rms_norm(size),
        )

    def _run(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        v, z = self.in_proj(x).chunk(2, dim=-1)
        inputs = self._inputs(v)
        decays = self._decays(v)
        prepared = self.state_mixer.prepare(v)
        dtype = torch.promote_types(at_least_float32(v.dtype), state.dtype)
        valid = None if lengths is None else valid_tokens(x, lengths)
        with without_autocast(x.device):
            inputs, decays = inputs.to(dtype), decays.to(dtype)
            prepared = [linear.to(dtype) for linear in prepared]
            initial = state.to(dtype)

            def piece(h: Tensor, carried: Tensors, span: slice) -> Advanced:
                before = shifted(h, carried[0]) if self.max_iterations != 1 else torch.zeros_like(h)
                change = self.state_mixer.change(prepared, span, before, inputs[:, span] - h)
                added = (1 - decays[:, span]) * (inputs[:, span] - change)
                # A diagonal recurrence is one of blocks of one entry.
                h, last = ops.block_scan(
                    decays[:, span, :, None, None], added.unsqueeze(-1), carried[0].unsqueeze(-1)
                )
                return h.squeeze(-1), (last.squeeze(-1),)

            if self.solver == "iterate":
                h = self._solved(piece, (initial,), torch.zeros_like(inputs), valid).value
            else:
                h = self._closed(piece, prepared, decays, inputs, initial)
        final = last_inputs(torch.cat([initial.unsqueeze(1), h], 1), 1, lengths)[:, 0]
        y = self._read(v, z, h)
        return y, final.to(state.dtype)

    def _closed(
        self,
        piece: Piece,
        prepared: list[Prepared],
        decays: Tensor,
        inputs: Tensor,
        initial: Tensor,
    ) -> Tensor:
        mixer, gradient, length = self.state_mixer, self.gradient, inputs.shape[1]
        assert isinstance(mixer, SolvableMixer)
        if is_open(length) and self.mixer_inputs != "token":
            raise ValueError(
                "solver must be 'iterate', or mixer_inputs 'token', to export sequences of any "
                f"length, got {self.solver!r} and {self.mixer_inputs!r}"
            )
        steps = gradient if isinstance(gradient, int) and torch.is_grad_enabled() else 0
        with torch.set_grad_enabled(torch.is_grad_enabled() and not steps):
            h = closed_form(mixer, prepared, decays, inputs, initial)
        for _ in range(steps):
            h, _ = piece(h, (initial,), slice(length))
        return h

    def _inputs(self, v: Tensor) -> Tensor:
        """Return b_t * v_t."""
        return functional.silu(self.input_proj(v)) * v

    def _decays(self, v: Tensor) -> Tensor:
        """Return lambda; under a contraction, it is at least what the mixer's bound requires."""
        decays = torch.sigmoid(self.decay_proj(v))
        if self.contraction is None:
            return decays
        least = 1 - min(self.contraction / self.state_mixer.bound, 1.0)
        return least + (1 - least) * decays

    def _read(self, v: Tensor, z: Tensor, h: Tensor) -> Tensor:
        c = self.readout_proj(torch.cat([v, h.to(v.dtype)], dim=-1)).to(h.dtype)
        with without_autocast(h.device):
            o = functional.silu(z.to(h.dtype)) * functional.silu(c) * h
            o = rms_norm(o, self.norm_weight.to(h.dtype)).to(v.dtype)
        y: Tensor = self.out_proj(o)
        return y
