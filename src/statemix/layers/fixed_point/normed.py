"""Linear maps with normalised weights, of a token and of the state before it."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

MixerInputs = Literal["both", "sum", "token"]

# Keeps the length of a row of zeros from dividing by zero.
_TINY = 1e-6


class Prepared(NamedTuple):
    """A linear map of x and s for a given x.

    Attributes:
        constant: what x and the bias contribute, shape (..., outputs), or () if there is no x.
        weight: the map of s, shape (outputs, width of s); None if s does not enter.
    """

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
    r"""A linear map of x and s whose rows have a length of their own.

    .. math:: y_i = g_i \frac{w_i^\top p}{|w_i|} + c_i, \qquad
        p = [x, s], \quad p = x + s \quad \text{or} \quad p = x

    Source: Salimans and Kingma (2016), "Weight normalization"; the fixed-point RNN uses it for
    stability.

    Args:
        width: width of x, and of s.
        outputs: width of y.
        inputs: "both" for [x, s], "sum" for x + s, "token" for x.
        bias: whether to learn c, which starts at 0.
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
        shape = (outputs, 2 * width if inputs == "both" else width)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.gain = nn.Parameter(torch.empty(outputs, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(outputs, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
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
        """Return the map for given x, so that iterations over s do not repeat what x does.

        Without x, all inputs are those of s.
        """
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
