"""How much of a function on a group belongs to each of its irreducible representations."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from statemix.tasks.groups import group

# Eigenvalues closer than this, relative to the largest, belong together.
_GAP = 1e-6
# Energy of rounding errors, relative to a table's.
_ROUNDING = 1e-24


class Component(NamedTuple):
    """An isotypic component of the functions on a group.

    Attributes:
        name: the representation's dimension, such as "4"; a prime tells two of one dimension apart.
        acts: whether it is that of the permutation representation without its constant part: the
            one that permutations of the points act by.
        projector: projection of functions onto the component, shape (order, order), float64.
    """

    name: str
    acts: bool
    projector: NDArray[np.float64]


def shares(table: NDArray[np.float64], name: str) -> dict[str, float]:
    r"""Split the energy of a table by irreducible representation.

    .. math:: \sum_g |f(g) - \bar f|^2 = \sum_{\rho \ne 1} |P_\rho f|^2

    Source: the isotypic decomposition of the regular representation; see Serre (1977), "Linear
    Representations of Finite Groups", section 2.6.

    Args:
        table: a row per element of the group, shape (order, columns).
        name: name of the group.

    Returns:
        Name of each component but the constant one -> its share; all 0 if the rows are equal.

    Raises:
        ValueError: if there is not a row per element.
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
    apart.

    Args:
        name: name of the group.
    """
    found = group(name)
    table, order = found.table, found.order
    inverses = np.argmax(table == 0, axis=1)
    # quotients[g, h] = g h^-1, so that a class sum maps a function by (f * 1_C)(g).
    quotients = table[:, inverses]
    rng = np.random.default_rng(0)
    mixed = np.zeros((order, order))
    for members in _classes(table, inverses):
        mixed += rng.normal() * np.isin(quotients, list(members))
    values, vectors = np.linalg.eigh(mixed)
    ends = np.nonzero(np.diff(values) > _GAP * np.abs(values).max())[0] + 1
    spaces = np.split(vectors, ends, axis=1)
    points = np.array(found.elements)
    character = (points == np.arange(1, found.degree + 1)).sum(1) - 1.0
    parts = []
    for space in spaces:
        projector = space @ space.T
        inside = np.allclose(projector @ character, character)
        parts.append((space.shape[1], not inside, _sorting(projector), projector, inside))
    # The constant component has dimension 1, and so may others.
    parts.sort(key=lambda part: (not np.allclose(part[3], 1 / order), *part[:3]))
    names = _named([size for size, *_ in parts])
    return tuple(
        Component(label, inside, projector)
        for label, (_, _, _, projector, inside) in zip(names, parts, strict=True)
    )


def _classes(table: NDArray[np.int64], inverses: NDArray[np.int64]) -> list[frozenset[int]]:
    """Return the conjugacy classes; here, every element is conjugate to its inverse."""
    left = set(range(len(table)))
    found = []
    while left:
        element = min(left)
        members = {int(table[table[h, element], inverses[h]]) for h in range(len(table))}
        found.append(frozenset(members))
        left -= members
    return found


def _sorting(projector: NDArray[np.float64]) -> tuple[float, ...]:
    """Return numbers that order components of one dimension in the same way everywhere."""
    return tuple(np.round(-projector[0], 6).tolist())


def _named(sizes: list[int]) -> list[str]:
    names: list[str] = []
    for size in sizes:
        # In the regular representation, each comes as often as its dimension.
        label = str(math.isqrt(size))
        while label in names:
            label += "'"
        names.append(label)
    return names
