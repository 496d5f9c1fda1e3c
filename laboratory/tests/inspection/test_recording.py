"""The inputs of a model's layers, and that looking changes nothing."""

import pytest
import torch
from torch import nn

from statemix.layers import BDLRU, LSTM
from statemix_lab.inspection.recurrences import record


def test_every_layer_is_found_with_its_input(model, tokens):
    found = record(model, tokens)
    assert [one.name for one in found] == [
        "backbone.blocks.0.mixer",
        "backbone.blocks.1.mixer",
        "backbone.blocks.2.mixer",
    ]
    assert [type(one.layer).name for one in found] == ["bd_lru", "lstm", "h_lru"]
    # The start token is one more position.
    assert all(one.x.shape == (2, 6, 8) for one in found)
    with torch.no_grad():
        longer = torch.cat([torch.full((2, 1), 6), tokens], dim=1)
        x = model.backbone.embedding(longer)
        for one, block in zip(found, model.backbone.blocks, strict=True):
            torch.testing.assert_close(one.x, block.norm(x))
            x, _ = block(x, None, None)
    assert found[1].recurrence() is None
    recurrence = found[0].recurrence()
    assert not recurrence.transitions.requires_grad
    expected = model.backbone.blocks[0].mixer.recurrence(found[0].x).transitions
    torch.testing.assert_close(recurrence.transitions, expected.detach(), rtol=0, atol=0)
    # Errors, too, leave no hooks.
    with pytest.raises(ValueError, match="tokens must be"):
        record(model, tokens + 100)
    assert all(not part._forward_pre_hooks for part in model.modules())


def test_layers_inside_layers_are_found_and_unused_ones_are_not(tokens):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(6, 4)
            self.unused = LSTM(4)
            self.inner = nn.ModuleList([BDLRU(4, num_blocks=2, block_size=2)])

        def forward(self, tokens):
            return self.inner[0](self.embedding(tokens))[0]

    assert [one.name for one in record(Outer(), tokens)] == ["inner.0"]
