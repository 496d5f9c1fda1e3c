"""An exact tracker is right at every one of a million tokens, in every backend, bit for bit."""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from statemix import ops

LENGTH, POINTS = 1_000_000, 5
GATES = ("softmax", "column_softmax")
# Raw gates this far apart become 0 and 1 in float32; those of inputs are the smallest.
FAR = 200.0
# Gate family, channels and backend.
CASES = [
    *((gate, 1, name) for gate in GATES for name in ("cpu", "associative", "triton")),
    *(("softmax", 3, name) for name in ("cpu", "associative", "triton")),
    # A Python loop of a million steps takes ten seconds: one case is enough.
    ("softmax", 1, "loop"),
    ("softmax", 1, "reference"),
]


def test_the_cases_name_every_backend():
    assert {backend for _, _, backend in CASES} == set(ops.BACKENDS)


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


@pytest.mark.parametrize(("gate", "channels", "backend"), CASES)
def test_a_million_permutations_leave_every_state_exact(word, gate, channels, backend, device):
    sources, held = word
    gates = torch.full((LENGTH, POINTS, POINTS + 1), -FAR)
    gates[..., :POINTS] = FAR * one_hot(sources, POINTS)
    # No two entries hold the same number, and no product of these numbers with 1 rounds.
    first = 1 + torch.arange(POINTS * channels).view(POINTS, channels) / 16
    shape = (POINTS, channels) if channels > 1 else (POINTS,)
    states, last = ops.bd_lru(
        gates[None, :, None].to(device),
        torch.zeros(1, LENGTH, 1, *shape, device=device),
        gate,
        first.view(1, 1, *shape).to(device),
        backend=backend,
    )
    assert torch.equal(states[0, :, 0].cpu(), first[held].view(LENGTH, *shape))
    assert torch.equal(last[0, 0].cpu(), first[held[-1]].view(shape))
