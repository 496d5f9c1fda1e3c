"""Vectors divided by their length, for every length that the dtype can hold."""

from torch import Tensor


def unit_length(x: Tensor) -> Tensor:
    r"""Return :math:`x / \sqrt{|x|^2 + 10^{-6}}` over the last axis.

    As in flash-linear-attention; the small term keeps the gradient of a zero vector finite.
    """
    return _normalised(x, 1.0, 1e-6, 1.0)


def rms_norm(x: Tensor, weight: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    r"""Return :math:`w \odot x / \sqrt{\mathrm{mean}(x^2) + 10^{-5}}` over the last axis.

    Args:
        x: shape (..., D), float32 or float64.
        weight: w, shape (D,).
        scale: number by which each vector was multiplied to fit its dtype, in (0, 1] and not
            subnormal, without a gradient, shape (..., 1).

    Returns:
        The same as for vectors that were not multiplied.
    """
    return _normalised(x, scale, 1e-5, 1 / x.shape[-1]) * weight


def _normalised(x: Tensor, scale: Tensor | float, eps: float, share: float) -> Tensor:
    # Squares must not overflow. Entries up to 2^32 stay as they are.
    unit = (x.detach().abs().amax(-1, keepdim=True) * 2.0**-32).clamp(min=scale)
    y = x / unit
    mean = share * y.square().sum(-1, keepdim=True) + eps * (scale / unit).square()
    return y * mean.rsqrt()
