"""The dense matrices Q of a fixed-point RNN: reflections, low rank, Kronecker products, blocks."""

import math
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix import ops
from statemix.errors import OptionError
from statemix.layers.fixed_point.state_mixer import (
    MixerInputs,
    NormedLinear,
    SolvableMixer,
    StateMixer,
)
from statemix.layers.padded import unit_length
from statemix.ops import flops
from statemix.ops.checks import check_choice, check_sizes

MixerName = Literal["householder", "dplr", "kronecker", "monarch"]

# Keeps the norm of a matrix of zeros from dividing by zero.
_TINY = 1e-6


class Reflecting(SolvableMixer):
    r"""Vectors u_i of length 1 and strengths c_i, i = 1 ... r: D = U^T M U has rank r.

    With Woodbury's identity the resolvent takes a system of r unknowns,

    .. math:: (I + \mathrm{diag}(c) (L - U\, \mathrm{diag}(s)\, U^\top)) w = \mathrm{diag}(c) U v,
        \qquad y = v + s \odot U^\top w

    where L is the part of U U^T below the diagonal for a product of reflections, or 0 for a sum.
    """

    is_product: ClassVar[bool]

    @property
    def strongest(self) -> float:
        """Bound of the strengths."""
        return 1.0 if self.contractive else 2.0

    def resolvent(self, coefficients: tuple[Tensor, ...], shares: Tensor, v: Tensor) -> Tensor:
        vectors, strengths = coefficients
        along = strengths.unsqueeze(-1) * (vectors @ v.unsqueeze(-1))
        weights = self._solved(vectors, strengths, shares, along)
        mixed: Tensor = (vectors.mT @ weights).squeeze(-1)
        return v + shares * mixed

    def scan(
        self, coefficients: tuple[Tensor, ...], decays: Tensor, inputs: Tensor, initial: Tensor
    ) -> Tensor:
        vectors, strengths = coefficients
        shares = 1 - decays
        read = strengths.unsqueeze(-1) * vectors
        read = self._solved(vectors, strengths, shares, read) * decays.unsqueeze(-2)
        written = shares.unsqueeze(-2) * vectors
        added = shares * inputs - (written.mT @ (read @ inputs.unsqueeze(-1))).squeeze(-1)
        transitions = torch.cat([decays.unsqueeze(-2), written, read], -2)
        states, _ = ops.low_rank_scan(
            transitions.unsqueeze(2), added.unsqueeze(2), initial.unsqueeze(1)
        )
        return states.squeeze(2)

    def _solved(self, vectors: Tensor, strengths: Tensor, shares: Tensor, y: Tensor) -> Tensor:
        """Return P^-1 y of the system above for y (..., r, columns)."""
        system = (vectors * shares.unsqueeze(-2)) @ vectors.mT
        if self.is_product:
            system = system - torch.tril(vectors @ vectors.mT, -1)
        eye = torch.eye(self.rank, dtype=y.dtype, device=y.device)
        system = eye - strengths.unsqueeze(-1) * system
        return y / system if self.rank == 1 else _solved(system, y)

    @property
    def resolvent_flops(self) -> int:
        rank, size = self.rank, self.size
        pairs = rank * (rank + 1) // 2
        below = 2 * size * (pairs - rank) if self.is_product else 0
        system = rank * size + 2 * size * pairs + below + 3 * rank**2
        # A system takes 2 r^3 / 3; U v, c, the sum of vectors, and y.
        solved = 2 * rank**3 // 3 + 2 * rank**2 + rank
        return self._flops + system + solved + 4 * size * rank + 2 * size

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


class Householder(Reflecting):
    r"""A product of generalised Householder reflections, H_r (Movahedi et al.).

    .. math:: Q = (I - c_r u_r u_r^\top) \cdots (I - c_1 u_1 u_1^\top)

    with unit vectors u_i and c_i in (0, 2). If the mixer is contractive, c_i is in (0, 1): each
    factor then shortens what it removes, so that the 2-norm of I - Q is at most sqrt(r).
    """

    is_product = True

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


class DPLR(Reflecting):
    r"""The identity minus a matrix of low rank, DPLR_r (Movahedi et al.).

    .. math:: Q = I - \sum_{i=1}^r c_i u_i u_i^\top

    with unit vectors u_i and c_i in (0, 2), or in (0, 1) if contractive.
    """

    is_product = False

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


class Monarch(SolvableMixer):
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

    def resolvent(self, coefficients: tuple[Tensor, ...], shares: Tensor, v: Tensor) -> Tensor:
        system = self._system(coefficients, shares)
        y = _solved(system, _split(v, self.num_blocks).unsqueeze(-1))
        return y.flatten(-3)

    def scan(
        self, coefficients: tuple[Tensor, ...], decays: Tensor, inputs: Tensor, initial: Tensor
    ) -> Tensor:
        parts = _split(inputs, self.num_blocks)
        kept = torch.diag_embed(_split(decays, self.num_blocks))
        transitions = _solved(self._system(coefficients, 1 - decays), kept)
        added = parts - (transitions @ parts.unsqueeze(-1)).squeeze(-1)
        states, _ = ops.block_scan(transitions, added, _split(initial, self.num_blocks))
        return states.flatten(-2)

    def _system(self, coefficients: tuple[Tensor, ...], shares: Tensor) -> Tensor:
        (blocks,) = coefficients
        eye = torch.eye(self.rank, dtype=blocks.dtype, device=blocks.device)
        return eye - _split(shares, self.num_blocks).unsqueeze(-1) * blocks

    @property
    def resolvent_flops(self) -> int:
        n = self.rank
        # The matrix of a system, and its factors, whose use costs as much as a product with K.
        return self.flops + self.num_blocks * (n**2 + 2 * n**3 // 3)


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


def _solved(system: Tensor, y: Tensor) -> Tensor:
    """Return the solution, which is infinite or NaN where a system is singular."""
    solution: Tensor = torch.linalg.solve_ex(system, y).result
    return solution


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
