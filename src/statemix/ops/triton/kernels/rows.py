"""One row of raw gates in a Triton kernel: its weighted sum, and the closed-form backward.

    forward   h = sum_j p_j u_j,  with p = f(g / T) / S and S = sum_j |f(g_j / T)|
    backward  du_j = p_j lam,  dg_j = lam f'(g_j) / S (u_j - s_j h)

with u the previous states and, last, the value, and s the sign inside |f|. Each number of a row is
a tile of lanes, so a row is a tuple of tiles. The families are defined in ops/gates.py, and kept
from overflowing as in the CPU kernels (ops/cpu/gates.h): weights are measured in a unit of their
row, and in 2^-SHIFT, at most 1 / (4 (m+1)), so that no weighted sum overflows. "coarse_tanh" is
tanh of gates in bfloat16: where the GPU has an instruction for it, weights have 11 digits of 2,
while the gates have 8; gradients are computed from those weights, and all else in float32.
"""

import triton
import triton.language as tl
from triton import knobs
from triton.language.target_info import is_cuda
from triton.runtime.jit import constexpr_function

from statemix.ops.triton.kernels.tiles import scaled

# Keeps the division finite where the normaliser can vanish: ops/gates.py, EPSILON.
EPSILON: tl.constexpr = tl.constexpr(1e-6)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
# tanh(x ln 2) = A1 x - A3 x^3 + A5 x^5 for |x| < NEAR, minimax in the relative error, 4.9e-7.
A1: tl.constexpr = tl.constexpr(0.6931471805599453)
A3: tl.constexpr = tl.constexpr(0.1109790378105774)
A5: tl.constexpr = tl.constexpr(0.02060261941571482)
NEAR: tl.constexpr = tl.constexpr(0.36067376022224085)
# The smallest normal and the largest number of float32 and of float64.
TINY: tl.constexpr = tl.constexpr(1.1754943508222875e-38)
LARGEST: tl.constexpr = tl.constexpr(3.4028234663852886e38)
TINY_64: tl.constexpr = tl.constexpr(2.2250738585072014e-308)
LARGEST_64: tl.constexpr = tl.constexpr(1.7976931348623157e308)


@constexpr_function
def nvidia():
    """Return whether a kernel is compiled for a GPU of NVIDIA's, sm_75 or later."""
    return is_cuda() and not knobs.runtime.interpret


@triton.jit
def _approximate_reciprocal(x):
    """Return 1 / x in float32, but for the last bit; 0 where it is no normal number."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _approximate_tanh(x):
    """Return tanh(x) in float32, with a relative error of 2^-11 at most."""
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _raised(x):
    """Return x >= 0, raised to the smallest normal number if it is below; a NaN stays one."""
    least = TINY_64 if x.dtype == tl.float64 else TINY
    return tl.maximum(x, least, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _normal(x):
    """Return a positive number, or the nearest one that is finite and not denormal, or a NaN."""
    most = LARGEST_64 if x.dtype == tl.float64 else LARGEST
    return tl.minimum(_raised(x), most, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def inverse_of(temperature, S: tl.constexpr, TEMPERED: tl.constexpr):
    """Return 1 / T in dtype S, from a pointer to T; 1 if there is no temperature.

    It is normal and at most a quarter of the largest number, so that products with log2 e are, too.
    """
    inverse = tl.full((1, 1), 1.0, S)
    if TEMPERED:
        inverse = _normal(0.25 * _normal(4.0 * inverse / tl.load(temperature).to(S)))
    return inverse


@triton.jit
def _exponential(x, inverse, SHIFT: tl.constexpr):
    """Return 2^-SHIFT e^{x / T}."""
    return tl.exp2(x * (inverse * LOG2_E) - SHIFT)


@triton.jit
def _exponential_of_difference(x, y, inverse, SHIFT: tl.constexpr):
    """Return 2^-SHIFT e^{(x - y) / T}; half of the difference cannot overflow."""
    return _exponential(0.5 * x - 0.5 * y, 2.0 * inverse, SHIFT)


@triton.jit
def reciprocal(x):
    """Return 1 / x of a positive normal number or infinity; a division takes longer."""
    if nvidia() and x.dtype == tl.float32:
        inverse = _approximate_reciprocal(x)
    else:
        root = tl.rsqrt(x)
        inverse = root * root
    return inverse


@triton.jit
def _rounded_reciprocal(x):
    """Return 1 / x as a division rounds it, so that a state with all weight does not shrink."""
    inverse = reciprocal(x)
    return tl.fma(tl.fma(-x, inverse, 1.0), inverse, inverse)


@triton.jit
def _quotient(x, y, inverse):
    """Return x / y from 1 / y as a division rounds it: a state with all the weight is kept."""
    near = x * inverse
    exact = tl.fma(tl.fma(-near, y, x), inverse, near)
    return tl.where(tl.abs(near) < float("inf"), exact, near)


@triton.jit
def _finite(x):
    """Return a number that is not negative, or 2^100 if it is larger; a NaN stays one."""
    return tl.minimum(x, 2.0**100, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _tanh(g, inverse, UNIT: tl.constexpr):
    """Return tanh(g / T) times UNIT, with all digits near 0, where 1 - 2 / (1 + e^2g) has none."""
    e = _exponential(g, inverse, 0)
    large = UNIT - (2.0 * UNIT) * reciprocal(e * e + 1.0)
    if g.dtype == tl.float64:
        x = g * inverse
        z = x * x
        near = tl.abs(x) < 0.625
        # Lambert's continued fraction.
        small = z * 0.0 + 19.0
        for k in tl.static_range(9):
            small = (17.0 - 2.0 * k) + z / small
        small = x / small * UNIT
    else:
        x = g * (inverse * LOG2_E)
        z = x * x
        near = tl.abs(x) < NEAR
        small = x * (((A5 * UNIT) * z - A3 * UNIT) * z + A1 * UNIT)
    return tl.where(near, small, large)


@triton.jit
def _ramp(g):
    """Return max(g, 0); a NaN stays one."""
    return tl.maximum(g, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _measure(g, FAMILY: tl.constexpr):
    """Return what is largest at the entry that sets the scale of a row."""
    m = g
    if FAMILY == "relu":
        m = _ramp(g)
    elif FAMILY == "signed":
        m = tl.abs(g)
    return m


@triton.jit
def _scale(g, inverse, COUNT: tl.constexpr, FAMILY: tl.constexpr):
    """Return what the gates of a row are measured from, if they are, and their factor."""
    top = _measure(g[0], FAMILY)
    if not _is_tanh(FAMILY) and FAMILY != "none":
        for j in tl.static_range(1, COUNT):
            top = tl.maximum(top, _measure(g[j], FAMILY))
    factor = tl.zeros_like(top) + inverse
    if FAMILY == "sigmoid":
        # Where a gate is positive, its weight is at least 1/2.
        top = tl.minimum(top, 0.0)
    elif FAMILY == "relu" or FAMILY == "signed":
        # The largest of their products is 1, less where gates are small for the temperature, and at
        # most 4 where the factor would be no normal number.
        factor = _raised(tl.minimum(reciprocal(_raised(top)), inverse))
    return top, factor


@triton.jit
def _weight(g, top, factor, inverse, FAMILY: tl.constexpr, SHIFT: tl.constexpr):
    """Return f(g / T) in the unit of its row."""
    UNIT: tl.constexpr = 2.0**-SHIFT
    f = g
    if FAMILY == "softmax":
        f = _exponential_of_difference(g, top, inverse, SHIFT)
    elif FAMILY == "sigmoid":
        # 1 / (1 + e^-g), both terms of the sum in e^-top, which is the unit of the row.
        f = _exponential(top, inverse, -SHIFT)
        f = reciprocal(f + _exponential_of_difference(top, g, inverse, -SHIFT))
    elif FAMILY == "relu":
        f = _ramp(g) * (factor * UNIT)
    elif FAMILY == "signed":
        f = g * (factor * UNIT)
    elif FAMILY == "coarse_tanh" and nvidia():
        f = _approximate_tanh(g * inverse) * UNIT
    elif _is_tanh(FAMILY):
        f = _tanh(g, inverse, UNIT)
    elif FAMILY == "none":
        f = g * inverse
    return f


@constexpr_function
def _is_tanh(family):
    return family in ("tanh", "coarse_tanh")


@triton.jit
def _share(f, FAMILY: tl.constexpr):
    """Return |f|, which the normaliser sums."""
    share = f
    if FAMILY == "signed" or _is_tanh(FAMILY):
        share = tl.abs(f)
    return share


@triton.jit
def _epsilon(factor, inverse, FAMILY: tl.constexpr, SHIFT: tl.constexpr):
    """Return epsilon in the unit of the row."""
    UNIT: tl.constexpr = 2.0**-SHIFT
    epsilon = tl.zeros_like(factor)
    if FAMILY == "relu" or FAMILY == "signed":
        epsilon = factor * reciprocal(inverse) * (EPSILON * UNIT)
    elif _is_tanh(FAMILY):
        epsilon += EPSILON * UNIT
    return epsilon


@triton.jit
def _gradient(g, f, half, common, top, factor, inverse, FAMILY: tl.constexpr, SHIFT: tl.constexpr):
    """Return f'(g) times lam / S times twice ``half``, with f' the derivative by g.

    A factor above 1 comes last, and one below 1 first of all: no product of the others then
    overflows, nor meets a zero as infinity, unless the gradient overflows.
    """
    UNIT: tl.constexpr = 2.0**-SHIFT
    if FAMILY == "given":
        gradient = common * half
    elif FAMILY == "none":
        gradient = common * inverse * half
    elif FAMILY == "softmax":
        gradient = (common * f) * (half * tl.minimum(inverse, 1.0)) * tl.maximum(inverse, 1.0)
    elif FAMILY == "sigmoid":
        # The share of the second term is 1 - sigmoid, without cancellation.
        share = _finite(_exponential_of_difference(top, g, inverse, -SHIFT)) * f
        gradient = common * (inverse * share * f) * half
    elif _is_tanh(FAMILY):
        # 1 - tanh^2 = sech^2, without cancellation.
        e = _exponential(g, inverse, 0)
        sech = 2.0 * _finite(e) * reciprocal(e * e + 1.0)
        steep = common * UNIT * ((sech * sech * tl.minimum(inverse, 1.0)) * half)
        gradient = steep * tl.maximum(inverse, 1.0)
    else:
        steep = common * UNIT
        gradient = tl.where(factor < 1, steep * (factor * half), steep * half * factor)
        if FAMILY == "relu":
            gradient = tl.where(g > 0, gradient, 0.0)
    return gradient + gradient


@triton.jit
def row_forward(g, u, inverse, COUNT: tl.constexpr, FAMILY: tl.constexpr, SHIFT: tl.constexpr):
    """Return h of one row of COUNT = m + 1 raw gates (of "given" m), which weigh u, in 2^-SHIFT."""
    if FAMILY == "given":
        h = u[COUNT - 1]
        for j in tl.static_range(COUNT - 1):
            h += g[j] * u[j]
    else:
        top, factor = _scale(g, inverse, COUNT, FAMILY)
        f = _weight(g[0], top, factor, inverse, FAMILY, SHIFT)
        h = f * u[0]
        total = _epsilon(factor, inverse, FAMILY, SHIFT) + _share(f, FAMILY)
        for j in tl.static_range(1, COUNT):
            f = _weight(g[j], top, factor, inverse, FAMILY, SHIFT)
            h += f * u[j]
            total += _share(f, FAMILY)
        if FAMILY != "none":
            h = _quotient(h, total, reciprocal(total))
    return h


@triton.jit
def row_weights(g, inverse, COUNT: tl.constexpr, FAMILY: tl.constexpr):
    """Return the weights p of one row, COUNT tiles; 1 for the input of "given"."""
    p = g
    if FAMILY == "given":
        p = g + (g[0] * 0.0 + 1.0,)
    elif FAMILY == "none":
        p = scaled(g, inverse, COUNT)
    else:
        top, factor = _scale(g, inverse, COUNT, FAMILY)
        total = _epsilon(factor, inverse, FAMILY, 0)
        f = ()
        for j in tl.static_range(COUNT):
            f = f + (_weight(g[j], top, factor, inverse, FAMILY, 0),)
            total += _share(f[j], FAMILY)
        p = scaled(f, _rounded_reciprocal(total), COUNT)
    return p


@triton.jit
def row_backward(
    g, u, lam, inverse, COUNT: tl.constexpr, FAMILY: tl.constexpr, SHIFT: tl.constexpr
):
    """Return the gradients of one row's gates, and of what they weigh.

    ``lam`` is the gradient of h, which is computed again: if the states u were rounded when they
    were stored, u - h keeps its digits, which the difference from a rounded h would not.
    """
    d_g = ()
    d_u = ()
    top = lam
    factor = lam
    common = lam
    GATES: tl.constexpr = COUNT - 1 if FAMILY == "given" else COUNT
    if FAMILY != "given":
        top, factor = _scale(g, inverse, COUNT, FAMILY)
    f = ()
    for j in tl.static_range(GATES):
        f = f + (_weight(g[j], top, factor, inverse, FAMILY, SHIFT),)
    half_h = lam
    if FAMILY != "given" and FAMILY != "none":
        total = _epsilon(factor, inverse, FAMILY, SHIFT)
        h = f[0] * u[0]
        for j in tl.static_range(COUNT):
            total += _share(f[j], FAMILY)
        for j in tl.static_range(1, COUNT):
            h += f[j] * u[j]
        share = reciprocal(total)
        common = _quotient(lam, total, share)
        # Halved, because u - h may overflow although the gradient is finite.
        half_h = _quotient(h, total, share) * 0.5
    for j in tl.static_range(GATES):
        half = u[j] * 0.5
        if FAMILY == "softmax" or FAMILY == "sigmoid" or FAMILY == "relu":
            half -= half_h
        elif FAMILY == "signed" or _is_tanh(FAMILY):
            half -= tl.where(f[j] > 0, half_h, tl.where(f[j] < 0, -half_h, 0.0))
        gradient = _gradient(g[j], f[j], half, common, top, factor, inverse, FAMILY, SHIFT)
        d_g = d_g + (gradient,)
        d_u = d_u + (common * f[j],)
    if FAMILY == "given":
        d_u = d_u + (lam,)
    return d_g, d_u
