"""An exact tracker is right at every one of a million tokens, in every backend, bit for bit."""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from statemix import ops

LENGTH, POINTS = 1_000_000, 5
# Raw gates this far apart become 0 and 1 in float32; those of inputs are the smallest.
FAR = 200.0
CASES = [
    ("softmax", "cpu"),
    ("softmax", "associative"),
    ("softmax", "triton"),
    # A Python loop of a million steps takes ten seconds: one gate family is enough.
    ("softmax", "loop"),
    ("softmax", "reference"),
    ("column_softmax", "cpu"),
    ("column_softmax", "associative"),
]


def test_the_cases_name_every_backend():
    assert {backend for _, backend in CASES} == set(ops.BACKENDS)


@pytest.fixture(scope="module")
def word():
    """A word of permutations: what each token copies to each point, and where all points end."""
    draws = np.random.default_rng(0)
    permutations = np.stack([draws.permutation(POINTS) for _ in range(8)])
    sources = permutations[draws.integers(len(permutations), size=LENGTH)]
    held = np.empty_like(sources)
    now = np.arange(POINTS)
    for t, source in enumerate(sources):
        held[t] = now = now[source]
    return torch.from_numpy(sources), torch.from_numpy(held)


@pytest.mark.parametrize(("gate", "backend"), CASES)
def test_a_million_permutations_leave_every_state_exact(word, gate, backend, device):
    sources, held = word
    gates = torch.full((LENGTH, POINTS, POINTS + 1), -FAR)
    gates[..., :POINTS] = FAR * one_hot(sources, POINTS)
    # No two points hold the same number, and no product of these numbers with 1 rounds.
    first = 1 + torch.arange(POINTS) / 7
    states, last = ops.bd_lru(
        gates[None, :, None].to(device),
        torch.zeros(1, LENGTH, 1, POINTS, device=device),
        gate,
        first[None, None].to(device),
        backend=backend,
    )
    assert torch.equal(states[0, :, 0].cpu(), first[held])
    assert torch.equal(last[0, 0].cpu(), first[held[-1]])
