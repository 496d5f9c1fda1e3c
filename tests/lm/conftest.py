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
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    model = StatemixForCausalLM(StatemixConfig(**{**sizes, **KINDS[kind], **options}))
    with torch.no_grad():
        # With the first weights of an embedding, all tokens look alike.
        model.model.embed_tokens.weight.normal_()
    return model.eval()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def model(kind):
    return build_model(kind)
