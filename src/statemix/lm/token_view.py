"""A language model as proofs and inspection read it."""

import copy
from typing import Any

import torch

from statemix.lm.hub_config import spec_of
from statemix.lm.hub_model import StatemixForCausalLM, StatemixForTokenClassification
from statemix.models import MixerSpec, TokenClassifier


@torch.no_grad()
def as_classifier(model: StatemixForCausalLM | StatemixForTokenClassification) -> TokenClassifier:
    """Return a copy of a model as a classifier of tokens, for proofs and inspection.

    Its head, "answer", has the logits of the model: of the next token, or of the labels.

    Example:
        >>> from statemix.lm import StatemixConfig, StatemixForCausalLM
        >>> config = StatemixConfig(vocab_size=6, hidden_size=8, num_hidden_layers=1)
        >>> model = StatemixForCausalLM(config).eval()
        >>> tokens = torch.tensor([[1, 2, 3]])
        >>> torch.equal(as_classifier(model)(tokens)["answer"], model(tokens).logits)
        True
    """
    copied: Any = copy.deepcopy(model)
    config, is_causal = model.config, isinstance(model, StatemixForCausalLM)
    head = copied.lm_head if is_causal else copied.score
    found = TokenClassifier(
        config.vocab_size,
        {"answer": head.out_features},
        config.hidden_size,
        [spec_of(table) for table in config.block_mixers],
        channel_mixer=MixerSpec("swiglu", intermediate_size=config.intermediate_size),
    ).to(head.weight)
    readout: Any = found.readouts["answer"]
    readout.weight.copy_(head.weight)
    if head.bias is not None:
        readout.bias.copy_(head.bias)
    found.backbone.embedding = copied.model.embed_tokens
    found.backbone.final_norm = copied.model.norm
    for block, own in zip(found.backbone.blocks, copied.model.layers, strict=True):
        is_plain = own.mixer.conv is None and own.mixer.output_gate is None
        block.norm, block.mixer = own.mixer_norm, own.mixer.layer if is_plain else own.mixer
        block.channel_norm, block.channel_mixer = own.mlp_norm, own.mlp
    return found.eval()
