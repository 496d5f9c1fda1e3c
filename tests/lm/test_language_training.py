"""Training on tokens: order of the data, exact resumption, bits per byte, the command."""

import itertools
import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.lm.conftest import TINY, Killed, build_model, write_documents
from transformers import AutoModelForCausalLM

from statemix.cli.lm import parse
from statemix.cli.main import main
from statemix.errors import RequestError
from statemix.lm import model_costs
from statemix.lm.hub_config import StatemixConfig
from statemix.lm.language_optimizers import CosineRate
from statemix.lm.language_scores import bits_per_byte
from statemix.lm.language_training import TokenBatches, train_language_model
from statemix.lm.model_costs import count_sizes
from statemix.lm.prepared import read_prepared
from statemix.lm.presets import LanguageSettings
from statemix.lm.shards import read_tokens
from statemix.lm.text_tokenizers import bytes_tokenizer
from statemix.training import loop as training_loop
from statemix.training.checkpoint import load_tensors

SETTINGS = LanguageSettings(length=4, batch_size=3, steps=20, learning_rate=1e-2, seed=5)


def test_an_epoch_shows_every_window_once_in_an_order_of_its_own():
    ids = np.arange(100, dtype=np.uint16)
    batches = TokenBatches(ids, SETTINGS)
    assert batches.steps_per_epoch == 8
    epochs = [[p for step in range(8 * e, 8 * e + 8) for p in batches.places(step)] for e in (0, 1)]
    for places in epochs:
        assert len(set(places)) == 24
        assert {place % 4 for place in places} == {places[0] % 4}
    assert epochs[0] != epochs[1]
    assert {batches.places(8 * epoch)[0] % 4 for epoch in range(20)} == {0, 1, 2, 3}
    (batch,) = batches.parts(3)
    assert torch.equal(batch[:, 0], torch.tensor(batches.places(3)))
    assert torch.equal(batch.diff(), torch.ones(3, 4, dtype=torch.int64))


def test_every_token_is_read_in_some_epoch():
    """Two of eleven windows fill no step."""
    batches = TokenBatches(np.arange(48), SETTINGS)
    assert batches.steps_per_epoch == 3
    seen = {place for step in range(90) for place in batches.places(step)}
    assert seen == set(range(44))


def test_options_of_the_command_reach_the_model_and_the_training():
    words = "--folder x --num-layers 4 --attention-every 2 --conv-size 3 --output-gate --steps 7"
    words += " --accumulate 2 --weight-decay 0.3 --learning-rate 0.5 --length 9 --seed 4"
    words += " --optimizer muon --clip-norm 2 --warmup-share 0.2 --min-learning-rate 0.1"
    tokenizer = bytes_tokenizer()
    config, settings = parse(["train", *words.split()]).request(tokenizer)
    kinds = ["linear_attention", "full_attention"] * 2
    assert (config.layer_types, config.conv_size, config.output_gate) == (kinds, 3, True)
    assert (config.vocab_size, config.tie_word_embeddings) == (264, True)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (256, 256, 257)
    assert config.mixers["linear_attention"]["num_blocks"] == 40
    for size, width, number in (("nano", "320", 80), ("140M", "16", 1)):
        command = parse(["train", "--folder", "x", "--size", size, "--hidden-size", width])
        mixers = command.request(tokenizer)[0].mixers
        assert mixers["linear_attention"]["num_blocks"] == number
    wanted = LanguageSettings(9, 16, 7, 0.5, accumulate=2, weight_decay=0.3, seed=4)
    wanted = replace(wanted, min_learning_rate=0.1, warmup_share=0.2, clip_norm=2.0)
    assert settings == replace(wanted, optimizer="muon")
    large, _ = parse(["train", "--folder", "x", "--size", "140M"]).request(tokenizer)
    assert (large.hidden_size, large.tie_word_embeddings) == (768, False)


@pytest.mark.parametrize(
    ("size", "vocabulary", "parameters"),
    # The default tokenizer, and GPT-2's for the sizes of the paper.
    [("10M", 2048, 10e6), ("140M", 50_257, 140e6), ("210M", 50_257, 210e6)],
)
def test_a_size_has_the_parameters_of_its_name(size, vocabulary, parameters):
    config, _ = parse(["train", "--folder", "x", "--size", size]).request(bytes_tokenizer())
    config.vocab_size = vocabulary
    assert count_sizes(config)["parameters"] == pytest.approx(parameters, rel=0.04)


def test_the_speed_of_products_is_that_of_the_threads_of_the_run(prepared, tmp_path, monkeypatch):
    noted = set()

    def clock():
        noted.add(torch.get_num_threads())
        return time.time()

    monkeypatch.setattr(model_costs, "time", SimpleNamespace(perf_counter=clock))
    config, data = StatemixConfig(300, 8, 1), read_prepared(prepared)[:2]
    settings = replace(SETTINGS, steps=1)
    train_language_model(config, *data, tmp_path, settings, device="cpu", num_threads=3)
    assert noted == {3}


def test_a_run_is_extended(prepared, tmp_path, refused):
    train = ["lm", "train", "--folder", str(tmp_path), "--tokens", str(prepared), *TINY]
    assert main([*train, "--steps", "4"]) == 0
    assert main([*train, "--steps", "6"]) == 2
    assert main([*train, "--steps", "6", "--extend"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4, 6]
    assert all(row["tokens_per_s"] > 0 for row in rows)
    # The metrics have the rate of the step that was taken last.
    longest = LanguageSettings(16, 4, 6, 1e-2)
    assert rows[1]["learning_rate"] == CosineRate(longest).rate(5)
    # A run that goes on has no summary, and its model is that of an earlier end.
    (tmp_path / "summary.json").unlink()
    refused(["lm", "generate", str(tmp_path), "a"], "must hold a finished run")


def test_too_few_tokens_are_refused():
    with pytest.raises(RequestError, match="must fill one step of 3 sequences of 4 tokens, got 15"):
        TokenBatches(np.zeros(15, np.uint16), SETTINGS)


def test_the_rate_rises_and_falls():
    schedule = CosineRate(LanguageSettings(4, 3, 100, 1.0, min_learning_rate=0.1))
    rates = [schedule.rate(step) for step in range(101)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert all(later < sooner for sooner, later in itertools.pairwise(rates[10:]))
    with pytest.raises(RequestError, match=r"must be at most learning_rate=1e-06, got 1e-05"):
        CosineRate(LanguageSettings(4, 3, 100, 1e-6))


def test_bits_per_byte_are_those_of_each_token_from_all_before(tmp_path, monkeypatch):
    monkeypatch.setattr("statemix.lm.language_scores._PIECE", 3)
    model = build_model("bd_lru", eos_token_id=0).double()
    documents = [([4, 5, 6, 7, 0], 9), ([8, 0], 3)]
    tokens = read_tokens(write_documents(tmp_path / "held", 50, documents, {}))
    total = 0.0
    for ids, _ in documents:
        logits = model(torch.tensor([[0, *ids[:-1]]])).logits[0].log_softmax(-1)
        total -= float(logits[torch.arange(len(ids)), torch.tensor(ids)].detach().sum())
    found = bits_per_byte(model, tokens)
    assert found["bits_per_byte"] == pytest.approx(total / math.log(2) / 12, rel=1e-12)
    assert found["perplexity"] == pytest.approx(math.exp(total / 7), rel=1e-12)


@pytest.mark.parametrize("window", [None, 3])
def test_without_an_end_a_first_token_is_one_of_equally_likely_tokens(tmp_path, window):
    """So that no byte of the text is free."""
    model = build_model("bd_lru", eos_token_id=None, training_length=window)
    write_documents(tmp_path / "one", 50, [([7], 3), ([], 0), ([8], 2)], {})
    found = bits_per_byte(model, read_tokens(tmp_path / "one.bin"))
    assert found["bits_per_byte"] == pytest.approx(2 * math.log2(50) / 5)
    assert found["perplexity"] == pytest.approx(50)
    write_documents(tmp_path / "two", 50, [([7, 8], 3)], {})
    found = bits_per_byte(model, read_tokens(tmp_path / "two.bin"))
    loss = -float(model(torch.tensor([[7]])).logits[0, 0].log_softmax(-1)[8].detach())
    wanted = (math.log(50) + loss) / math.log(2) / 3
    assert found["bits_per_byte"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("window", [1, 4, 20])
def test_attention_predicts_each_token_in_the_first_window_that_has_it(tmp_path, window):
    model = build_model("bd_lru", eos_token_id=0, training_length=window)
    documents = [(list(range(1, 12)), 30), ([8], 3), ([], 0)]
    tokens = read_tokens(write_documents(tmp_path / "held", 50, documents, {}))
    total = 0.0
    for ids, _ in documents:
        inputs, stride = [0, *ids], max(1, window // 2)
        for place, target in enumerate(ids):
            begin = max(0, -(-(place + 1 - window) // stride)) * stride
            logits = model(torch.tensor([inputs[begin : place + 1]])).logits[0, -1]
            total -= logits.log_softmax(-1)[target].item()
    found = bits_per_byte(model, tokens)
    assert found["bits_per_byte"] == pytest.approx(total / math.log(2) / 33, rel=1e-5)


@pytest.mark.parametrize(("kind", "longest"), [("full_attention", 6), ("linear_attention", None)])
def test_training_tells_a_model_with_attention_its_length(prepared, tmp_path, kind, longest):
    tokens, held_out, _ = read_prepared(prepared)
    settings = LanguageSettings(6, 2, steps=1, learning_rate=1e-3, evaluate_every=1)
    config = StatemixConfig(300, 8, 1, eos_token_id=0, layer_types=[kind])
    model, _ = train_language_model(config, tokens, held_out, tmp_path, settings)
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.training_length == stored.config.training_length == longest
    assert config.training_length is None
    # Runs of older versions, whose requests have no such entry, resume.
    request = json.loads((tmp_path / "config.json").read_text())
    assert "training_length" not in request["asked"]["fit"]["settings"]["model"]
    # It may generate more.
    prompt = torch.ones(1, 9, dtype=torch.long)
    assert stored.generate(prompt, max_new_tokens=3, eos_token_id=299).shape == (1, 12)


def weights(folder):
    return load_tensors((folder / "model.safetensors").read_bytes())


def test_the_commands_train_generate_and_evaluate(prepared, tmp_path, capsys, refused):
    folder = str(tmp_path / "run")
    train = ["lm", "train", "--folder", folder, "--tokens", str(prepared), *TINY]
    assert main([*train, "--steps", "10", "--evaluate-every", "5"]) == 0
    out, err = capsys.readouterr()
    assert "bits per byte, perplexity" in out
    # transformers would draw bars.
    assert "Writing" not in err
    assert main(["lm", "generate", folder, "def f", "--max-new-tokens", "8"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("def f")
    assert not err
    assert main(["lm", "evaluate", folder, "--tokens", str(prepared)]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert "xz given training: " in out
    refused(["lm", "generate", str(prepared), "def f"], "must hold a finished language model")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_kills_change_no_bit(prepared, tmp_path, monkeypatch, optimizer):
    command = ["lm", "train", "--tokens", str(prepared), *TINY, "--optimizer", optimizer]
    command += ["--steps", "30", "--evaluate-every", "10", "--checkpoint-every-s", "0", "--folder"]
    save = training_loop.save_checkpoint
    for last in (7, 8, 21):

        def saved(folder, step, *rest, last=last, **options):
            save(folder, step, *rest, **options)
            if step == last:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(training_loop, "save_checkpoint", saved)
            with pytest.raises(Killed):
                main([*command, str(tmp_path / "killed")])
    for name in ("killed", "whole"):
        assert main([*command, str(tmp_path / name)]) == 0
    found, wanted = weights(tmp_path / "killed"), weights(tmp_path / "whole")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    stored = json.loads((tmp_path / "whole" / "config.json").read_text())
    # Runs of older versions name no optimiser.
    named = stored["asked"]["fit"]["settings"]["training"].get("optimizer")
    assert named == (None if optimizer == "adamw" else "muon")
