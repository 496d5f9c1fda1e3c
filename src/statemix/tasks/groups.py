"""Finite groups of permutations: elements, multiplication tables, running products."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations
from typing import Literal, get_args

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

        Args:
            words: element ids x, shape (num_words, length), int64. They are not checked.

        Returns:
            acc_1 ... acc_length, shape (num_words, length), int64.

        Example:
            >>> group("S_3").running_products(np.array([[2, 1, 3, 1]])).tolist()
            [[2, 3, 4, 5]]
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
    """Look up a group by name.

    Args:
        name: one of ``NAMES``.

    Raises:
        OptionError: if there is no such group.

    Example:
        >>> group("S_3").elements
        ((1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1))
    """
    if name not in NAMES:
        raise OptionError(f"group must be one of {', '.join(NAMES)}, got {name!r}")
    family, degree = name.split("_")
    elements = tuple(permutations(range(1, int(degree) + 1)))
    if family == "A":
        elements = tuple(element for element in elements if _is_even(element))
    images = np.array(elements, dtype=np.int64) - 1
    products = images[:, images]  # (order, order, degree): products[a, b, i] = a(b(i))
    # Reading the images as digits gives numbers in the lexicographic order of the elements.
    digits = len(images[0]) ** np.arange(len(images[0]) - 1, -1, -1, dtype=np.int64)
    table = np.searchsorted(images @ digits, products @ digits).astype(np.int64)
    table.flags.writeable = False
    return Group(name, elements, table)


def _is_even(element: tuple[int, ...]) -> bool:
    return sum(a > b for a, b in combinations(element, 2)) % 2 == 0
