"""Reflections and the input gate of a block in a Triton kernel, for the family "householder".

    h_t = (1 - a) H_1 ... H_m h_{t-1} + a v_t,    a = sigmoid(mean_i(g_i0) / T - 3)
    H_j = I - c_j u_j u_j^T,  c_j = 2 |u_j|^2 / (1 + |u_j|^4),  u_j = g_j / T

The product of the H_j is never formed. Each number of a vector is a tile of lanes, so a vector is a
tuple of tiles. As in the CPU kernels (ops/cpu/reflect_scan.h), a vector is measured in a unit s of
its own, u = s w, so that no power overflows: c u u^T = 2 q / (s^-4 + q^2) w w^T with q = |w|^2.
Here w = g / T, or the gates times a power of two if that is smaller, which takes no division. The
vectors to reflect are measured in 2^-SHIFT, at most 1 / (4 (m+1)), so that their products with w do
not overflow either.
"""

import triton
import triton.language as tl

from statemix.ops.triton.kernels.rows import LOG2_E, reciprocal


@triton.jit
def _unit(largest, SHIFT: tl.constexpr):
    """Return a power of two whose product with a number that is not negative is 1 to 2.

    It is less for the smallest numbers, so that 2^SHIFT times the power is finite, and up to 4 for
    the largest ones, so that the power is normal.
    """
    if largest.dtype == tl.float64:
        exponent = largest.to(tl.int64, bitcast=True) & 0x7FF0000000000000
        exponent = tl.maximum(exponent, SHIFT << 52)
        unit = tl.maximum(0x7FE0000000000000 - exponent, 0x0010000000000000)
    else:
        exponent = largest.to(tl.int32, bitcast=True) & 0x7F800000
        exponent = tl.maximum(exponent, SHIFT << 23)
        unit = tl.maximum(0x7F000000 - exponent, 0x00800000)
    return unit.to(largest.dtype, bitcast=True)


@triton.jit
def reflection(g, inverse, M: tl.constexpr, SHIFT: tl.constexpr):
    """Return the reflection I - factor w w^T of a row's first M gates: w, scale, factor, curve.

    w is scale g, and 2^SHIFT scale is finite; curve is twice the derivative of the factor by |w|^2.
    """
    largest = tl.abs(g[0])
    for i in tl.static_range(1, M):
        largest = tl.maximum(largest, tl.abs(g[i]))
    scale = tl.minimum(_unit(largest, SHIFT), inverse)
    w = (g[0] * scale,)
    q = w[0] * w[0]
    for i in tl.static_range(1, M):
        w = w + (g[i] * scale,)
        q += w[i] * w[i]
    # s^-1, at most 1.
    fourth = scale * (1.0 / inverse)
    fourth = fourth * fourth
    fourth = fourth * fourth
    # At least 1, as q is if s is not 1.
    below = reciprocal(fourth + q * q)
    return w, scale, 2.0 * q * below, 4.0 * (fourth - q * q) * below * below


@triton.jit
def product(a, b, M: tl.constexpr):
    """Return the inner product of two vectors."""
    total = a[0] * b[0]
    for i in tl.static_range(1, M):
        total += a[i] * b[i]
    return total


@triton.jit
def plus(x, along, w, M: tl.constexpr):
    """Return x + along w."""
    result = ()
    for i in tl.static_range(M):
        result = result + (x[i] + along * w[i],)
    return result


@triton.jit
def reflected(x, w, factor, M: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the reflections of several vectors, stored as columns of maps are (tiles.py)."""
    along = ()
    for k in tl.static_range(COLUMNS):
        total = w[0] * x[k]
        for i in tl.static_range(1, M):
            total += w[i] * x[i * COLUMNS + k]
        along = along + (factor * total,)
    result = ()
    for i in tl.static_range(M):
        for k in tl.static_range(COLUMNS):
            result = result + (x[i * COLUMNS + k] - along[k] * w[i],)
    return result


@triton.jit
def opening(mean, inverse):
    """Return the input gate a, and 1 - a with all its digits, from the mean of raw gates."""
    x = mean * inverse - 3.0
    e = tl.exp2(tl.abs(x) * -LOG2_E)
    more = reciprocal(1.0 + e)
    less = e * more
    return tl.where(x > 0, more, less), tl.where(x > 0, less, more)
