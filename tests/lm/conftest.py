"""Small language models of every kind of block."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from statemix.lm import StatemixConfig, StatemixForCausalLM  # noqa: E402

KINDS = {
    "bd_lru": {},
    "h_lru-conv-gate": {
        "mixers": {"name": "h_lru", "num_channels": 16, "order": 3},
        "conv_size": 4,
        "output_gate": True,
    },
    "hybrid": {
        "layer_types": ["linear_attention", "full_attention"],
        "mixers": {"full_attention": {"name": "attention", "num_heads": 2, "rope": True}},
    },
    "delta_net": {"mixers": {"name": "delta_net", "num_heads": 2}},
}


def build_model(kind, **options):
    """A model of two blocks with random weights, float32, in evaluation mode."""
    torch.manual_seed(0)
    settings = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, **KINDS[kind]}
    model = StatemixForCausalLM(StatemixConfig(**settings, intermediate_size=32, **options))
    with torch.no_grad():
        # With the first weights, earlier tokens hardly change the logits, and greedy text repeats a
        # single token.
        model.model.embed_tokens.weight.normal_(std=0.3)
        for block in model.model.layers:
            for parameter in block.mixer.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(3 if kind == "delta_net" else 6)
    return model.eval()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def model(kind):
    return build_model(kind)
