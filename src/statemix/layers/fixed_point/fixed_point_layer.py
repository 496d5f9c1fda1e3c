"""Common base of the layers that iterate: budgets, stopping, reports and warnings."""

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from statemix.layers.exporting import is_open
from statemix.layers.fixed_point import solver
from statemix.layers.fixed_point.mixers import MixerName, build_mixer
from statemix.layers.fixed_point.solver import Gradient, Solution, SolverConfig
from statemix.layers.fixed_point.state_mixer import MixerInputs
from statemix.layers.padded import PaddedLayer
from statemix.layers.state import State
from statemix.ops.checks import check_choice, check_number, check_placement, check_sizes

Budget = Literal["fixed", "gamma"]
Tensors = tuple[Tensor, ...]
# By a name: the compiler cannot trace its subscription in an annotation of an inner function.
Advanced = tuple[Tensor, Tensors]
Piece = Callable[[Tensor, Tensors, slice], Advanced]

LEAST_BUDGET = 16
"""Iterations that a budget of the sequence's length allows at least."""


class FixedPointLayer(PaddedLayer):
    """A layer whose outputs are found by iteration; :class:`FPRNN` documents its options.

    In evaluation, a call that ends above the tolerance warns, and a later one if its residual is
    more than twice the largest that the layer has warned of. With ``max_iterations=1`` no call
    warns: nothing is meant to converge.
    """

    schedulable = ("max_iterations", "tolerance", "quantile")
    iterative = True

    def __init__(
        self,
        hidden_size: int,
        *,
        mixer: MixerName,
        rank: int,
        mixer_inputs: MixerInputs,
        expand: int,
        contraction: float | None,
        max_iterations: int | None,
        window: int | None,
        budget: Budget,
        tolerance: float,
        quantile: float,
        damping: float,
        gradient: Gradient,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size, expand=expand)
        if window is not None:
            check_sizes(window=window)
        check_choice("budget", budget, list(get_args(Budget)))
        check_number("damping", damping, "above 0 and at most 1", lambda part: 0 < part <= 1)
        if isinstance(gradient, str):
            check_choice("gradient", gradient, ["implicit", "unrolled"])
        else:
            check_sizes(gradient=gradient)
        check_placement(device, dtype)
        if contraction is not None:
            check_number("contraction", contraction, "between 0 and 1", lambda rate: 0 < rate < 1)
        self.hidden_size = hidden_size
        self.mixer = mixer
        self.rank = rank
        self.mixer_inputs = mixer_inputs
        self.expand = expand
        self.contraction = contraction
        self.inner_size = expand * hidden_size
        self.state_mixer = build_mixer(
            *(mixer, self.inner_size, mixer_inputs, rank),
            contractive=contraction is not None,
            device=device,
            dtype=dtype,
        )
        self.max_iterations = max_iterations
        self.window = window
        self.budget = budget
        self.tolerance = tolerance
        self.quantile = quantile
        self.damping = damping
        self.gradient = gradient
        self._warned_of = 0.0
        self._reports: dict[str, Tensor] = {}

    @property
    def max_iterations(self) -> int | None:
        """Most iterations; None means the length of the sequence."""
        return self._max_iterations

    @max_iterations.setter
    def max_iterations(self, value: int | None) -> None:
        if value is not None:
            check_sizes(max_iterations=value)
        self._max_iterations = value

    @property
    def tolerance(self) -> float:
        """Residual below which a sequence has converged."""
        return self._tolerance

    @tolerance.setter
    def tolerance(self, value: float) -> None:
        check_number("tolerance", value, "above 0 and finite", lambda most: 0 < most < math.inf)
        self._tolerance = float(value)

    @property
    def quantile(self) -> float:
        """Share of the sequences that must have converged."""
        return self._quantile

    @quantile.setter
    def quantile(self, value: float) -> None:
        check_number("quantile", value, "above 0 and at most 1", lambda part: 0 < part <= 1)
        self._quantile = float(value)

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self._reports = {}
        return super().forward(x, state, cu_seqlens)

    def reports(self) -> Mapping[str, Tensor]:
        """Return the iterations, weighted by the lengths of windows, and the largest residual."""
        return self._reports

    def usual_budget(self, length: int) -> int:
        """Return the most iterations of a sequence of ``length`` tokens, unless drawn."""
        return self.max_iterations or max(length, LEAST_BUDGET)

    def _solved(
        self, piece: Piece, carried: Tensors, start: Tensor, valid: Tensor | None
    ) -> Solution:
        """Iterate from y = ``start`` (B, T, N) within the budget, and report on it.

        ``piece`` maps the y of some tokens, and the state before them, to the new ones.
        """
        names = ("tolerance", "damping", "quantile", "gradient")
        config = SolverConfig(**{name: getattr(self, name) for name in names})
        length = start.shape[1]
        if is_open(length) and (self.max_iterations is None or self.window is not None):
            raise ValueError(
                "max_iterations must be given, and window must be None, to export sequences of any "
                f"length, got {self.max_iterations} and {self.window}"
            )
        before = 0.0
        if self.window is not None and self.window < length and self.max_iterations != 1:
            start, before = self._by_windows(piece, carried, start, valid, config)
        function = partial(_first_of, piece, carried, slice(length))
        solution = solver.solve(function, start, self._drawn(length), config, valid)
        if torch.compiler.is_exporting():
            return solution
        residuals = solution.residual
        largest = residuals.max() if len(residuals) else residuals.new_zeros(())
        iterations = torch.full((), before + solution.iterations, device=largest.device)
        now = {"iterations": iterations, "residual": largest}
        # Groups of packed sequences are solved one after the other.
        self._reports = {
            name: torch.maximum(number, self._reports.get(name, number))
            for name, number in now.items()
        }
        if self.training or largest.is_meta or self.max_iterations == 1 or not len(residuals):
            return solution
        residual = solver.residual_of_share(residuals, self.quantile)
        if residual >= self.tolerance and residual > 2 * self._warned_of:
            self._warned_of = residual
            warnings.warn(
                f"{self.name} has not converged: residual {residual:.2g} after "
                f"{solution.iterations} iterations, tolerance {self.tolerance:.2g}; its outputs "
                "depend on max_iterations, and those of single steps may differ",
                stacklevel=2,
            )
        return solution

    @torch.no_grad()
    def _by_windows(
        self,
        piece: Piece,
        carried: Tensors,
        start: Tensor,
        valid: Tensor | None,
        config: SolverConfig,
    ) -> tuple[Tensor, float]:
        """Return y as windows give it, one after the other, and their iterations by their share."""
        length, values, iterations = start.shape[1], [], 0.0
        for first in range(0, length, self.window or length):
            span = slice(first, min(first + (self.window or length), length))
            y = start[:, span]
            function = partial(_first_of, piece, carried, span)
            padding = None if valid is None else valid[:, span]
            solution = solver.solve(function, y, self.usual_budget(y.shape[1]), config, padding)
            values.append(solution.value)
            iterations += solution.iterations * y.shape[1] / length
            _, carried = piece(solution.value, carried, span)
        return torch.cat(values, 1), iterations

    def _drawn(self, length: int) -> int:
        """Return the budget of a call."""
        usual = self.usual_budget(length)
        if self.budget == "fixed" or not self.training:
            return usual
        drawn = torch.distributions.Gamma(4.0, 4.0 / usual).sample()
        return max(math.ceil(drawn.item()), 1)


def _first_of(piece: Piece, carried: Tensors, span: slice, y: Tensor) -> Tensor:
    return piece(y, carried, span)[0]


def shifted(y: Tensor, before: Tensor) -> Tensor:
    """Return each token's predecessor: y (B, T, N) one step later, after ``before`` (B, N)."""
    # Contiguous once, instead of in every product.
    return torch.cat([before.unsqueeze(1), y], dim=1)[:, : y.shape[1]].contiguous()
