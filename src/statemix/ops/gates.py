"""Gate families: how raw gates become the state gates and the input gate of a row.

A family is one function and one entry of :data:`GATES`; a backend's record lists the families that
its kernels normalise themselves. All families but ``householder`` and ``column_softmax`` normalise
each row of m + 1 raw gates separately, so they apply to blocks and lags alike.
"""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from numbers import Real

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.errors import SettingError
from statemix.ops import flops
from statemix.ops.checks import FLOATING, check_dense
from statemix.registry import Registry

# Keeps the division finite where the normaliser can vanish. Mirrored in cpu/gates.h and
# triton/kernels/rows.py.
EPSILON = 1e-6


@dataclass(frozen=True)
class GateFamily:
    """How one family normalises raw gates.

    Attributes:
        name: name that users pass as ``gate=``.
        normalize: raw gates (..., m+1) -> state gates (..., m) and input gate (...). If
            ``blocks_only``: raw gates (..., m, m+1) -> transitions (..., m, m) and input gate
            (..., m).
        bound: bound on the states, in words.
        flops: m -> FLOPs (:mod:`statemix.ops.flops`) of normalising a row of m + 1 raw gates; if
            ``blocks_only``, of a whole block.
        blocks_only: True if the family needs the rows of a whole block.
    """

    name: str
    normalize: Callable[[Tensor], tuple[Tensor, Tensor]]
    bound: str
    flops: Callable[[int], int]
    blocks_only: bool = False


PROPOSITION_1 = "|h_t| <= max(|h_0|, max |v|), entry by entry (Proposition 1)"


def _split(gates: Tensor) -> tuple[Tensor, Tensor]:
    return gates[..., :-1], gates[..., -1]


def _over_sum(numerators: Tensor) -> tuple[Tensor, Tensor]:
    # Divide by the largest entry first, so that the sum cannot overflow. The result does not depend
    # on this unit, nor does its gradient.
    unit = numerators.detach().abs().amax(-1, keepdim=True).clamp(min=1)
    scaled = numerators / unit
    return _split(scaled / (scaled.abs().sum(-1, keepdim=True) + EPSILON / unit))


def _softmax_over(gates: Tensor, axis: int) -> Tensor:
    """Softmax over a negative axis in the memory order of ``gates``: else it is 30 times slower."""
    strides = gates.stride()
    if strides[axis] == 1 or 1 not in strides:
        return gates.softmax(axis)
    inner = strides.index(1)
    moved = axis - 1 if inner < gates.ndim + axis else axis
    return gates.movedim(inner, -1).softmax(moved).movedim(-1, inner)


def _with_zero(x: Tensor) -> Tensor:
    """Append a zero to the last axis, in the memory order of ``x``."""
    strides = x.stride()
    if strides[-1] == 1 or 1 not in strides:
        return F.pad(x, (0, 1))
    inner = strides.index(1)
    return F.pad(x.movedim(inner, -1), (0, 0, 0, 1)).movedim(-1, inner)


def _householder(gates: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`normalize`.

    The j-th factor has eigenvalue (1 - |u_j|^4) / (1 + |u_j|^4) along u_j: the identity for short
    vectors, a reflection for long ones. No second parameter is needed, so the raw gates have the
    shape of the other families.
    """
    vectors, input_gates = gates[..., :-1], gates[..., -1]
    size = vectors.shape[-1]
    # Divide before the sum, so that the mean of finite gates is finite.
    mean = _sum_in_order(input_gates / size)
    # sigmoid(mean - 3) as a softmax: the rounding of torch.sigmoid depends on an entry's place, and
    # 1 minus an input gate close to 1 would have few correct digits.
    both = torch.cat([mean - 3, torch.zeros_like(mean)], dim=-1).softmax(-1)
    input_gate, state_gate = both[..., :1], both[..., 1:]
    # |u|^4 would overflow for long vectors. With u = s w, where s >= 1 is the largest entry,
    # c u u^T = 2 |w|^2 / (s^-4 + |w|^4) w w^T. The result does not depend on s.
    unit = vectors.detach().abs().amax(-1, keepdim=True).clamp(min=1)
    vectors = vectors / unit
    lengths = _sum_in_order(vectors.square())
    scaled = vectors * (2 * lengths / (unit.reciprocal().square().square() + lengths.square()))
    transition = torch.eye(size, dtype=gates.dtype, device=gates.device)
    for vector, scaled_vector in zip(vectors.unbind(-2), scaled.unbind(-2), strict=True):
        along = _sum_in_order(transition * scaled_vector.unsqueeze(-2))
        transition = transition - along * vector.unsqueeze(-2)
    return state_gate.unsqueeze(-1) * transition, input_gate.expand(input_gates.shape)


def _householder_flops(size: int) -> int:
    """Count the input gate of a block, the factors c_j, and the product of the reflections."""
    input_gate = size + 1 + 1 + flops.SIGMOID + 1  # The mean, its shift, a_0, and 1 - a_0.
    factors = size * (2 * size + 4)  # |u|^2, then 2 |u|^2 / (1 + |u|^4).
    # A c_j u_j, and its outer product with u_j, taken from A.
    products = size * (size + 4 * size**2)
    return input_gate + factors + products + size**2


def _column_softmax(gates: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`normalize`."""
    # A softmax with a zero in it, and not a sigmoid of a sum: the rounding of torch.logsumexp
    # depends on the shape, and 1 - a_0 would have few correct digits.
    input_gate, state_gate = _split(_softmax_over(_with_zero(gates[..., -1]), -1))
    columns = _softmax_over(gates[..., :-1], -2)
    return state_gate[..., None, None] * columns, input_gate


def _sum_in_order(x: Tensor) -> Tensor:
    """Sum over the last axis in order, so that a step rounds as it does within a sequence."""
    return reduce(torch.add, x.unbind(-1)).unsqueeze(-1)


GATES: Registry[GateFamily] = Registry(
    "gate",
    [
        GateFamily(
            "softmax",
            lambda g: _split(_softmax_over(g, -1)),
            PROPOSITION_1,
            lambda m: flops.softmax(m + 1),
        ),
        # sigmoid(g) / sum sigmoid(g) in logarithms: very negative rows must not give 0 / 0.
        GateFamily(
            "sigmoid",
            lambda g: _split(_softmax_over(F.logsigmoid(g), -1)),
            PROPOSITION_1,
            lambda m: (flops.SIGMOID + 2) * (m + 1),
        ),
        GateFamily("relu", lambda g: _over_sum(g.relu()), PROPOSITION_1, lambda m: 3 * (m + 1)),
        GateFamily(
            "none",
            _split,
            "no bound: the state may grow without limit",
            lambda m: 0,  # noqa: ARG005  nothing is computed
        ),
        GateFamily("signed", _over_sum, PROPOSITION_1, lambda m: 3 * (m + 1)),
        GateFamily(
            "tanh",
            lambda g: _over_sum(g.tanh()),
            PROPOSITION_1,
            lambda m: (flops.TANH + 3) * (m + 1),
        ),
        GateFamily(
            "householder",
            _householder,
            "|A|_2 <= 1 - a_0, so |h_t|_2 <= max(|h_0|_2, max |v|_2) in each block",
            _householder_flops,
            blocks_only=True,
        ),
        GateFamily(
            "column_softmax",
            _column_softmax,
            "|h_t|_1 <= max(|h_0|_1, max_{t,i} |v_{t,i}|) in each block and channel",
            # The columns, the input column, and the share of the state in every column.
            lambda m: m * flops.softmax(m) + flops.softmax(m + 1) + m**2,
            blocks_only=True,
        ),
    ],
)
"""Every gate family by name."""


def check_gate(gate: object, *, blocks: bool) -> GateFamily:
    """Return the family called ``gate``; all support blocks, but not all support lags."""
    if blocks:
        return GATES.find(gate)
    names = [family.name for family in GATES.values() if not family.blocks_only]
    if not isinstance(gate, str) or gate not in names:
        raise SettingError("", f"must be one of {names}", gate, subject="gate")
    return GATES.find(gate)


def normalize(
    gates: Tensor, gate: str, *, temperature: Tensor | float | None = None
) -> tuple[Tensor, Tensor]:
    r"""Turn raw gates into the coefficients of the recurrence.

    .. math:: a_j = f(g_j / \tau) / \sum_k |f(g_k / \tau)|, \qquad k = 1, \dots, m, 0

    Source: Dubinin et al., Eq. 6, for ``softmax`` (f = exp), ``sigmoid``, ``relu`` and ``none`` (no
    normaliser); ``signed`` (f(g) = g), ``tanh`` and the families of blocks go beyond the paper.

    Bounds on the states that follow:

    - softmax, sigmoid, relu, signed, tanh: |h_t| <= max(|h_0|, max |v|), entry by entry
      (Proposition 1)
    - householder: |A|_2 <= 1 - a_0, so |h_t|_2 <= max(|h_0|_2, max |v|_2) in each block
    - column_softmax: |h_t|_1 <= max(|h_0|_1, max_{t,i} |v_{t,i}|) in each block and channel
    - none: no bound: the state may grow without limit. With random gates it grows exponentially,
      past 1e16 in 1,000 steps at m = 2.

    ``householder`` reads the raw gates of a whole block: row j of the state gates is the vector u_j
    of a reflection, and the mean of the input gates gives the block's one input gate a_0,

    .. math:: A = (1 - a_0) \prod_{j=1}^m (I - c_j u_j u_j^T), \quad
        c_j = 2 |u_j|^2 / (1 + |u_j|^4), \quad
        a_0 = \sigma(\mathrm{mean}_i(g_{i0}) - 3)

    ``column_softmax`` normalises over the columns of a block: a column says where the weight of one
    old entry goes. The input gates form one more column, in which a zero stands for the state,

    .. math:: a_{i0} = \frac{e^{g_{i0}}}{1 + \sum_k e^{g_{k0}}}, \quad
        A_{ij} = \Big(1 - \sum_k a_{k0}\Big) \frac{e^{g_{ij}}}{\sum_k e^{g_{kj}}}

    This softens the transitions of PD-SSM (Terzić et al., arXiv:2509.22284). The gates of a block
    sum to 1 in every column of A with the input column added, so a step moves weight without loss,
    and a distribution (with values of 1) stays one; docs/layers.md shows what follows.

    Args:
        gates: raw gates, shape (..., m+1), the input gate last; (..., m, m+1) for ``householder``
            and ``column_softmax``. A floating dtype.
        gate: a name in :data:`GATES`.
        temperature: tau, a positive number or a positive 0-d floating tensor on the device of the
            gates. It is not differentiated. None means 1.

    Returns:
        state_gates: shape (..., m), or the transitions (..., m, m) for families of blocks.
        input_gate: shape (...), or (..., m) for families of blocks.

    Example:
        >>> state_gates, input_gate = normalize(torch.zeros(3), "softmax")
        >>> round(float(state_gates.sum() + input_gate), 6)
        1.0
    """
    family = GATES.find(gate)
    if not isinstance(gates, Tensor) or gates.dtype not in FLOATING:
        kind = gates.dtype if isinstance(gates, Tensor) else type(gates).__name__
        raise TypeError(f"gates must be a floating tensor, got {kind}")
    check_dense("gates", gates)
    shape = tuple(gates.shape)
    if not shape or shape[-1] < 2:
        raise ValueError(f"gates must have shape (..., m+1) with m of at least 1, got {shape}")
    if family.blocks_only and (len(shape) < 2 or shape[-2] + 1 != shape[-1]):
        raise ValueError(f"gates must have shape (..., m, m+1) for {gate!r}, got {shape}")
    divisor = check_temperature(temperature, gates)
    return family.normalize(gates if divisor is None else gates / divisor)


# Every dtype in which gates are divided holds numbers between this one and its inverse.
_SAFE = 1e-30


def check_temperature(temperature: object, gates: Tensor) -> Tensor | float | None:
    """Return a checked temperature; the value of a tensor is not read."""
    if temperature is None:
        return None
    if isinstance(temperature, Tensor):
        check_dense("temperature", temperature)
        if not temperature.dtype.is_floating_point:
            raise TypeError(f"temperature must have a floating dtype, got {temperature.dtype}")
        if temperature.ndim:
            raise ValueError(f"temperature must have shape (), got {tuple(temperature.shape)}")
        if temperature.device != gates.device:
            raise ValueError(f"temperature must be on {gates.device}, got {temperature.device}")
        if temperature.requires_grad:
            raise ValueError(
                "temperature must not require a gradient, got one that does: operators do not "
                "differentiate it; to learn it, divide the gates by it before the call"
            )
        return temperature
    if not isinstance(temperature, Real) or isinstance(temperature, bool):
        raise TypeError(f"temperature must be a 0-d tensor, a number or None, got {temperature!r}")
    try:
        number = float(temperature)
    except OverflowError:
        number = math.inf
    if _SAFE < number < 1 / _SAFE:
        return number
    # float16 and bfloat16 gates are divided in float32, too.
    limits = torch.finfo(torch.promote_types(gates.dtype, torch.float32))
    if not limits.tiny <= number <= limits.max:
        raise ValueError(
            f"temperature must be positive and in {limits.tiny:.3g}..{limits.max:.3g}, the range "
            f"of {limits.dtype}, got {reprlib.repr(temperature)}"
        )
    return number
