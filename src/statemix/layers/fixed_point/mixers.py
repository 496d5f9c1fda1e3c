"""State mixers: the dense matrices Q of a fixed-point RNN, from maps with normalised weights."""

import math
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.errors import OptionError
from statemix.layers.padded import unit_length
from statemix.ops import flops
from statemix.ops.checks import check_choice, check_sizes

MixerName = Literal["householder", "dplr", "kronecker", "monarch"]
MixerInputs = Literal["both", "sum", "token"]

# Keeps the length of a row, or the norm of a matrix, of zeros from dividing by zero.
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


class _Reflecting(StateMixer):
    """Vectors u_i of length 1 and strengths c_i, i = 1 ... r."""

    def _build(self, inputs: MixerInputs, placed: dict[str, Any]) -> None:
        self.vectors = NormedLinear(self.size, self.rank * self.size, inputs, **placed)
        self.strengths = NormedLinear(self.size, self.rank, inputs, bias=True, **placed)

    @property
    def _flops(self) -> int:
        scaled = 0 if self.contractive else 1
        each = self.size * flops.SILU + flops.l2_norm(self.size) + flops.SIGMOID + scaled
        return self.rank * each

    def coefficients(self, raw: list[Tensor]) -> tuple[Tensor, Tensor]:
        vectors = _split(functional.silu(raw[0]), self.rank)
        strengths = torch.sigmoid(raw[1])
        return unit_length(vectors), strengths if self.contractive else 2 * strengths


class Householder(_Reflecting):
    r"""A product of generalised Householder reflections, H_r (Movahedi et al.).

    .. math:: Q = (I - c_r u_r u_r^\top) \cdots (I - c_1 u_1 u_1^\top)

    with unit vectors u_i and c_i in (0, 2). If the mixer is contractive, c_i is in (0, 1): each
    factor then shortens what it removes, so that the 2-norm of I - Q is at most sqrt(r).
    """

    @property
    def bound(self) -> float:
        return math.sqrt(self.rank)

    @property
    def flops(self) -> int:
        # A reflection is a product, a factor and a sum, N of the last.
        return self._flops + self.rank * (4 * self.size + 1) + self.size

    def deviation(self, coefficients: tuple[Tensor, ...], v: Tensor) -> Tensor:
        vectors, strengths = coefficients
        left = v
        for place in range(self.rank):
            u = vectors[..., place, :]
            along = (u * left).sum(-1, keepdim=True) * strengths[..., place, None]
            left = left - along * u
        return v - left


class DPLR(_Reflecting):
    r"""The identity minus a matrix of low rank, DPLR_r (Movahedi et al.).

    .. math:: Q = I - \sum_{i=1}^r c_i u_i u_i^\top

    with unit vectors u_i and c_i in (0, 2), or in (0, 1) if contractive.
    """

    @property
    def bound(self) -> float:
        return float(self.rank)

    @property
    def flops(self) -> int:
        return self._flops + self.rank * (4 * self.size + 1)

    def deviation(self, coefficients: tuple[Tensor, ...], v: Tensor) -> Tensor:
        vectors, strengths = coefficients
        along = torch.einsum("...rn,...n->...r", vectors, v) * strengths
        return torch.einsum("...rn,...r->...n", vectors, along)


class Kronecker(StateMixer):
    r"""The identity minus a Kronecker product of two small matrices.

    .. math:: Q v = v - 2\, \mathrm{vec}(V X U), \qquad X = v \text{ as an } a \times b
        \text{ matrix}, \\
        U = \mathrm{diag}(s_U)\, \mathrm{rows}(P_U P_U^\top), \qquad
        V = \mathrm{diag}(s_V)\, \mathrm{rows}(P_V P_V^\top)

    with upper triangular P, rows() dividing each row by its length, and s in (0, 1). Of N = a b, a
    is the largest divisor up to sqrt(N). If the mixer is contractive, the factor 2 is absent and
    each matrix is divided by sqrt(|M|_1 |M|_inf) where that exceeds 1, which bounds its 2-norm.
    """

    def _build(self, inputs: MixerInputs, placed: dict[str, Any]) -> None:
        size = self.size
        rows = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
        self.sizes = (rows, size // rows)
        self.triangles = nn.ModuleList(
            NormedLinear(size, n * (n + 1) // 2, inputs, **placed) for n in self.sizes
        )
        self.strengths = nn.ModuleList(
            NormedLinear(size, n, inputs, bias=True, **placed) for n in self.sizes
        )

    @property
    def flops(self) -> int:
        a, b = self.sizes
        made = 0
        for n in self.sizes:
            # Triangles count as full matrices.
            triangle = n * (n + 1) // 2 * flops.SILU + 2 * n**3
            rows = n * (flops.l2_norm(n) + flops.SIGMOID + n)
            # Magnitudes, sums of rows and of columns, their maxima, and the quotients.
            bounded = 4 * n**2 + 2 * n + 3 if self.contractive else 0
            made += triangle + rows + bounded
        return made + 2 * a * b * (a + b) + (0 if self.contractive else self.size)

    def coefficients(self, raw: list[Tensor]) -> tuple[Tensor, Tensor]:
        factors = []
        for n, triangle, strengths in zip(self.sizes, raw[:2], raw[2:], strict=True):
            upper = _upper(functional.silu(triangle), n)
            matrix = torch.sigmoid(strengths).unsqueeze(-1) * unit_length(upper @ upper.mT)
            if self.contractive:
                sizes = matrix.abs()
                bound = sizes.sum(-1).amax(-1) * sizes.sum(-2).amax(-1)
                matrix = matrix / bound.clamp(min=1.0).sqrt()[..., None, None]
            factors.append(matrix)
        return factors[0], factors[1]

    def deviation(self, coefficients: tuple[Tensor, ...], v: Tensor) -> Tensor:
        left, right = coefficients
        mixed: Tensor = (left @ _split(v, self.sizes[0]) @ right).flatten(-2)
        return mixed if self.contractive else 2 * mixed


class Monarch(StateMixer):
    r"""The identity minus a block-diagonal matrix.

    .. math:: Q = I - \mathrm{blockdiag}_j(\alpha_j K_j), \qquad
        K_j = P_j P_j^\top / \max_i |(P_j P_j^\top)_{:,i}|

    with upper triangular P_j and alpha_j in (0, 1): blocks of entries mix, as in a BD-LRU. If the
    mixer is contractive, K_j is divided by its largest row sum instead, which bounds its 2-norm.

    Source: as :class:`Householder`, whose code has it without published numbers.
    """

    def _build(self, inputs: MixerInputs, placed: dict[str, Any]) -> None:
        size, rank = self.size, self.rank
        if size % rank:
            raise OptionError(
                f"rank must divide the entries of a Monarch mixer, got {rank} and {size}"
            )
        self.num_blocks = size // rank
        entries = self.num_blocks * rank * (rank + 1) // 2
        self.triangles = NormedLinear(size, entries, inputs, **placed)
        self.strengths = NormedLinear(size, self.num_blocks, inputs, bias=True, **placed)

    @property
    def flops(self) -> int:
        n = self.rank
        triangle = n * (n + 1) // 2 * flops.SILU + 2 * n**3
        # Magnitudes or squares, their sums, the maximum; the root, unless contractive.
        largest = 2 * n**2 + n + (0 if self.contractive else 1)
        scaled = flops.SIGMOID + 1 + n**2
        return self.num_blocks * (triangle + largest + scaled + 2 * n**2)

    def coefficients(self, raw: list[Tensor]) -> tuple[Tensor]:
        entries = _split(functional.silu(raw[0]), self.num_blocks)
        upper = _upper(entries, self.rank)
        product = upper @ upper.mT
        if self.contractive:
            largest = product.abs().sum(-1).amax(-1)
        else:
            largest = product.square().sum(-2).amax(-1).add(_TINY**2).sqrt()
        strengths = torch.sigmoid(raw[1]) / largest.clamp(min=_TINY)
        return (strengths[..., None, None] * product,)

    def deviation(self, coefficients: tuple[Tensor, ...], v: Tensor) -> Tensor:
        (blocks,) = coefficients
        parts = _split(v, self.num_blocks)
        mixed: Tensor = (blocks @ parts.unsqueeze(-1)).flatten(-3)
        return mixed


def build_mixer(name: str, size: int, inputs: MixerInputs, rank: int, **options: Any) -> StateMixer:
    """Build a mixer by name; the other arguments are those of :class:`StateMixer`."""
    check_choice("mixer", name, list(get_args(MixerName)))
    check_choice("mixer_inputs", inputs, list(get_args(MixerInputs)))
    check_sizes(rank=rank)
    if name == "kronecker" and rank != 1:
        raise OptionError(f"rank must be absent with a Kronecker mixer, got {rank}")
    kinds = dict(zip(get_args(MixerName), (Householder, DPLR, Kronecker, Monarch), strict=True))
    mixer: StateMixer = kinds[name](size, inputs, rank, **options)
    return mixer


def _split(v: Tensor, parts: int) -> Tensor:
    """Split the last axis into ``parts`` of equal size: (..., parts, size)."""
    return v.reshape(*v.shape[:-1], parts, v.shape[-1] // parts)


def _upper(entries: Tensor, n: int) -> Tensor:
    """Return upper triangular matrices (..., n, n) with these entries (..., n (n + 1) / 2)."""
    places = torch.triu_indices(n, n, device=entries.device)
    # Gathering, unlike assigning, needs no copy in the backward pass, and vmap can batch it.
    index = entries.new_full((n, n), -1, dtype=torch.int64)
    index[places[0], places[1]] = torch.arange(places.shape[1], device=entries.device)
    filled = entries[..., index.clamp(min=0).flatten()].reshape(*entries.shape[:-1], n, n)
    return filled * (index >= 0)
