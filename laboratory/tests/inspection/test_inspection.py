"""The plain numbers of a model's layers: against the tensors that they are about."""

import json

import pytest
import torch

from statemix_lab.inspection.layer_numbers import inspected
from statemix_lab.inspection.recurrences import eigenvalues, entropy, mixing, record

CLOSE = {"rel": 1e-4, "abs": 1e-9}


def flat(nested):
    return torch.tensor(nested, dtype=torch.float64).flatten().tolist()


def test_the_numbers_are_those_of_the_recurrences(model, tokens):
    first, lstm, third = inspected(model, tokens, units=range(4))
    assert (first["layer"], first["module"], first["kind"]) == (
        0,
        "backbone.blocks.0.mixer",
        "BD-LRU",
    )
    assert (first["unit"], first["units"], first["size"]) == ("block", 2, 3)
    assert (third["layer"], third["unit"], third["units"], third["size"]) == (2, "channel", 5, 2)
    assert first["prepended"] == 1
    assert first["steps"] == [0, 1, 2, 3, 4, 5]
    recurrence = record(model, tokens)[0].recurrence()
    found = eigenvalues(recurrence.transitions)
    expected = torch.view_as_real(found[:, 4]).flatten().tolist()
    assert flat(first["eigenvalues"][4]) == pytest.approx(expected, **CLOSE)
    # Units that a layer lacks are skipped.
    assert (first["shown"], third["shown"]) == ([0, 1], [0, 1, 2, 3])
    gates = recurrence.gates[1, 3, 0].flatten().tolist()
    assert flat(first["gates"][1][0][3]) == pytest.approx(gates, **CLOSE)
    rows = mixing(recurrence).double()
    expected = rows[1, 5, 2, 1].abs().sum(-1).max().item()
    assert first["mixing"][1][1][5][2] == pytest.approx(expected, **CLOSE)
    block = first["block_attention"]
    assert (len(block), len(block[0])) == (18, 18)
    # State after position 4, entry 1; input at position 2, entry 0; of the first block.
    assert block[4 * 3 + 1][2 * 3] == pytest.approx(rows[0, 4, 2, 0, 1, 0].item(), **CLOSE)
    summary = first["summary"]
    assert summary["largest"] == pytest.approx(found.abs().max().item(), **CLOSE)
    assert summary["mean"] == pytest.approx(found.abs().mean().item(), **CLOSE)
    assert summary["outside"] == 0
    assert summary["gate_entropy"] == pytest.approx(
        entropy(recurrence.gates).mean().item(), **CLOSE
    )
    assert third["summary"]["negative"] > 0
    # A layer without a recurrence has no numbers.
    assert (lstm["layer"], lstm["kind"], lstm["summary"]) == (1, "LSTM", None)
    assert lstm["mixing"] == lstm["eigenvalues"] == lstm["steps"] == []
    json.dumps([first, lstm, third], allow_nan=False)
    none = inspected(model, tokens, units=())[0]
    assert (none["shown"], none["mixing"], none["block_attention"]) == ([], [[], []], None)


def test_what_follows_the_end_of_a_sequence_does_not_count(model, tokens):
    padded = torch.cat([tokens, torch.zeros(2, 3, dtype=tokens.dtype)], dim=1)
    padded[1, 3:] = 5
    found = inspected(model, padded, [5, 3], units=(0, 1))
    other = padded.clone()
    other[0, 5:], other[1, 3:] = 1, 2
    assert inspected(model, other, [5, 3], units=(0, 1)) == found
    assert [len(row) for row in found[0]["mixing"][1]] == [4, 4]
    assert found[0]["steps"] == [0, 1, 2, 3, 4, 5]
    # At the last steps, only the first sequence has eigenvalues.
    counts = [len(points) for points in found[0]["eigenvalues"]]
    assert counts == [12, 12, 12, 12, 6, 6]
    assert inspected(model, padded[:1, :5])[0]["summary"] != found[0]["summary"]


def test_what_is_not_finite_is_none(model, tokens):
    with torch.no_grad():
        model.backbone.blocks[0].mixer.gate_proj.bias[0] = float("nan")
    first = inspected(model, tokens)[0]
    assert first["summary"]["largest"] is None
    assert None in first["gates"][0][0][0][0]
    # Eigenvalues of the other block alone.
    assert [len(points) for points in first["eigenvalues"]] == [6] * 6
    json.dumps(first, allow_nan=False)


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
