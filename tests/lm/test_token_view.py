"""Proofs and inspection read language models."""

import pytest
import torch
from tests.lm.conftest import build_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from statemix import BDLRU
from statemix.lm import StatemixForTokenClassification, as_classifier
from statemix.proofs import prove, search
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
    track(block.mixer.layer, block.mixer_norm(model.model.embed_tokens.weight))
    return model


@torch.no_grad()
def track(layer, seen):
    """Let a block rearrange its three entries as the tokens do, whose inputs are ``seen``."""
    gates = torch.full((6, 3, 4), -SHARP)
    for token, element in enumerate(S_3.group.elements):
        for entry, point in enumerate(element):
            gates[token, entry, point - 1] = SHARP
    layer.gate_proj.weight.copy_(torch.linalg.lstsq(seen, gates.flatten(1)).solution.T)
    layer.gate_proj.bias.zero_()
    layer.learned_state.copy_(torch.tensor([[-1.0, 0.0, 1.0]]))


class Mixer(nn.Module):
    """A tracker in place of the attention of a Llama."""

    def __init__(self, width):
        super().__init__()
        self.layer = BDLRU.tracker(width, num_blocks=1, block_size=3)

    def forward(self, hidden_states, **_):
        return self.layer(hidden_states)[0], None


def llama():
    """A Llama of two blocks, the first with a tracker and the second with attention."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=6, num_attention_heads=2, **sizes)).eval()
    first = model.model.layers[0]
    first.self_attn = Mixer(16)
    nn.init.normal_(model.model.embed_tokens.weight)
    track(first.self_attn.layer, first.input_layernorm(model.model.embed_tokens.weight))
    return model


def refuted_if_flipped(network, readout):
    """Change the sign of the largest weight of a proven network's readout."""
    with torch.no_grad():
        weight = readout.weight.view(-1)
        weight[weight.abs().argmax()] *= -1
    wrong = search(network, S_3.automaton())
    given = int(network(torch.tensor([wrong.word])).logits[0, -1].argmax())
    return wrong.verdict == "refuted" and given != S_3.automaton().answers(wrong.word)[-1]


def test_trackers_inside_a_llama_are_proven_and_attention_is_refused():
    model = llama()
    message = r"got model.layers.1.self_attn \(LlamaAttention\)$"
    with pytest.raises(TypeError, match=message):
        prove(model, S_3.automaton())
    model.model.layers[1].self_attn = Mixer(16)
    found = prove(model, S_3.automaton())
    assert (found.verdict, found.num_blocks, found.result.pairs) == ("proven", 2, 6)
    assert 0 in found.tracking
    assert refuted_if_flipped(found.model, found.model.lm_head)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(None, {"norm_eps": 1e-3}), (StatemixForTokenClassification, {"num_labels": 6})],
)
def test_a_tracker_inside_a_language_model_is_proven(kind, options):
    model = tracker(kind, **options)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for view in (as_classifier(model), model):
        found = prove(view, S_3.automaton())
        assert (found.verdict, found.tracking) == ("proven", (0,))
    readout = found.model.lm_head if kind is None else found.model.score
    assert refuted_if_flipped(found.model, readout)
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
