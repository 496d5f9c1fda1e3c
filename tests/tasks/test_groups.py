"""The laws of the groups, and the running products that the tasks are made of."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.tasks.groups import NAMES, group

ORDERS = {"S_2": 2, "S_3": 6, "S_4": 24, "S_5": 120, "A_5": 60}
# One position at a time, the boundary to blocks, full and ragged blocks.
LENGTHS = [0, 1, 2, 64, 65, 81, 82, 257]

each_group = pytest.mark.parametrize("name", NAMES)


def compose(left, right):
    """(left * right)(i) = left(right(i)) for permutations in one-line notation."""
    return tuple(left[right[i] - 1] for i in range(len(left)))


def draw_words(order, num_words, length, *, seed=0):
    return np.random.default_rng(seed).integers(order, size=(num_words, length))


@each_group
def test_elements_are_distinct_permutations_in_lexicographic_order(name):
    elements = group(name).elements
    assert len(elements) == group(name).order == ORDERS[name]
    assert all(first < second for first, second in pairwise(elements))
    assert all(sorted(element) == list(range(1, int(name[-1]) + 1)) for element in elements)


@each_group
def test_table_is_composition_of_permutations(name):
    """This also shows that the elements are closed under composition."""
    elements, table = group(name).elements, group(name).table
    assert table.shape == (len(elements), len(elements))
    assert table.dtype == np.int64
    for a, left in enumerate(elements):
        for b, right in enumerate(elements):
            assert elements[table[a, b]] == compose(left, right)


@given(
    name=st.sampled_from(NAMES),
    num_words=st.integers(0, 3),
    length=st.sampled_from(LENGTHS),
    seed=st.integers(0, 2**32 - 1),
)
def test_running_products_compose_the_permutations_of_the_word(name, num_words, length, seed):
    elements = group(name).elements
    words = draw_words(len(elements), num_words, length, seed=seed)
    products = group(name).running_products(words)
    assert products.shape == words.shape
    assert products.dtype == np.int64
    for word, row in zip(words, products, strict=True):
        product = elements[0]
        for token, target in zip(word, row, strict=True):
            product = compose(product, elements[token])
            assert elements[target] == product


def test_shared_tables_cannot_be_overwritten():
    with pytest.raises(ValueError, match="read-only"):
        group("S_3").table[0, 0] = 1
