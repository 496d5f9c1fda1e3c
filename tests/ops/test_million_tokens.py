"""An exact tracker is right at every one of a million tokens, in every backend, bit for bit."""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from statemix import ops

POINTS = 5
# Raw gates this far apart become 0 and 1 in float32; those of inputs are the smallest.
FAR = 200.0
LENGTHS = {"cpu": 1_000_000, "triton": 1_000_000, "associative": 100_000}
# Gate family, channels and backend.
CASES = [
    *((gate, 1, name) for gate in ("softmax", "column_softmax") for name in ("cpu", "triton")),
    *(("softmax", 3, name) for name in ("cpu", "associative", "triton")),
    *(("softmax", 1, name) for name in ("loop", "reference")),
]


@pytest.mark.parametrize(("gate", "channels", "backend"), CASES)
def test_a_million_permutations_leave_every_state_exact(gate, channels, backend, device):
    # A loop of a million steps would take long.
    length = LENGTHS.get(backend, 20_000)
    draws = np.random.default_rng(0)
    permutations = np.stack([draws.permutation(POINTS) for _ in range(8)])
    # What each token copies to each point, and where all points then come from.
    sources = permutations[draws.integers(len(permutations), size=length)]
    held, now = np.empty_like(sources), np.arange(POINTS)
    for t, source in enumerate(sources):
        held[t] = now = now[source]
    gates = torch.full((length, POINTS, POINTS + 1), -FAR)
    gates[..., :POINTS] = FAR * one_hot(torch.from_numpy(sources), POINTS)
    # No two entries hold the same number, and no product of these numbers with 1 rounds.
    first = 1 + torch.arange(POINTS * channels).view(POINTS, channels) / 16
    shape = (POINTS, channels) if channels > 1 else (POINTS,)
    states, last = ops.bd_lru(
        gates[None, :, None].to(device),
        torch.zeros(1, length, 1, *shape, device=device),
        gate,
        first.view(1, 1, *shape).to(device),
        backend=backend,
    )
    expected = first[torch.from_numpy(held)].view(length, *shape)
    assert torch.equal(states[0, :, 0].cpu(), expected)
    assert torch.equal(last[0, 0].cpu(), expected[-1])
