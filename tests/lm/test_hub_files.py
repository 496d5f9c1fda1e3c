"""Saving, loading and changing the model as transformers does."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.lm.conftest import build_model
from transformers import AutoModel, AutoModelForCausalLM

from statemix.errors import OptionError
from statemix.layers import LAYERS, LSTM
from statemix.lm import StatemixConfig, StatemixForCausalLM, StatemixModel

IDS = torch.randint(1, 50, (2, 7), generator=torch.Generator().manual_seed(1))


def poisoned(model):
    """Every parameter has values that no initialisation draws."""
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) % 7 + place / 8)
    return model


@pytest.mark.parametrize(
    ("size", "dtype"),
    [("5GB", torch.float32), ("4KB", torch.bfloat16)], ids=["float32", "bfloat16"],
)  # fmt: skip
def test_loading_draws_nothing(kind, tmp_path, size, dtype):
    model = poisoned(build_model(kind)).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size=size)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    assert loaded.dtype == dtype
    for (name, wanted), found in zip(model.named_parameters(), loaded.parameters(), strict=True):
        assert found.dtype == dtype, name
        assert torch.equal(wanted, found), name
    keys = [key for file in tmp_path.glob("*.safetensors") for key in safe_open(file, "pt").keys()]  # noqa: SIM118
    assert "lm_head.weight" not in keys
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_a_missing_weight_is_drawn_and_the_others_of_its_layer_stay(tmp_path):
    mixer = {"name": "bd_lru", "num_blocks": 4, "block_size": 4, "initial_state": "learned"}
    config = StatemixConfig(50, 16, 2, mixers=mixer | {"input_gate_bias": -3.0})
    model = poisoned(StatemixForCausalLM(config))
    model.model.layers[0].mixer.layer.gate_temperature = 0.5
    model.save_pretrained(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    weights = load_file(path)
    missing = "model.layers.0.mixer.layer.learned_state"
    del weights[missing]
    save_file(weights, path, {"format": "pt"})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert not loaded[missing].any()
    for name, wanted in weights.items():
        assert torch.equal(loaded[name], wanted), name


def test_recomputed_blocks_have_the_same_gradients(kind):
    model = build_model(kind).train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            # transformers 5.24 has another name for it.
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)()
        model.zero_grad()
        model(IDS, labels=IDS, use_cache=True).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_logits_of_some_positions_are_those_of_all():
    model = build_model("bd_lru")
    whole = model(IDS).logits
    assert torch.equal(model(IDS, logits_to_keep=2).logits, whole[:, -2:])
    assert torch.equal(model(IDS, logits_to_keep=torch.tensor([1, 4])).logits, whole[:, [1, 4]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixers": {"linear": {"name": "lstm"}}}, r"must be of kinds in layer_types, got"),
        ({"mixers": {"name": "bdlru"}}, "must have the name of a layer"),
        ({"layer_types": ["mine"] * 2}, r"must be among .*full_attention.*, got \['mine', 'mine'"),
        ({"layer_types": ["sliding_attention"] * 2}, "must have the name of a layer .* got None"),
        ({"mixers": [{"name": "lstm"}]}, "mixers must have num_hidden_layers=2 entries, got 1"),
        ({"mixers": [{"name": "lstm"}, {"name": "lstm", "x": 1}]}, "got 'x'"),
        ({"mixers": "lstm"}, "mixers must map kinds to layers, or list layers, got 'lstm'"),
    ],
)
def test_a_configuration_that_fits_no_layer_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        StatemixConfig(num_hidden_layers=2, **options)


def test_overrides_of_a_stored_configuration_count(tmp_path):
    build_model("hybrid").save_pretrained(tmp_path / "two")
    one = StatemixForCausalLM.from_pretrained(tmp_path / "two", num_hidden_layers=1)
    assert len(one.model.layers) == 1
    one.save_pretrained(tmp_path / "one")
    again = StatemixForCausalLM.from_pretrained(tmp_path / "one")
    assert torch.equal(again(IDS).logits, one(IDS).logits)
    for number in (3, 1.0):
        with pytest.raises(OptionError, match=r"must be an integer in 0\.\.2, got (3|1\.0)$"):
            StatemixForCausalLM.from_pretrained(tmp_path / "two", num_hidden_layers=number)
    config = build_model("bd_lru").config
    config.mixers = {"name": "lstm"}
    assert type(StatemixForCausalLM(config).model.layers[0].mixer.layer) is LSTM
    config.mixers = [{"name": "lstm"}]
    with pytest.raises(OptionError, match="must have an entry for each of 2 blocks, got 1"):
        StatemixForCausalLM(config)


@torch.no_grad()
def test_each_block_may_have_a_layer_of_its_own(tmp_path):
    tables = [
        {"name": "delta_net", "num_heads": 2},
        {"name": "lstm"},
        {"name": "attention", "num_heads": 4},
        {"name": "bd_lru", "num_blocks": 4, "block_size": 4},
    ]
    model = build_model("bd_lru", mixers=tables, num_hidden_layers=4, conv_size=3)
    layers = [block.mixer.layer for block in model.model.layers]
    assert [type(layer) for layer in layers] == [LAYERS[table["name"]] for table in tables]
    assert [block.mixer.conv is None for block in model.model.layers] == [False, False, True, False]
    kinds = [kind.partition("_")[0] for kind in model.config.layer_types]
    assert (kinds, model.config.num_attention_heads) == (["linear", "linear", "full", "linear"], 4)
    model.save_pretrained(tmp_path / "four")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "four")
    assert again.config.to_dict() | {"_name_or_path": ""} == model.config.to_dict()
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert type(AutoModel.from_pretrained(tmp_path / "four")) is StatemixModel
    cut = StatemixForCausalLM.from_pretrained(tmp_path / "four", num_hidden_layers=2)
    assert cut.config.mixers == tables[:2]
