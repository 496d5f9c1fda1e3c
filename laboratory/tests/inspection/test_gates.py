"""The entropy of gates at its ends, and against the definition."""

import math

import pytest
import torch

from statemix_lab.inspection.recurrences import entropy


def test_a_copy_has_none_and_an_average_all():
    rows = torch.tensor([[0, 0, 1.0], [1 / 3, 1 / 3, 1 / 3], [-0.2, 0.2, 0.2], [0, 0, 0]])
    torch.testing.assert_close(
        entropy(rows), torch.tensor([0, 1, 1, 0], dtype=torch.float64), rtol=0, atol=1e-7
    )


def test_it_is_the_definition_for_gates_of_any_sign_and_scale():
    gates = torch.tensor([[[0.3, -0.6, 0.1, 2.0]]])
    shares = [one / 3.0 for one in (0.3, 0.6, 0.1, 2.0)]
    expected = -sum(share * math.log(share) for share in shares) / math.log(4)
    found = entropy(gates)
    assert found.shape == (1, 1)
    assert found.item() == pytest.approx(expected, rel=1e-6)
