"""The inputs of a model's layers, and that looking changes nothing."""

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


def test_a_recurrence_is_that_of_the_layer_and_detached(model, tokens):
    first, lstm, _ = record(model, tokens)
    assert lstm.recurrence() is None
    recurrence = first.recurrence()
    assert recurrence.unit == "block"
    assert not recurrence.transitions.requires_grad
    expected = model.backbone.blocks[0].mixer.recurrence(first.x).transitions
    torch.testing.assert_close(recurrence.transitions, expected.detach(), rtol=0, atol=0)


def test_the_model_is_left_without_hooks_even_after_an_error(model, tokens):
    record(model, tokens)
    try:
        record(model, tokens + 100)
    except ValueError:
        failed = True
    assert failed
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
