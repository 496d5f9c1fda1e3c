"""Finite groups of permutations: elements, products, and irreducible representations."""

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations, permutations
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from statemix.errors import OptionError

GroupName = Literal["S_2", "S_3", "S_4", "S_5", "A_5"]
NAMES: tuple[GroupName, ...] = get_args(GroupName)

# Words up to this length are multiplied one position at a time; longer ones in blocks.
_SEQUENTIAL_LENGTH = 64


@dataclass(frozen=True, eq=False)
class Group:
    """A permutation group whose elements are numbered from 0, the identity.

    The product applies the right factor first: (a * b)(i) = a(b(i)).

    Attributes:
        name: "S_n" (symmetric) or "A_n" (alternating).
        elements: the permutations in lexicographic order, each in one-line notation: ``p[i - 1]``
            is the image of i.
        table: ids of the products, ``table[a, b]`` = a * b, shape (order, order), int64, read-only.
    """

    name: str
    elements: tuple[tuple[int, ...], ...]
    table: NDArray[np.int64]

    @property
    def order(self) -> int:
        """Number of elements."""
        return len(self.elements)

    @property
    def degree(self) -> int:
        """Number of points that the elements permute."""
        return len(self.elements[0])

    @property
    def generators(self) -> tuple[int, ...]:
        """Ids of (1 2) and (1 2 ... n) for S_n, of (1 2 3) and (1 2 ... n) for A_n.

        Every element is a product of these if n is odd or the group is S_n. For S_2 both are one.
        """
        points = tuple(range(1, self.degree + 1))
        moved = 2 if self.name.startswith("S") else 3
        short = (*points[1:moved], 1, *points[moved:])
        long = (*points[1:], 1)
        return tuple(dict.fromkeys(self.elements.index(one) for one in (short, long)))

    def running_products(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        r"""Multiply every prefix of every word.

        .. math:: acc_0 = identity, \qquad acc_t = acc_{t-1} * x_t
        """
        num_words, length = words.shape
        if length <= _SEQUENTIAL_LENGTH:
            return self._multiply_in_order(words)
        # The product is associative: the blocks of a word are multiplied in parallel, and each is
        # then multiplied by the product of the blocks before it. Identities pad the last block.
        block_length = int(np.ceil(np.sqrt(length)))
        num_blocks = -(-length // block_length)
        padded = np.zeros((num_words, num_blocks * block_length), dtype=np.int64)
        padded[:, :length] = words
        blocks = padded.reshape(num_words * num_blocks, block_length)
        within = self._multiply_in_order(blocks).reshape(num_words, num_blocks, block_length)
        before = np.zeros((num_words, num_blocks), dtype=np.int64)
        before[:, 1:] = self._multiply_in_order(within[:, :-1, -1])
        within += self.order * before[:, :, None]
        return self.table.ravel()[within.reshape(padded.shape)[:, :length]]

    def _multiply_in_order(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        products = np.empty(words.shape[::-1], dtype=np.int64)  # time first: rows are contiguous
        table = self.table.ravel()
        product = np.zeros(len(words), dtype=np.int64)
        for t, column in enumerate(np.ascontiguousarray(words.T)):
            product = table[self.order * product + column]
            products[t] = product
        return np.ascontiguousarray(products.T)


@lru_cache
def group(name: str) -> Group:
    """Look up a group by its name in ``NAMES``."""
    if name not in NAMES:
        raise OptionError(f"group must be one of {', '.join(NAMES)}, got {name!r}")
    family, degree = name.split("_")
    elements = tuple(permutations(range(1, int(degree) + 1)))
    if family == "A":
        inversions = {p: sum(a > b for a, b in combinations(p, 2)) for p in elements}
        elements = tuple(element for element in elements if inversions[element] % 2 == 0)
    images = np.array(elements, dtype=np.int64) - 1
    products = images[:, images]  # (order, order, degree): products[a, b, i] = a(b(i))
    # Reading the images as digits gives numbers in the lexicographic order of the elements.
    digits = len(images[0]) ** np.arange(len(images[0]) - 1, -1, -1, dtype=np.int64)
    table = np.searchsorted(images @ digits, products @ digits).astype(np.int64)
    table.flags.writeable = False
    return Group(name, elements, table)


# Eigenvalues closer than this, relative to the largest, belong together.
_GAP = 1e-6
# Energy of rounding errors, relative to a table's.
_ROUNDING = 1e-24


class Component(NamedTuple):
    """An isotypic component of the functions on a group."""

    # The representation's dimension, such as "4"; a prime tells two of one dimension apart.
    name: str
    # Whether permutations of the points act by it, without their constant part.
    acts: bool
    # Projection of functions onto the component, shape (order, order).
    projector: NDArray[np.float64]


def shares(table: NDArray[np.float64], name: str) -> dict[str, float]:
    r"""Split the energy of a table by irreducible representation.

    .. math:: \sum_g |f(g) - \bar f|^2 = \sum_{\rho \ne 1} |P_\rho f|^2

    Source: the isotypic decomposition of the regular representation; see Serre (1977), "Linear
    Representations of Finite Groups", section 2.6.

    Returns:
        Name of each component but the constant one -> its share; all 0 if the rows are equal.
    """
    parts = components(name)
    order = len(parts[0].projector)
    if table.ndim != 2 or len(table) != order:
        raise ValueError(f"table must have shape ({order}, columns), got {table.shape}")
    energies = {part.name: float(((part.projector @ table) ** 2).sum()) for part in parts[1:]}
    total = sum(energies.values())
    # What rounding leaves of equal rows is no part of theirs.
    varies = total > _ROUNDING * float((table**2).sum())
    return {part: energy / total if varies else 0.0 for part, energy in energies.items()}


@cache
def components(name: str) -> tuple[Component, ...]:
    """Return the isotypic components of a group, the constant one first, by dimension.

    They are the common eigenspaces of the class sums, which a random combination of these tells
    apart. Every element must be conjugate to its inverse.
    """
    found = group(name)
    table, order = found.table, found.order
    inverses = np.argmax(table == 0, axis=1)
    # quotients[g, h] = g h^-1, so that a class sum maps a function by (f * 1_C)(g).
    quotients = table[:, inverses]
    rng = np.random.default_rng(0)
    mixed = np.zeros((order, order))
    for element in range(order):
        # Its conjugacy class, once.
        members = np.unique(table[table[:, element], inverses])
        if members[0] == element:
            mixed += rng.normal() * np.isin(quotients, members)
    values, vectors = np.linalg.eigh(mixed)
    ends = np.nonzero(np.diff(values) > _GAP * np.abs(values).max())[0] + 1
    spaces = np.split(vectors, ends, axis=1)
    points = np.array(found.elements)
    character = (points == np.arange(1, found.degree + 1)).sum(1) - 1.0
    parts = []
    for space in spaces:
        projector = space @ space.T
        inside = np.allclose(projector @ character, character)
        # Numbers that order components of one dimension in the same way everywhere.
        sorting = np.round(-projector[0], 6).tolist()
        # The constant component has dimension 1, and so may others.
        constant = np.allclose(projector, 1 / order)
        parts.append((not constant, space.shape[1], not inside, sorting, projector))
    named: dict[str, Component] = {}
    for _, size, outside, _, projector in sorted(parts, key=lambda part: part[:4]):
        # In the regular representation, each comes as often as its dimension.
        label = str(math.isqrt(size))
        while label in named:
            label += "'"
        named[label] = Component(label, not outside, projector)
    return tuple(named.values())
