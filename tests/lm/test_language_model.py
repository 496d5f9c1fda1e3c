"""The language model is what its formulas say: embedding, blocks, last norm, projection."""

import pytest
import torch
from tests.lm.conftest import build_model
from torch.nn.functional import silu
from transformers import AutoModelForSequenceClassification

from statemix.lm import StatemixConfig
from statemix.lm.hub_model import CACHE
from statemix.lm.language_scores import summed_loss

IDS = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(2))


def normed(x, norm, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * norm.weight


def convolved(x, conv):
    """Each channel alone: tap k of K sees the token K - 1 - k before."""
    weight, bias = conv.conv.weight[:, 0], conv.conv.bias
    size = weight.shape[-1]
    padded = torch.cat([x.new_zeros(len(x), size - 1, x.shape[-1]), x], dim=1)
    return bias + sum(weight[:, k] * padded[:, k : k + x.shape[1]] for k in range(size))


def hidden_states(model, ids):
    """The inputs of all blocks, and the output of the last norm."""
    eps, x = model.config.norm_eps, model.model.embed_tokens.weight[ids]
    found = []
    for block in model.model.layers:
        found.append(x)
        mixer, inputs = block.mixer, normed(x, block.mixer_norm, eps)
        values = inputs if mixer.conv is None else silu(convolved(inputs, mixer.conv))
        y = mixer.layer(values)[0]
        if mixer.output_gate is not None:
            y = y * silu(inputs @ mixer.output_gate.weight.T)
        x = x + y
        inputs, mlp = normed(x, block.mlp_norm, eps), block.mlp
        inner = silu(inputs @ mlp.gate_proj.weight.T) * (inputs @ mlp.up_proj.weight.T)
        x = x + inner @ mlp.down_proj.weight.T
    return [*found, normed(x, model.model.norm, eps)]


@torch.no_grad()
def test_the_logits_are_those_of_the_formulas(kind):
    model = build_model(kind, norm_eps=0.1).double()
    for block in model.model.layers:
        for norm in (block.mixer_norm, block.mlp_norm, model.model.norm):
            norm.weight.uniform_(0.5, 2)
    wanted = hidden_states(model, IDS)
    found = model(IDS, output_hidden_states=True, use_cache=False)
    assert len(found.hidden_states) == len(wanted)
    for one, other in zip(found.hidden_states, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    logits = wanted[-1] @ model.lm_head.weight.T
    torch.testing.assert_close(found.logits, logits, rtol=1e-6, atol=1e-7)
    assert found.get(CACHE) is None


def test_the_cache_is_returned_as_the_configuration_says():
    for use_cache in (True, False):
        output = build_model("bd_lru", use_cache=use_cache)(IDS)
        assert (output.get(CACHE) is not None) == use_cache


def test_first_weights_have_the_size_of_the_configuration():
    config = StatemixConfig(
        vocab_size=400, hidden_size=64, num_hidden_layers=1, pad_token_id=3, initializer_range=0.3
    )
    model = AutoModelForSequenceClassification.from_config(config).model
    weight = model.embed_tokens.weight.detach()
    assert not weight[3].any()
    assert weight[4:].std().item() == pytest.approx(0.3, rel=0.05)
    assert model.layers[0].mlp.up_proj.weight.std().item() == pytest.approx(0.3, rel=0.05)
    # Layers draw their own.
    assert model.layers[0].mixer.layer.value_proj.weight.std() < 0.2


def test_attention_has_heads_of_64_channels_and_rotary_positions_by_default():
    def attention(width):
        kinds = {"layer_types": ["full_attention"], "num_hidden_layers": 1}
        return StatemixConfig(vocab_size=9, hidden_size=width, **kinds).mixers["full_attention"]

    assert attention(256) == {"name": "attention", "num_heads": 4, "rope": True}
    assert [attention(width)["num_heads"] for width in (16, 160, 200, 320)] == [1, 2, 2, 5]


@torch.no_grad()
def test_losses_of_16_bit_models_are_summed_in_32_bits():
    """In bfloat16, a sum of 16 losses would have two or three digits."""
    model = build_model("bd_lru").bfloat16()
    logits = model(IDS).logits
    assert logits.dtype == torch.bfloat16
    exact = -logits[:, :-1].double().log_softmax(-1).gather(-1, IDS[:, 1:, None]).sum()
    for loss in (summed_loss(model, IDS), model(IDS, labels=IDS).loss * IDS[:, 1:].numel()):
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)
    assert summed_loss(model.double(), IDS).dtype == torch.float64


@pytest.mark.parametrize("kind", ["bd_lru"])
def test_a_model_compiles_with_a_mask(model):
    torch._dynamo.reset()
    ids = torch.arange(14).reshape(2, 7)
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, :3] = 0
    compiled, weights = torch.compile(model, backend="aot_eager", fullgraph=True), model.parameters
    found, expected = (one(ids, attention_mask=mask, labels=ids) for one in (compiled, model))
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(output.loss, [*weights()]) for output in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
