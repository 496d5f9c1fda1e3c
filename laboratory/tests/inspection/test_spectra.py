"""Eigenvalues against NumPy's roots of polynomials, summaries, and the entropy of gates."""

import math

import numpy as np
import pytest
import torch

from statemix.layers import HLRU
from statemix_lab.inspection.recurrences import eigenvalues, entropy, spectrum


def multiset(values):
    """Complex numbers in an order of their own, for comparison up to rounding."""
    return sorted(np.asarray(values), key=lambda one: (round(one.real, 6), round(one.imag, 6)))


@torch.no_grad()
@pytest.mark.parametrize(("realization", "gate"), [("controller", "softmax"), ("observer", "none")])
def test_those_of_h_lru_are_the_roots_of_its_characteristic_polynomial(x, realization, gate):
    layer = HLRU(
        6, num_channels=4, order=3, realization=realization, gate=gate, dtype=torch.float64
    )
    recurrence = layer.recurrence(x)
    found = eigenvalues(recurrence.transitions)
    assert found.shape == (2, 7, 4, 3)
    for place in np.ndindex(2, 7, 4):
        a = recurrence.gates[(*place, 0)][:-1].numpy()
        # lambda^m - a_1 lambda^(m-1) - ... - a_m = 0: footnote 2 of the paper.
        expected = np.roots(np.concatenate([[1.0], -a]))
        np.testing.assert_allclose(multiset(found[place]), multiset(expected), atol=1e-9)


def test_those_of_a_permutation_are_roots_of_unity_and_the_largest_come_first():
    cycle = torch.eye(4).roll(1, 0)
    found = eigenvalues(torch.stack([cycle, torch.diag(torch.tensor([0.5, -2.0, 0.0, 1.0]))]))
    assert found.dtype == torch.complex128
    expected = [1j**power for power in range(4)]
    np.testing.assert_allclose(multiset(found[0]), multiset(expected), atol=1e-12)
    assert found[1].tolist() == [-2, 1, 0.5, 0]


def test_a_summary_counts_every_eigenvalue_once():
    found = torch.tensor([0.5, -0.5, 2j, -2j, 0.0, 1.0, 1e-9j, -1e-9], dtype=torch.complex128)
    expected = [2.0, 6 / 8, 1 / 8, 2 / 8, 2 / 8]
    assert list(spectrum(found.view(2, 4)).values()) == pytest.approx(expected)


def test_the_entropy_of_a_copy_is_none_and_that_of_an_average_all():
    gates = [[0, 0, 1.0], [1 / 3, 1 / 3, 1 / 3], [-0.2, 0.2, 0.2], [0, 0, 0], [0.3, -0.6, 2.1]]
    shares = [0.1, 0.2, 0.7]
    between = -sum(share * math.log(share) for share in shares) / math.log(3)
    expected = torch.tensor([0, 1, 1, 0, between], dtype=torch.float64)
    torch.testing.assert_close(entropy(torch.tensor(gates)), expected, rtol=0, atol=1e-6)
