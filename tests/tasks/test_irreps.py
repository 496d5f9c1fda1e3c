"""Isotypic components of groups, against their characters and the laws of representations."""

import itertools

import numpy as np
import pytest

from statemix.tasks.groups import NAMES, components, group, shares

# Dimensions of the irreducible representations, from the literature (for instance Serre, chapter 5;
# Fulton and Harris, "Representation Theory", section 3.1).
DIMENSIONS = {
    "S_2": [1, 1],
    "S_3": [1, 1, 2],
    "S_4": [1, 1, 2, 3, 3],
    "A_5": [1, 3, 3, 4, 5],
    "S_5": [1, 1, 4, 4, 5, 5, 6],
}
# The representation that permutations of the points act by, without its constant part.
ACTION = {"S_2": "1'", "S_3": "2", "S_4": "3", "A_5": "4", "S_5": "4"}


@pytest.mark.parametrize("name", NAMES)
def test_components_are_those_of_the_literature(name):
    found = components(name)
    dimensions = DIMENSIONS[name]
    assert [int(part.name.rstrip("'")) for part in found] == dimensions
    assert len({part.name for part in found}) == len(found)
    assert [part.name for part in found if part.acts] == [ACTION[name]]
    sizes = [round(np.trace(part.projector)) for part in found]
    assert sizes == [dimension**2 for dimension in dimensions]
    assert np.allclose(found[0].projector, 1 / group(name).order)
    assert np.allclose(sum(part.projector for part in found), np.eye(group(name).order))
    for one, other in itertools.combinations(found, 2):
        assert np.allclose(one.projector @ other.projector, 0, atol=1e-9)


def test_shares_of_noise_are_as_large_as_the_components():
    table = np.random.default_rng(1).normal(size=(60, 4000))
    expected = {"3": 9 / 59, "3'": 9 / 59, "4": 16 / 59, "5": 25 / 59}
    found = shares(table, "A_5")
    assert found == pytest.approx(expected, abs=0.01)
    assert sum(found.values()) == pytest.approx(1)
    assert shares(table + 7.0, "A_5") == pytest.approx(found)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_equal_rows_have_no_shares_and_others_do_whatever_their_scale(scale):
    assert set(shares(np.full((6, 2), scale / 3), "S_3").values()) == {0.0}
    # Even permutations are the first, fourth and fifth.
    signs = np.array([[1, -1, -1, 1, 1, -1]]).T
    assert shares(scale * signs, "S_3") == pytest.approx({"1'": 1.0, "2": 0.0})
