"""What the mixers of a fixed-point RNN share: maps with normalised weights, and the matrices Q."""

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

MixerInputs = Literal["both", "sum", "token"]

# Keeps the length of a row from dividing by zero.
_TINY = 1e-6


class Prepared(NamedTuple):
    """A linear map of s for a given x: ``constant`` is the part of x and the bias."""

    constant: Tensor
    weight: Tensor | None

    def __call__(self, s: Tensor) -> Tensor:
        """Return the result for s (..., width)."""
        if self.weight is None:
            return self.constant
        return self.constant + functional.linear(s, self.weight)

    def during(self, span: slice) -> "Prepared":
        """Return the same map for some of the tokens, of shape (B, T, ...)."""
        return Prepared(self.constant[:, span], self.weight)

    def to(self, dtype: torch.dtype) -> "Prepared":
        """Return the same map in another dtype."""
        weight = None if self.weight is None else self.weight.to(dtype)
        return Prepared(self.constant.to(dtype), weight)


class NormedLinear(nn.Module):
    r"""A linear map of x and s (Salimans and Kingma, 2016, "Weight normalization").

    .. math:: y_i = g_i \frac{w_i^\top p}{|w_i|} + c_i, \qquad
        p = [x, s], \quad p = x + s \quad \text{or} \quad p = x

    for ``inputs`` "both", "sum" and "token"; x and s have the same width.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        width: int,
        outputs: int,
        inputs: MixerInputs,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.width = width
        self.inputs = inputs
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        shape = (outputs, 2 * width if inputs == "both" else width)
        self.weight = nn.Parameter(torch.empty(shape, **placed))
        self.gain = nn.Parameter(torch.empty(outputs, **placed))
        self.bias = nn.Parameter(torch.empty(outputs, **placed)) if bias else None
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw the weights as ``torch.nn.Linear`` does, with their own lengths; c becomes 0."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)
        with torch.no_grad():
            self.gain.copy_(self.weight.norm(dim=1))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | None) -> Prepared:
        """Return the map for given x, as a function of s; without x, all inputs are those of s."""
        scale = self.gain / self.weight.norm(dim=1).clamp(min=_TINY)
        weight = self.weight * scale.unsqueeze(1)
        if x is None:
            return Prepared(weight.new_zeros(()), weight)
        weight = weight.to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        constant = functional.linear(x, weight[:, : self.width], bias)
        if self.inputs == "token":
            return Prepared(constant, None)
        return Prepared(constant, weight[:, self.width :] if self.inputs == "both" else weight)


class StateMixer(nn.Module, ABC):
    """A matrix Q for each token, given by its deviation D = I - Q from the identity.

    Q depends on x_t and, by ``inputs``, on the state before it; ``rank`` counts vectors. If
    ``contractive``, the 2-norm of D stays within :attr:`bound`.
    """

    def __init__(
        self,
        size: int,
        inputs: MixerInputs,
        rank: int,
        *,
        contractive: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = size
        self.rank = rank
        self.contractive = contractive
        self._build(inputs, {"device": device, "dtype": dtype})

    @abstractmethod
    def _build(self, inputs: MixerInputs, placed: dict[str, Any]) -> None:
        """Make the linear maps."""

    @property
    def bound(self) -> float:
        """Largest 2-norm of D if the mixer is contractive."""
        return 1.0

    @property
    def linears(self) -> list[NormedLinear]:
        """The linear maps, in the order of their results."""
        return [part for part in self.modules() if isinstance(part, NormedLinear)]

    @abstractmethod
    def coefficients(self, raw: list[Tensor]) -> tuple[Tensor, ...]:
        """Return what D is made of, from the results of :attr:`linears`, (..., outputs) each."""

    @abstractmethod
    def deviation(self, coefficients: tuple[Tensor, ...], v: Tensor) -> Tensor:
        """Return D v for v (..., N), token by token."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """FLOPs of :meth:`coefficients` and :meth:`deviation` for one token."""

    @property
    def projections(self) -> int:
        """FLOPs of the maps from either input for one token."""
        return 2 * self.size * sum(linear.weight.shape[0] for linear in self.linears)

    def prepare(self, x: Tensor) -> list[Prepared]:
        """Return :attr:`linears` for given x (..., width), as functions of s alone."""
        return [linear(x) for linear in self.linears]

    def change(self, prepared: list[Prepared], span: slice, s: Tensor, v: Tensor) -> Tensor:
        """Return D v for the tokens of a slice, given the states s before them."""
        raw = [linear.during(span)(s) for linear in prepared]
        return self.deviation(self.coefficients(raw), v)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters."""
        for linear in self.linears:
            linear.reset_parameters(generator)


class SolvableMixer(StateMixer):
    """A mixer whose fixed points have a closed form that is cheap."""

    @abstractmethod
    def resolvent(self, coefficients: tuple[Tensor, ...], shares: Tensor, v: Tensor) -> Tensor:
        r"""Return y of :math:`(I - \mathrm{diag}(s) D) y = v` for shares s and v (..., N)."""

    @abstractmethod
    def scan(
        self, coefficients: tuple[Tensor, ...], decays: Tensor, inputs: Tensor, initial: Tensor
    ) -> Tensor:
        r"""Return the states of the fixed point for given D_t, (B, T, N).

        .. math:: h_t = A_t h_{t-1} + (I - A_t) u_t, \qquad
            A_t = (I - (1 - \lambda_t) D_t)^{-1} \lambda_t
        """

    @property
    @abstractmethod
    def resolvent_flops(self) -> int:
        """FLOPs of :meth:`coefficients` and :meth:`resolvent` for one token."""
