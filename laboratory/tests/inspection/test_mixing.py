"""The block attention matrix: times the inputs it is the states, and it is the plain product."""

import itertools

import numpy as np
import pytest
import torch

from statemix.layers import BDLRU, HLRU
from statemix.layers.state import tensors
from statemix_lab.inspection.recurrences import applied, carried, mixing

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


@torch.no_grad()
def states(layer, x):
    """The states of the layer itself, one step after the other: (B, T, ...)."""
    state, found = layer.init_state(len(x)), []
    for x_t in x.unbind(1):
        _, state = layer.step(x_t, state)
        found.append(next(tensors(state))[1])
    return torch.stack(found, dim=1)


@torch.no_grad()
def test_applied_to_the_inputs_it_gives_the_states_of_the_layer(layer, x):
    found = layer.recurrence(x)
    total = applied(mixing(found), found.values) + carried(found)
    torch.testing.assert_close(total, states(layer, x).view_as(total), **TIGHT)


@torch.no_grad()
def test_an_entry_is_the_product_of_the_transitions_in_between(layer, x):
    found = layer.recurrence(x)
    matrices = mixing(found).numpy()
    A, B = found.transitions.numpy(), found.input_maps.numpy()
    for t, s in itertools.product(range(x.shape[1]), repeat=2):
        for unit in range(A.shape[2]):
            expected = B[1, s, unit]
            for step in range(s + 1, t + 1):
                expected = A[1, step, unit] @ expected
            if s > t:
                expected = np.zeros_like(expected)
            np.testing.assert_allclose(matrices[1, t, s, unit], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gate", ["softmax", "signed"])
@torch.no_grad()
def test_what_one_entry_receives_is_at_most_one_by_proposition_1(x, gate):
    for layer in (
        BDLRU(6, num_blocks=3, block_size=4, gate=gate),
        HLRU(6, num_channels=3, order=4, gate=gate),
    ):
        matrices = mixing(layer.recurrence(x.float()))
        received = matrices.abs().sum(dim=(2, -1))  # over the times of the inputs and their entries
        assert received.max() <= 1 + 1e-5
        assert received[:, -1].max() > 0.5
