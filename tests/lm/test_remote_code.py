"""A stored model loads where Statemix is not installed, with the same logits and tokens."""

import ast
import io
import json
import subprocess
import sys

import pytest
import torch
from tests.lm.conftest import build_model

from statemix.cli.main import main
from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.lm import portable_layers
from statemix.lm.remote_code import export_remote_code, self_contained_source
from statemix.lm.text_tokenizers import bytes_tokenizer

IDS = torch.randint(1, 50, (2, 7), generator=torch.Generator().manual_seed(1))
LOADER = """
import sys
sys.modules["statemix"] = None
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
options = {"trust_remote_code": True}
assert AutoConfig.from_pretrained(sys.argv[1], **options).model_type == "statemix"
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], **options)
ids, mask, logits, tokens = torch.load(sys.argv[2])
found = model(ids, attention_mask=mask).logits
hidden = AutoModel.from_pretrained(sys.argv[1], **options)(ids, attention_mask=mask)[0]
assert torch.equal(model.lm_head(hidden), found)
torch.testing.assert_close(found[mask.bool()], logits[mask.bool()], rtol=1e-4, atol=1e-5)
assert type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
for head in (AutoModelForSequenceClassification, AutoModelForTokenClassification):
    classifier = head.from_pretrained(sys.argv[1], **options).eval()
    assert torch.equal(classifier.model(ids, attention_mask=mask)[0], hidden)
options = dict(max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
assert torch.equal(model.generate(ids, attention_mask=mask, **options), tokens)
assert torch.equal(model.generate(ids[:1], prompt_lookup_num_tokens=2, **options), tokens[:1])
print("equal")
"""


@pytest.mark.parametrize("kind", ["bd_lru", "h_lru-conv-gate", "hybrid"])
@torch.no_grad()
def test_the_model_travels_alone(kind, tmp_path):
    model = build_model(kind)
    model.save_pretrained(tmp_path / "model")
    export_remote_code(tmp_path / "model")
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, :2] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    tokens = model.generate(IDS, attention_mask=mask, **options)
    torch.save((IDS, mask, model(IDS, attention_mask=mask).logits, tokens), tmp_path / "t.pt")
    command = [sys.executable, "-c", LOADER, str(tmp_path / "model"), str(tmp_path / "t.pt")]
    environment = {"HF_HOME": str(tmp_path), "PATH": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.parametrize(
    ("mixers", "reason"),
    [
        ({"name": "bd_lru", "num_blocks": 4, "block_size": 4, "gate": "householder"}, "gate"),
        ({"name": "bd_lru", "num_blocks": 4, "block_size": 4, "selective": False}, "selective"),
        ({"name": "h_lru", "num_channels": 8, "order": 2, "realization": "observer"}, "observer"),
    ],
)
def test_options_that_cannot_travel_are_refused_at_once(mixers, reason, tmp_path):
    build_model("bd_lru", mixers=mixers).save_pretrained(tmp_path)
    with pytest.raises(
        RequestError, match=f"{mixers['name']} with .*{reason}.* cannot travel alone"
    ):
        export_remote_code(tmp_path)


def test_a_layer_with_noise_travels_alone_from_the_folder_of_its_run(tmp_path):
    mixers = {"name": "bd_lru", "num_blocks": 4, "block_size": 4}
    mixers |= {"gate_noise": 0.5, "block_dropout": 0.5}
    build_model("bd_lru", mixers=mixers).save_pretrained(tmp_path / "model")
    assert export_remote_code(tmp_path).parent == tmp_path / "model"


def test_a_dense_convolution_travels_alone(tmp_path):
    build_model("bd_lru", mixers={"name": "conv", "kernel_size": 3}).save_pretrained(tmp_path)
    assert export_remote_code(str(tmp_path)).exists()


@pytest.mark.parametrize("gate", ["softmax", "sigmoid", "relu", "signed", "tanh", "none"])
@pytest.mark.parametrize(
    "spec",
    [
        LayerSpec("bd_lru", num_blocks=3, block_size=2, gate_temperature=0.5),
        LayerSpec(
            "bd_lru",
            num_blocks=3,
            block_size=2,
            value_channels=4,
            initial_state="learned",
            initial_std=1.0,
        ),
        LayerSpec("h_lru", num_channels=4, order=3, initial_state="learned", initial_std=1.0),
        LayerSpec("h_lru", num_channels=4, order=2, readout="current"),
    ],
    ids=str,
)
def test_a_portable_layer_is_the_layer(spec, gate):
    check_portable(spec, gate)


@pytest.mark.parametrize("channels", [1, 2])
def test_a_portable_layer_of_columns_is_the_layer(channels):
    spec = LayerSpec(
        "bd_lru", num_blocks=3, block_size=2, value_channels=channels, initial_state="unit"
    )
    check_portable(spec, "column_softmax")


@torch.no_grad()
def check_portable(spec, gate):
    layer = LayerSpec(spec.name, **spec.options, gate=gate).build(hidden_size=8)
    portable = portable_layers.LAYERS[spec.name](8, **spec.options, gate=gate)
    portable.load_state_dict(layer.state_dict())
    x = torch.randn(1, 9, 8)
    bounds = torch.tensor([0, 4, 4, 9])
    found, wanted = portable(x, None, bounds), layer(x, None, bounds)
    torch.testing.assert_close(found, wanted)


def test_the_source_imports_pytorch_and_transformers_alone():
    tree = ast.parse(self_contained_source())
    roots = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert roots - set(sys.stdlib_module_names) == {"torch", "transformers"}


def test_a_model_that_cannot_travel_is_refused(tmp_path):
    with pytest.raises(RequestError, match="must exist; save the model first"):
        export_remote_code(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(RequestError, match="must be of a Statemix model, got 'gpt2'"):
        export_remote_code(tmp_path)
    build_model("delta_net").save_pretrained(tmp_path)
    with pytest.raises(RequestError, match=r"layers must be among .* got \['delta_net'\]"):
        export_remote_code(tmp_path)


def test_a_model_folder_of_a_stranger_runs_no_code(tmp_path, monkeypatch, capsys):
    """Not even if its user says yes to the question of transformers."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    config = {"model_type": "evil", "auto_map": dict.fromkeys(["AutoConfig"], "evil.Evil")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    bytes_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert main(["lm", "generate", str(tmp_path), "a"]) == 2
    assert "must hold a model of transformers" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
