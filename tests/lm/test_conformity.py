"""``conform``: our models pass every check, each check can fail, and the command reports it."""

import copy
import functools
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from tests.lm.conftest import build_model
from transformers import AutoConfig, AutoModelForCausalLM

from statemix.cli.main import main
from statemix.layers.state import map_state
from statemix.lm import StatemixForCausalLM, StatemixPreTrainedModel, conform
from statemix.lm.conformity import CHECKS, open_subject
from statemix.lm.hub_model import CACHE
from statemix.lm.state_cache import StateCache, StateLayer

CONFIG = str(Path(__file__).resolve().parents[1] / "mutation" / "conform.json")
# It takes longer than all others together, and has tests of its own.
COMPILED = "compile_at_a_second_length"


def test_our_models_pass_every_check(model):
    before = copy.deepcopy(model.state_dict())
    results = conform(model, skip=[COMPILED])
    assert [result.check for result in results] == [name for name in CHECKS if name != COMPILED]
    assert {result.outcome for result in results} == {"equal"}, results
    readme = Path(__file__).parents[2].joinpath("README.md").read_text()
    assert f"[{len(CHECKS)} checks](docs/conform.md)" in readme
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_compiled_model_passes():
    (result,) = conform(build_model("bd_lru"), only=[COMPILED])
    assert result.outcome == "equal", result


def defective(without=(), wrong=lambda ids, options: False):
    """A forward pass that ignores arguments, and whose logits are wrong under a condition."""
    forward = StatemixForCausalLM.forward

    @functools.wraps(forward)
    def changed(self, input_ids=None, **options):
        kept = {name: value for name, value in options.items() if name not in without}
        output = forward(self, input_ids, **kept)
        if wrong(input_ids, options):
            output.logits = output.logits.roll(1, -1)
        return output

    return {"forward": changed}


def later(ids, options):
    """Several tokens follow those of a cache."""
    cache = options.get(CACHE)
    return cache is not None and cache.seen > ids.shape[1] > 1


def rounded(self, before, state, inputs, mask, store=StateLayer.store):
    store(self, before, map_state(lambda part: part.bfloat16(), state), inputs, mask)


def redraw(self, module):
    for parameter in module.parameters():
        parameter.data.normal_()


CACHED = (StatemixForCausalLM, defective(wrong=lambda _, options: options.get(CACHE)))
PIECES = (StatemixForCausalLM, defective(wrong=later))
PADDED = (StatemixForCausalLM, defective(without=["attention_mask", "position_ids"]))
ROLLBACK = (StateLayer, {"crop": lambda self, tokens_to_remove: None})
DEFECTS = {
    "causal": (StatemixForCausalLM, defective(wrong=lambda ids, _: ids.shape[1] == 4)),
    "greedy": CACHED,
    "adapters": CACHED,
    "beam_search": (StateLayer, {"batch_select_indices": lambda self, indices: None}),
    "left_padding": PADDED,
    "right_padding": PADDED,
    "mask_dtypes": (
        StatemixForCausalLM,
        defective(wrong=lambda ids, o: o.get("attention_mask", ids).dtype == torch.bool),
    ),
    "prompt_in_pieces": PIECES,
    "padded_prompt_in_pieces": PADDED,
    "continued_from_cache": PIECES,
    "static_cache": CACHED,
    "rollback": ROLLBACK,
    "prompt_lookup": ROLLBACK,
    "assisted_decoding": ROLLBACK,
    "compiled_only_on_request": (StateCache, {"is_compileable": True}),
    "state_dtype": (StateLayer, {"store": rounded}),
    "packed_position_ids": (StatemixForCausalLM, defective(without=["position_ids"])),
    "packed_cu_seqlens": (StatemixForCausalLM, defective(without=["cu_seqlens"])),
    "packed_seq_idx": (StatemixForCausalLM, defective(without=["seq_idx"])),
    "packed_all_bounds": (
        StatemixForCausalLM,
        defective(without=["position_ids", "seq_idx", "cu_seq_lens_q"]),
    ),
    "packed_contradiction": (StatemixForCausalLM, defective(without=["cu_seqlens"])),
    "gradient_checkpointing": (
        StatemixForCausalLM,
        {
            "gradient_checkpointing_enable": lambda self: None,
            "activation_checkpointing_enable": lambda self: None,
        },
    ),
    "save_and_load": (StatemixForCausalLM, {"_tied_weights_keys": None}),
    "load_in_16_bits": (StatemixForCausalLM, {"_keep_in_fp32_modules_strict": ["mixer"]}),
    "load_without_some_weights": (StatemixPreTrainedModel, {"_init_weights": redraw}),
    "resize_embeddings": (
        StatemixForCausalLM,
        {"resize_token_embeddings": lambda self, size, **_: None},
    ),
    COMPILED: (StatemixForCausalLM, defective(wrong=lambda ids, _: torch.compiler.is_compiling())),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", CHECKS)
def test_a_defect_fails_its_check(check, monkeypatch):
    kind, attributes = DEFECTS[check]
    for name, value in attributes.items():
        monkeypatch.setattr(kind, name, value, raising=False)
    (result,) = conform(open_subject(CONFIG), only=[check])
    assert result.outcome == "wrong", result


def test_models_of_transformers_have_their_known_defects():
    results = {row.check: row for row in conform(open_subject("mamba2"), skip=[COMPILED])}
    assert results["right_padding"].difference > 0.1
    assert results["packed_position_ids"].reason == "the model ignores position_ids"
    assert results["padded_prompt_in_pieces"].outcome == "error"
    assert results["prompt_lookup"].outcome == "skipped"
    assert results["greedy"].outcome == results["left_padding"].outcome == "equal"


def test_large_configurations_become_small_and_small_ones_stay(tmp_path):
    large = open_subject("qwen3_next")
    assert large.num_parameters() < 100_000
    assert large.config.layer_types == ["linear_attention"] * 3 + ["full_attention"]
    config = AutoConfig.for_model("mamba", hidden_size=24, num_hidden_layers=1, vocab_size=99)
    config.save_pretrained(tmp_path)
    for source in (tmp_path, tmp_path / "config.json"):
        assert open_subject(str(source)).config.hidden_size == 24
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "run" / "model")
    found = open_subject(str(tmp_path / "run"))
    torch.testing.assert_close(found.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_the_command_prints_json_and_junit_and_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(StateCache, "is_compileable", True)
    names = ["causal", "compiled_only_on_request", "packed_seq_idx"]
    command = ["conform", CONFIG, "--only", *names, "--skip", "packed_seq_idx"]
    assert main([*command, "--json", "--junit", str(tmp_path / "out.xml")]) == 1
    printed = capsys.readouterr()
    rows = json.loads(printed.out)["results"]
    assert [(row["model"], row["check"]) for row in rows] == [(CONFIG, name) for name in names[:2]]
    assert [row["outcome"] for row in rows] == ["equal", "wrong"]
    assert printed.err == "statemix: 1 of 2 checks failed\n"
    (suite,) = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert suite.get("tests") == "2"
    assert suite.get("failures") == "1"
    assert [len(case) for case in suite] == [0, 1]
    assert suite[1][0].get("message") == rows[1]["reason"]


def test_a_model_that_cannot_be_opened_loses_no_results(tmp_path, capsys):
    command = ["conform", "nosuchtype", CONFIG, "--only", "causal", "--json"]
    assert main([*command, "--junit", str(tmp_path / "out.xml")]) == 2
    printed = capsys.readouterr()
    assert [row["model"] for row in json.loads(printed.out)["results"]] == [CONFIG]
    assert "nosuchtype" in printed.err
    assert len(ElementTree.parse(tmp_path / "out.xml").getroot()) == 1


def test_the_command_prints_a_line_for_each_check(capsys):
    assert main(["conform", CONFIG, "--only", "causal", "greedy"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith(f"{CONFIG}, transformers ")
    assert [line.split()[:2] for line in lines] == [["causal", "equal"], ["greedy", "equal"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no/such"], "a folder with a config.json, .* model type of transformers, got 'no/such'$"),
        (["mamba3"], "got 'mamba3'; did you mean 'mamba'"),
        (["t5"], "must be a causal language model, got the encoder-decoder 't5'"),
        (["bert"], "must be a causal language model, got 'bert' in bert"),
        (["zamba2"], "'zamba2' could not be made small .* at most 256 channels and 8 layers"),
        (["mamba2", "--only", "gredy"], "only must be among causal, .* 'gredy'; did you mean 'gr"),
        (["mamba2", "--skip", "all"], "skip must be among causal, .* got 'all'"),
        (["mamba2", "--only", "causal", "--skip", "causal"], "skip must leave a check, got causal"),
        (["mamba2", "--junit", "/dev/null/x"], "junit must be a writable file, got '/dev/null/x'"),
    ],
)
def test_bad_requests_get_one_line(words, message, capsys):
    assert main(["conform", *words]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert re.search(message, printed.strip())
