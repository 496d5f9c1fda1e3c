"""Fixed points of maps on sequences, by damped iteration, and gradients through them."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from statemix.ops.autograd import refuse_batched

Gradient = int | Literal["implicit", "unrolled"]

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class SolverConfig:
    """When an iteration stops, and what is differentiated."""

    tolerance: float = 1e-3  # residual below which a sequence counts as converged
    damping: float = 1.0  # share s of the map's value in the next iterate, before it is lowered
    patience: int = 15  # iterations without a lower residual before a sequence's s is lowered
    decay: float = 0.9  # factor by which it is lowered; 1 leaves it
    quantile: float = 1.0  # share of the sequences that must have converged
    gradient: Gradient = 1


@dataclass(frozen=True)
class Solution:
    """Result of an iteration."""

    value: Tensor  # y, (B, T, N)
    iterations: int  # applications of the map
    residual: Tensor  # lowest residual of each sequence, (B,), without a gradient


# Damping below which an iteration no longer moves.
_STILL = 1e-3


def solve(
    function: Map, start: Tensor, budget: int, config: SolverConfig, valid: Tensor | None = None
) -> Solution:
    r"""Iterate a map F of (B, T, N) at most ``budget`` times, until value and argument agree.

    .. math:: y \leftarrow s F(y) + (1 - s) y, \qquad
        r = \max_t \frac{|y_t - F(y)_t|_\infty}{|F(y)_t|_\infty + 10^{-8}}

    for each sequence by itself. Of a sequence's iterates, the one with the lowest residual counts.
    The last application of the map is always to its value and undamped, so that ``budget=1``
    returns F(start). If a sequence has converged and that raises its residual, its map converges
    only if damped, and the iterate itself is returned, with the gradient of the last application.

    Source: Movahedi et al., "Fixed-Point RNNs", Appendix B.4. There, the iterate that counts may
    have a larger residual than the one that has met the tolerance.
    """
    learns = torch.is_grad_enabled()
    steps = config.gradient if isinstance(config.gradient, int) else 1
    # The differentiable applications are part of the budget.
    last = min(steps, budget) if learns else 1
    with torch.set_grad_enabled(learns and config.gradient == "unrolled"):
        state = _Iteration(start, config, valid)
        while state.iterations < budget - last and not state.has_converged():
            state.advance(function(state.value))
        best = state.best
    value = best
    for _ in range(last - 1):
        value = function(value)
    before = value
    value = function(value)
    value, residual = state.better_of(before, value)
    iterations = state.iterations + last
    if value.requires_grad and config.gradient == "implicit" and budget > 1:
        value = _with_implicit_gradient(function, value, budget, config)
    if value.requires_grad and config.gradient != "unrolled" and budget > last:
        # The empty part depends on what the value depends on, and keeps nothing alive.
        value = _Once.apply(value, value[:0].sum(), 0)  # type: ignore[no-untyped-call]
    return Solution(value, iterations, residual)


class _Iteration:
    """The iterates of all sequences, under way."""

    def __init__(self, start: Tensor, config: SolverConfig, valid: Tensor | None) -> None:
        self._config, self._valid = config, valid
        self.value = self.best = self._argument = start
        self.iterations = 0
        self.residual = start.new_full(start.shape[:1], torch.inf)
        self._share = start.new_full(start.shape[:1], config.damping)
        self._waited = start.new_zeros(start.shape[:1])

    def has_converged(self) -> bool:
        """Return whether enough sequences have; a NaN never does, and moves no further."""
        # An exported graph has no branches, nor has a batch of vmap: both use up the budget.
        if torch.compiler.is_exporting() or _is_batched(self.residual):
            return False
        # Tensors without data have nothing to converge.
        if not len(self.residual) or self.residual.is_meta:
            return True
        config = self._config
        # Each look at a tensor waits for the device, and most need not look at the shares.
        lowered = self.iterations // config.patience
        may_be_still = config.damping * config.decay**lowered < _STILL
        still = may_be_still and bool((self._share < _STILL).all())
        return still or residual_of_share(self.residual, config.quantile) < config.tolerance

    def advance(self, mapped: Tensor) -> None:
        """Take note of F(y), and move to the next iterate."""
        residual = _residuals(self.value, mapped, self._valid)
        lower = residual < self.residual
        # F(y) is the better guess of the two whose difference the residual is.
        self.best = torch.where(_each(lower), mapped, self.best)
        self._argument = torch.where(_each(lower), self.value, self._argument)
        self.residual = torch.where(lower, residual, self.residual)
        self._waited = (self._waited + 1).masked_fill(lower, 0)
        tired = self._waited >= self._config.patience
        self._share = torch.where(tired, self._share * self._config.decay, self._share)
        self._waited = self._waited.masked_fill(tired, 0)
        share = _each(self._share)
        self.value = mapped + (1 - share) * (self.value - mapped)
        self.iterations += 1

    def better_of(self, before: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return F(y), or the iterate that has converged where y has not, and residuals."""
        residual = _residuals(before, value, self._valid)
        has_converged = self.residual < self._config.tolerance
        kept = has_converged & ~(residual < self._config.tolerance)
        iterate = self._argument
        if not iterate.requires_grad:
            iterate = iterate + (value - value.detach())
        value = torch.where(_each(kept), iterate, value)
        return value, torch.where(kept, self.residual, residual)


def _with_implicit_gradient(
    function: Map, value: Tensor, budget: int, config: SolverConfig
) -> Tensor:
    """Let the gradient be that of the fixed point, by iterating g = v + J^T g, J = dF/dy."""
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "a transform of torch.func needs gradient='unrolled' or a number, got 'implicit'"
        )
    point = value.detach().requires_grad_()
    with torch.enable_grad():
        mapped = function(point)

    def backward(gradient: Tensor) -> Tensor:
        if not gradient.numel():
            return gradient
        # Residuals are relative, but for numbers as small as gradients may be.
        unit = gradient.abs().amax((1, 2), keepdim=True)
        unit = torch.where(unit > 0, unit, 1)
        gradient = gradient / unit

        def adjoint(g: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(mapped, point, g, retain_graph=True)
            return gradient + product

        state = _Iteration(gradient, config, None)
        while state.iterations < budget and not state.has_converged():
            state.advance(adjoint(state.value))
        worst = residual_of_share(state.residual, config.quantile)
        if worst >= config.tolerance:
            warnings.warn(
                f"the implicit gradient has not converged: residual {worst:.2g} after "
                f"{state.iterations} iterations, tolerance {config.tolerance:.2g}",
                stacklevel=2,
            )
        # No residual of a NaN is lower than another, and it must not become a gradient of one step.
        lost = _each(state.residual.isinf())
        return torch.where(lost, state.value, state.best) * unit

    value.register_hook(backward)  # type: ignore[no-untyped-call]
    return value


def _is_batched(value: Tensor) -> bool:
    """Return whether vmap, maybe below other transforms, hides an axis of a tensor."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(value):
        if functorch.is_batchedtensor(value):
            return True
        value = functorch.get_unwrapped(value)
    return False


def residual_of_share(residual: Tensor, share: float) -> float:
    """Return the least residual that this share of the sequences do not exceed; NaN is inf."""
    # Rounding must not ask for one more: 0.55 * 100 is above 55. On the CPU: the numbers are few.
    count = max(math.ceil(share * len(residual) - 1e-6), 1)
    found = residual.float().cpu().sort().values[count - 1].item()
    return math.inf if math.isnan(found) else found


def _residuals(value: Tensor, mapped: Tensor, valid: Tensor | None) -> Tensor:
    """Return the residual of each sequence, shape (B,)."""
    with torch.no_grad():
        change = (value - mapped).abs().amax(-1)
        relative = change / (mapped.abs().amax(-1) + 1e-8)
        if valid is not None:
            relative = relative.masked_fill(~valid, 0)
        return relative.amax(-1)


def _each(per_sequence: Tensor) -> Tensor:
    return per_sequence[:, None, None]


class _Once(torch.autograd.Function):
    """A fixed point (order 0), to whose gradient a zero (order 1) without a gradient is added.

    Another gradient would treat the point as a constant.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, anchor: Tensor, order: int) -> Tensor:  # noqa: ARG004
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        _, anchor, ctx.order = inputs
        ctx.save_for_backward(anchor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if ctx.order:
            raise RuntimeError(
                "the gradient of a fixed point cannot be differentiated again, "
                "except with gradient='unrolled'"
            )
        (anchor,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            refuse_batched(gradient)
            # The gradient of a linear loss depends on nothing.
            gradient = gradient + _Once.apply(anchor, anchor, 1)  # type: ignore[no-untyped-call]
        return gradient, None, None
