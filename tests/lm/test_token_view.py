"""Proofs and inspection read language models."""

import pytest
import torch
from tests.lm.conftest import build_model

from statemix.lm import StatemixForTokenClassification, as_classifier
from statemix.proofs import prove
from statemix.tasks.permutation import Permutation

S_3 = Permutation(group="S_3")
# Raw gates so far apart that only the largest counts.
SHARP = 8.0


def tracker(kind=None, **options):
    """A language model whose only layer rearranges three entries as the tokens do."""
    mixer = {"name": "bd_lru", "num_blocks": 1, "block_size": 3, "initial_state": "learned"}
    sizes = {"vocab_size": 6, "num_hidden_layers": 1, "hidden_size": 16}
    model = build_model("bd_lru", mixers=mixer, **sizes, **options)
    model = model if kind is None else kind(model.config).eval()
    (block,) = model.model.layers
    layer = block.mixer.layer
    gates = torch.full((6, 3, 4), -SHARP)
    for token, element in enumerate(S_3.group.elements):
        for entry, point in enumerate(element):
            gates[token, entry, point - 1] = SHARP
    with torch.no_grad():
        seen = block.mixer_norm(model.model.embed_tokens.weight)
        layer.gate_proj.weight.copy_(torch.linalg.lstsq(seen, gates.flatten(1)).solution.T)
        layer.gate_proj.bias.zero_()
        layer.learned_state.copy_(torch.tensor([[-1.0, 0.0, 1.0]]))
    return model


@pytest.mark.parametrize(
    ("kind", "options"),
    [(None, {"norm_eps": 1e-3}), (StatemixForTokenClassification, {"num_labels": 6})],
)
def test_a_tracker_inside_a_language_model_is_proven(kind, options):
    model = tracker(kind, **options)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = prove(as_classifier(model), S_3.automaton())
    assert (found.verdict, found.tracking) == ("proven", (0,))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@torch.no_grad()
def test_a_classifier_of_tokens_has_the_logits_of_its_model(model):
    ids = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(2))
    view = as_classifier(model)
    wanted = model(ids).logits
    torch.testing.assert_close(view(ids)["answer"], wanted)
    first, state = view.extend(ids[:, :4])
    second, _ = view.extend(ids[:, 4:], state)
    found = torch.cat([first["answer"], second["answer"]], 1)
    torch.testing.assert_close(found, wanted)
