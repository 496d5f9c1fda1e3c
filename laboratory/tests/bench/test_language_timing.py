"""Language models are timed side by side, and the memory of decoding is measured."""

import json

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from statemix.errors import RequestError
from statemix.lm.hub_model import CACHE
from statemix_lab.bench import language_timing
from statemix_lab.bench.language_timing import (
    LLAMA,
    LanguageCase,
    built,
    cache_bytes,
    decoding_memory,
)
from statemix_lab.cli.bench import bench_language, parse
from statemix_lab.studies.language import language_suites

pytestmark = pytest.mark.usefixtures("process_kept")


def tiny(layer, **options):
    return {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "mixers": {"full_attention" if layer == "attention" else "linear_attention": {
            "name": layer, **options
        }},
        "layer_types": ["full_attention" if layer == "attention" else "linear_attention"] * 2,
    }  # fmt: skip


BLOCKS = tiny("bd_lru", num_blocks=4, block_size=2)
ATTENTION = tiny("attention", num_heads=2, rope=True)


def test_every_model_has_a_row_in_training_and_in_decoding(capsys, tmp_path, monkeypatch):
    models = {"BD-LRU m=4": BLOCKS, "Transformer": ATTENTION, "LSTM": {}}
    monkeypatch.setattr(language_suites, "timed_models", lambda size: models)
    monkeypatch.setattr(bench_language, "_SIZES", {"laptop": ("2 thousand", 2, 8)})
    path = tmp_path / "language.jsonl"
    names = ["BD-LRU m=4", "Transformer"]
    options = ["--rounds", "3", "--budget-s", "0.1", "--contexts", "8", "--memory-at", "3", "5"]
    parse(["language", "--models", *names, *options, "--output", str(path)]).run()
    printed = capsys.readouterr().out
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    timed = [row for row in rows if row["benchmark"] == "language"]
    assert [(row["case"]["task"], row["provider"]) for row in timed] == [
        *(("training", name) for name in names),
        *(("decoding", name) for name in (*names, LLAMA)),
    ]
    for row in timed:
        assert row["tokens_per_s"] == pytest.approx(row["tokens_per_call"] / row["time_s"]["p50"])
        assert ("Transformer" in row["ratios"]) == (row["provider"] != "Transformer")
    assert timed[0]["model"] == BLOCKS
    memory = [row for row in rows if row["benchmark"] == "language-memory"]
    assert [row["tokens"] for row in memory] == [3, 5]
    assert len({row["cache_bytes"] for row in memory}) == 1
    lines = printed.splitlines()
    assert max(map(len, lines[:-1])) <= 100
    assert any(line.startswith("BD-LRU m=4 after 5 tokens: cache 64 bytes") for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threads", "2"], "threads must be 1 with language models, got 2"),
        (["--dtype", "float64"], "dtype must be float32 or bfloat16"),
        (["--models", "GPT"], "models must be among .* got 'GPT'"),
        (["--contexts", "8", "4"], "contexts must be ascending and at least 1"),
        (["--memory-at", "0"], "memory_at must be ascending and at least 1"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(RequestError, match=message):
        parse(["language", *options]).run()


def test_models_compute_under_autocast(monkeypatch):
    seen = []
    forward = language_timing.StatemixForCausalLM.forward

    def watched(self, *arguments, **options):
        output = forward(self, *arguments, **options)
        seen.append(output.logits.dtype)
        return output

    monkeypatch.setattr(language_timing.StatemixForCausalLM, "forward", watched)
    for task in ("training", "decoding"):
        case = LanguageCase(task, 1, 4)
        (provider,) = language_timing.providers(case, {"tiny": BLOCKS}, dtype=torch.bfloat16)
        provider.prepare()()
    assert set(seen) == {torch.bfloat16}


def test_memory_of_decoding_is_that_of_the_state_and_attention_grows():
    flat = [one["cache_bytes"] for one in decoding_memory(BLOCKS, [1, 40])]
    assert flat == [2 * 4 * 2 * 4] * 2
    grown = [one["cache_bytes"] for one in decoding_memory(ATTENTION, [1, 40])]
    assert grown[1] == 40 * grown[0] >= 40 * (2 * 2 * 16 * 4)


@pytest.mark.parametrize("model", [BLOCKS, ATTENTION], ids=["bd_lru", "attention"])
def test_decoder_continues_behind_the_context(model):
    case = LanguageCase("decoding", 1, 6)
    (provider,) = language_timing.providers(case, {"tiny": model})
    call = provider.prepare()
    found = [int(call()) for _ in range(2)]
    net = built(model)
    tokens = language_timing._tokens(1, 6)
    for _ in range(9):
        tokens = torch.cat([tokens, net(tokens).logits[:, -1:].argmax(-1)], 1)
    assert found == [int(tokens[0, 10]), int(tokens[0, 14])]
    cache = net(tokens, use_cache=True)[CACHE]
    assert cache_bytes(cache) > 0
