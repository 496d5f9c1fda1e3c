"""Vectors divided by their length, for every length that the dtype can hold."""

from typing import Any

import torch
from torch import Tensor


def unit_length(x: Tensor) -> Tensor:
    r"""Return :math:`x / \sqrt{|x|^2 + 10^{-6}}` over the last axis.

    As in flash-linear-attention; the small term keeps the gradient of a zero vector finite.
    """
    return _normalised(x, None, 1e-6, 1.0)


def rms_norm(x: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    r"""Return :math:`w \odot x / \sqrt{\mathrm{mean}(x^2) + 10^{-5}}` over the last axis.

    Args:
        x: shape (..., D), float32 or float64.
        weight: w, shape (D,).
        scale: number by which each vector was multiplied to fit its dtype, in (0, 1] and not
            subnormal, without a gradient, shape (..., 1). None means 1.

    Returns:
        The same as for vectors that were not multiplied.
    """
    return _normalised(x, scale, 1e-5, 1 / x.shape[-1]) * weight


def _normalised(x: Tensor, scale: Tensor | None, eps: float, share: float) -> Tensor:
    if not torch.is_grad_enabled():
        # The bookkeeping of a Function would take a tenth of a decoding step.
        return _quotient(x, scale, eps, share)[0]
    function = _Normalised if torch.compiler.is_compiling() else _EagerNormalised
    y: Tensor = function.apply(x, scale, eps, share)[0]  # type: ignore[no-untyped-call]
    return y


def _quotient(
    x: Tensor, scale: Tensor | None, eps: float, share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y = x / sqrt(share |x|^2 + eps scale^2), and two factors whose quotient is y / x."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    # Where the square of a length overflows, the length is infinite here and ``unit`` is ``large``:
    # squares then neither overflow nor vanish. Lengths up to 2^32 leave x as it is.
    large = 2 * torch.finfo(x.dtype).max ** 0.5
    if scale is None:
        unit = (length * 2.0**-32).clamp(min=1, max=large)
        added = unit.reciprocal().square()
    else:
        unit = torch.maximum(length * 2.0**-32, scale).clamp(max=large)
        added = (scale / unit).square()
    y = x / unit
    squares = torch.linalg.vector_norm(y, dim=-1, keepdim=True).square()
    inverse = (share * squares).add_(added, alpha=eps).rsqrt_()
    return y.mul_(inverse), inverse, unit


class _Normalised(torch.autograd.Function):
    """The quotient, and the inverse of its root for the sake of second derivatives.

    PyTorch's own derivative takes twice as long.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor | None, eps: float, share: float) -> tuple[Tensor, Tensor]:
        y, inverse, unit = _quotient(x, scale, eps, share)
        return y, inverse / unit

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, _, _, ctx.share = inputs
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, d_y: Tensor | None, d_inverse: Tensor | None
    ) -> tuple[Tensor | None, None, None, None]:
        y, inverse = ctx.saved_tensors
        d_x = None
        if d_y is not None:
            along = (y * d_y).sum(-1, keepdim=True) * ctx.share
            d_x = torch.addcmul(d_y, y, along, value=-1) * inverse
        if d_inverse is not None:
            more = -ctx.share * d_inverse * inverse.square() * y
            d_x = more if d_x is None else d_x + more
        return d_x, None, None, None


class _EagerNormalised(_Normalised):
    """``_Normalised`` with forward mode; the compiler cannot trace a class with jvp."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _Normalised.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*output)

    @staticmethod
    def jvp(ctx: Any, d_x: Tensor, *_: None) -> tuple[Tensor, Tensor]:
        y, inverse = ctx.saved_tensors
        along = (y * d_x).sum(-1, keepdim=True) * ctx.share
        return torch.addcmul(d_x, y, along, value=-1) * inverse, -along * inverse.square()
