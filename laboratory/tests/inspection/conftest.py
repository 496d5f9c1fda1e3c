"""Recurrences of small layers in float64, and a model of several layers."""

import pytest
import torch

from statemix.layers import LayerSpec, build
from statemix.models import TokenClassifier

SPECS = {
    "bd_lru": {"num_blocks": 3, "block_size": 4},
    "bd_lru-none": {"num_blocks": 3, "block_size": 2, "gate": "none", "initial_state": "learned"},
    "h_lru": {"num_channels": 4, "order": 3},
    "h_lru-observer": {"num_channels": 4, "order": 3, "realization": "observer"},
    "diagonal": {"num_blocks": 5, "block_size": 1},
    "delta_product": {"num_heads": 2, "num_householder": 3, "use_forget_gate": True},
    "mamba2": {"d_state": 3, "head_dim": 4},
}


@pytest.fixture(params=SPECS)
def layer(request):
    """A layer that runs a linear recurrence; its learned state, if any, is not zero."""
    name = request.param.split("-")[0]
    name = "bd_lru" if name == "diagonal" else name
    made = build(name, hidden_size=6, dtype=torch.float64, **SPECS[request.param])
    made.reset_parameters(torch.Generator().manual_seed(1))
    if getattr(made, "learned_state", None) is not None:
        torch.nn.init.uniform_(made.learned_state, -1, 1, generator=torch.Generator())
    return made


@pytest.fixture
def x():
    return torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.fixture
def model():
    """A BD-LRU, an LSTM and an H-LRU, after a start token."""
    layers = [
        LayerSpec("bd_lru", num_blocks=2, block_size=3),
        LayerSpec("lstm"),
        LayerSpec("h_lru", num_channels=5, order=2),
    ]
    return TokenClassifier(6, {"product": 6}, 8, layers, bos=True)


@pytest.fixture
def tokens():
    return torch.randint(6, (2, 5), generator=torch.Generator().manual_seed(3))
