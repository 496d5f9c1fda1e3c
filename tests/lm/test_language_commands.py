"""Options of the commands for text: each test fails if its option does nothing."""

import json
import lzma
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from tests.lm.conftest import TINY, build_model, write_documents
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from statemix.cli.lm import prepare_tokens, train_text
from statemix.cli.main import main
from statemix.errors import RequestError
from statemix.lm import prepared as prepared_tokens
from statemix.lm.language_scores import bits_per_byte
from statemix.lm.prepared import (
    compressed_bits_per_byte,
    load_language_model,
    prepare,
    read_prepared,
)
from statemix.lm.shards import read_tokens
from statemix.lm.text_tokenizers import (
    bytes_tokenizer,
    encode,
    end_of,
    load_tokenizer,
    read_alike,
    save_tokenizer,
    train_bpe,
)
from statemix.training.devices import Ranks


class StopError(RequestError):
    """Ends a command once its call has been noted."""


def noting(calls):
    def call(*arguments, **options):
        calls.append((arguments, options))
        raise StopError("noted")

    return call


def test_all_options_of_preparation_are_used(monkeypatch, tmp_path):
    calls, folder = [], str(tmp_path / "out")
    monkeypatch.setattr(prepare_tokens, "prepare", noting(calls))
    words = "--tokenizer bytes --field body --suffixes .c .h --documents 7 --held-out 0.3"
    assert main(["lm", "prepare", "a", "b", "--output", folder, *words.split()]) == 2
    wanted = {"tokenizer": "bytes", "field": "body", "suffixes": (".c", ".h")}
    wanted |= {"most_documents": 7, "held_out": 0.3}
    assert calls == [((("a", "b"), tmp_path / "out"), wanted)]


def test_all_options_of_training_are_used(monkeypatch, prepared, tmp_path):
    calls = []
    monkeypatch.setattr(train_text, "train_language_model", noting(calls))
    # Where there is no GPU.
    monkeypatch.setattr(train_text, "matmul_speed", lambda *_: 1e9)
    monkeypatch.setattr(train_text, "join_ranks", lambda _: Ranks())
    monkeypatch.setattr(train_text, "check_device", lambda *_: None)
    command = ["lm", "train", "--folder", str(tmp_path / "run"), "--tokens", str(prepared), *TINY]
    command = [word for word in command if word not in {"--device", "cpu"}]
    words = "--evaluate-bytes 99 --compile --gradient-checkpointing --sequence-parallel --extend"
    words += " --precision bf16-mixed --device cuda --checkpoint-every-s 5 --strategy fsdp"
    assert main([*command, *words.split()]) == 2
    wanted = {
        "most_bytes": 99, "compiled": True, "gradient_checkpointing": True, "extend": True,
        "sequence_parallel": True, "precision": "bf16-mixed", "device": "cuda",
        "checkpoint_every_s": 5, "strategy": "fsdp",
    }  # fmt: skip
    assert calls[0][1].items() >= wanted.items()


def test_tokens_are_prepared_once_beside_the_run(monkeypatch, prepared, tmp_path):
    made = []

    def copy(sources, folder):
        made.append((sources, folder))
        shutil.copytree(prepared, folder)

    monkeypatch.setattr(train_text, "prepare", copy)
    monkeypatch.setattr(train_text, "train_language_model", noting([]))
    command = ["lm", "train", "--folder", str(tmp_path / "run"), *TINY]
    assert [main(command), main(command)] == [2, 2]
    assert made == [(["stdlib"], tmp_path / "run-tokens")]


@pytest.fixture
def model_folder(tmp_path):
    """A folder of transformers: a model of bytes, with random weights."""
    model = build_model("bd_lru", vocab_size=257, eos_token_id=256)
    # So that the most likely token is one of many.
    model.model.embed_tokens.weight.data *= 0.5
    model.save_pretrained(tmp_path / "model")
    bytes_tokenizer().save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model"


@pytest.fixture
def generate(model_folder, capsys):
    def run(*words, prompt="abc"):
        assert main(["lm", "generate", str(model_folder), prompt, *words]) == 0
        return capsys.readouterr().out

    return run


def greedy(folder, count):
    model, tokenizer = load_language_model(folder)
    ids = tokenizer.encode("abc").ids
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return tokenizer.decode(ids) + "\n"


def test_prompts_that_cannot_be_continued_are_named(model_folder, capsys):
    table = json.loads((model_folder / "tokenizer.json").read_text())
    table["model"]["vocab"]["a"] = 999
    (model_folder / "tokenizer.json").write_text(json.dumps(table))
    for prompt, message in (
        ("", "prompt must have at least one token, got none"),
        ("a\udcff", "prompt must be UTF-8, got 'a\\udcff'"),
        ("abc", "prompt must have tokens in 0..256, the vocabulary, got 65..999"),
    ):
        assert main(["lm", "generate", str(model_folder), prompt]) == 2
        assert capsys.readouterr().err == f"statemix: {message}\n"


def test_prompts_are_taken_as_they_are_written(model_folder, capsys):
    command = ["lm", "generate", str(model_folder)]
    assert main([*command, '"a\\nb"', "--max-new-tokens", "1"]) == 0
    assert capsys.readouterr().out.startswith('"a\\nb"')
    # After two dashes, a word is no flag.
    assert main([*command, "--max-new-tokens", "1", "--", "--ab"]) == 0
    assert capsys.readouterr().out.startswith("--ab")


def test_temperature_0_and_top_1_take_the_most_likely_token(generate, model_folder):
    wanted = greedy(model_folder, 9)
    assert wanted.startswith("abc")
    words = ("--max-new-tokens", "9", "--temperature")
    assert generate(*words, "0") == generate(*words, "1e-40") == wanted
    assert generate(*words, "5", "--top-k", "1") == wanted
    assert generate(*words, "5", "--top-k", "0") != wanted


def test_the_seed_decides_the_text(generate):
    texts = [generate("--seed", seed, "--max-new-tokens", "20") for seed in ("4", "4", "5")]
    assert texts[0] == texts[1] != texts[2]


@pytest.fixture
def bytes_tokens(tmp_path):
    """Prepared tokens of bytes; held-out text repeats training text, which xz can use."""
    for place in range(12):
        (tmp_path / "texts" / f"p{place}").mkdir(parents=True)
        for number in range(3):
            lines = [f"ä{n * place} = {n + number}\n" for n in range(40)]
            (tmp_path / "texts" / f"p{place}" / f"{number}.txt").write_text("".join(lines))
    prepare([str(tmp_path / "texts")], tmp_path / "tokens", tokenizer="bytes")
    return tmp_path / "tokens"


def xz_size(text):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    return len(lzma.compress(text, filters=filters))


@pytest.mark.parametrize("most", [None, 700])
def test_scores_are_those_of_the_model_and_of_xz_on_the_held_out_text(
    model_folder, bytes_tokens, printed_by, most
):
    words = ["--json"] if most is None else ["--json", "--most-bytes", str(most)]
    arguments = ["lm", "evaluate", str(model_folder), "--tokens", str(bytes_tokens)]
    found = json.loads(printed_by([*arguments, *words]))
    train, held_out, tokenizer = read_prepared(bytes_tokens)

    def text(part, most=None):
        found = b""
        for number in range(len(part.bounds) - 1):
            if most is not None and len(found) >= most:
                break
            found += tokenizer.decode(part.document(number).tolist()[:-1]).encode()
        return found

    score, before = text(held_out, most), text(train)
    assert (len(score) < held_out.num_bytes) == (most is not None)
    model, _ = load_language_model(model_folder)
    wanted = bits_per_byte(model, held_out, most_bytes=most) | {
        "xz": 8 * xz_size(score) / len(score),
        "xz_given_training": 8 * (xz_size(before + score) - xz_size(before)) / len(score),
    }
    assert found == pytest.approx(wanted)
    assert found["xz_given_training"] < found["xz"]
    lines = printed_by([*arguments, *words[1:]]).splitlines()
    assert lines[0].startswith("bits per byte: ")
    assert len(lines) == len(found)


FOREIGN = {
    "llama": {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2},
    "gpt2": {"n_embd": 16, "n_head": 2, "n_positions": 64},
    "mamba": {"hidden_size": 16, "state_size": 4},
}


@pytest.mark.parametrize(
    ("kind", "ends"),
    [("statemix", [256, 10]), ("llama", [10, 256]), ("gpt2", 256), ("mamba", [256, 10])],
)
def test_models_of_transformers_are_scored_and_write(kind, ends, bytes_tokens, tmp_path, capsys):
    """Each token counts once, predicted in the first window that has it."""
    torch.manual_seed(0)
    options = FOREIGN.get(kind, {"hidden_size": 16, "intermediate_size": 32})
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=258, num_hidden_layers=1, eos_token_id=ends, bos_token_id=None, **options
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path / "model")
    save_tokenizer(bytes_tokenizer(), tmp_path / "model")
    command = ["lm", "evaluate", str(tmp_path / "model"), "--tokens", str(bytes_tokens), "--json"]
    assert main([*command, "--most-bytes", "1"]) == 0
    found = json.loads(capsys.readouterr().out)["perplexity"]
    ids = torch.tensor(read_prepared(bytes_tokens)[1].document(0).astype("int64"))
    inputs = torch.cat([torch.tensor([ends if isinstance(ends, int) else ends[0]]), ids])
    losses, length = [], 64 if kind == "gpt2" else len(ids)
    for begin in range(0, len(ids), length // 2):
        window = inputs[begin : begin + length + 1]
        logs = model(window[None, :-1]).logits[0].log_softmax(-1)
        losses += (-logs.gather(-1, window[1:, None])[len(losses) - begin :, 0]).tolist()
    assert found == pytest.approx(torch.tensor(losses).mean().exp().item(), rel=1e-4)
    words = ["abc", "--max-new-tokens", "3"]
    assert main(["lm", "generate", str(tmp_path / "model"), *words]) == 0
    assert capsys.readouterr().out.startswith("abc")


def test_a_model_that_sees_later_tokens_is_not_scored(bytes_tokens, tmp_path, refused):
    config = transformers.BertConfig(
        vocab_size=258, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, is_decoder=False,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path / "model")
    save_tokenizer(bytes_tokenizer(), tmp_path / "model")
    command = ["lm", "evaluate", str(tmp_path / "model"), "--tokens", str(bytes_tokens)]
    refused([*command, "--most-bytes", "1"], "must predict a token from earlier tokens alone")


def test_a_tokenizer_that_loses_text_is_named_beside_the_scores(model_folder, tmp_path, capsys):
    """A lossy tokenizer makes bits per byte too good."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    for place in range(12):
        (tmp_path / f"{place}.txt").write_text(f"text number {place} " * 20)
    command = ["lm", "prepare", str(tmp_path), "--tokenizer", str(tmp_path / "words.json")]
    assert main([*command, "--output", str(tmp_path / "tokens")]) == 0
    said = "read: texts that the tokenizer does not give back exactly, so bits per byte mean little"
    error = capsys.readouterr().err
    assert f"{said}: 12 (document 0, " in error
    assert f"has no end of documents, such as <|endoftext|>: 1 ({tmp_path}" in error
    assert main(["lm", "train", "--folder", str(tmp_path / "run"), *TINY, "--steps", "1",
                 "--tokens", str(tmp_path / "tokens")]) == 0  # fmt: skip
    evaluate = ["lm", "evaluate", str(tmp_path / "run"), "--tokens", str(tmp_path / "tokens")]
    assert main(evaluate) == 0
    assert capsys.readouterr().out.count("so bits per byte mean little: 12 (") == 2


@pytest.mark.parametrize("documents", [1, 40])
def test_a_compressor_is_given_the_end_of_the_training_text(tmp_path, monkeypatch, documents):
    """As much as its window holds."""
    monkeypatch.setattr(prepared_tokens, "_WINDOW", 1000)
    draws = (np.random.default_rng(n).integers(97, 123, 200, "uint8") for n in range(40))
    rows, tokenizer = [bytes(draw).decode() for draw in draws], bytes_tokenizer()
    texts = ["".join(rows)] if documents == 1 else rows
    parts = []
    for name, some in (("train", texts), ("held_out", [rows[0], rows[39]])):
        coded = [(ids, 200) for ids in encode(tokenizer, some)]
        parts.append(read_tokens(write_documents(tmp_path / name, 257, coded, {})))
    found = compressed_bits_per_byte(*parts, tokenizer)
    last, score = "".join(rows)[-1000:].encode(), (rows[0] + rows[39]).encode()
    sizes = [xz_size(text) for text in (last, last + score)]
    assert found["xz_given_training"] == pytest.approx(8 * (sizes[1] - sizes[0]) / 400)


def edit(folder, name, **entries):
    table = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(table | entries))


def write(folder, name, content):
    (folder / name).write_bytes(content)


def with_weights(folder, change):
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    change(weights)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: os.truncate(f / "model.safetensors", 3000), "must hold a model of transformers"),
        (lambda f: write(f, "config.json", b"[" * 100_000), "must hold a model of transformers"),
        (lambda f: edit(f, "config.json", hidden_size=8), "has another shape"),
        (lambda f: edit(f, "config.json", conv_size=3), "0.mixer.conv.conv.bias is missing"),
        (lambda f: with_weights(f, lambda w: w.pop("model.norm.weight")), "norm.weight is missing"),
        (lambda f: with_weights(f, lambda w: w["model.norm.weight"].fill_(torch.nan)), "finite"),
        (
            lambda f: edit(f, "config.json", num_hidden_layers=1, layer_types=["linear_attention"]),
            "layers.1.mixer.layer.gate_proj.bias is unknown",
        ),
        (lambda f: edit(f, "config.json", hidden_size=None), "hidden_size must be"),
        (lambda f: edit(f, "config.json", norm_eps=-1), "norm_eps must be"),
        (lambda f: edit(f, "config.json", output_gate="no"), "output_gate must be True or"),
        (lambda f: edit(f, "config.json", pad_token_id=9999), "pad_token_id must be below"),
        (lambda f: edit(f, "config.json", training_length=0), "training_length must be"),
        (lambda f: edit(f, "config.json", layer_types=5), "layer_types must be a list"),
        (lambda f: edit(f, "config.json", mixers={"linear_attention": {"name": []}}), "mixers"),
    ],
)
def test_damaged_models_are_named_in_one_line(damage, message, model_folder, bytes_tokens, capsys):
    damage(model_folder)
    for command in (["generate", "abc"], ["evaluate", "--tokens", str(bytes_tokens)]):
        assert main(["lm", command[0], str(model_folder), *command[1:]]) == 2
        printed = capsys.readouterr()
        assert message in printed.err
        assert (printed.err.count("\n"), printed.out) == (1, "")


@pytest.mark.parametrize("end", [257, -1, [], "256"])
def test_a_first_token_that_the_model_lacks_is_named(end, model_folder, bytes_tokens, capsys):
    for name in ("config.json", "generation_config.json"):
        edit(model_folder, name, eos_token_id=end)
    assert main(["lm", "evaluate", str(model_folder), "--tokens", str(bytes_tokens)]) == 2
    assert capsys.readouterr().err == (
        "statemix: the token before a text, eos_token_id or bos_token_id of the model, must be in "
        f"0..256, got {end!r}\n"
    )


def of_words(*special):
    """A tokenizer of a user: whole words, and special tokens of its own."""
    words = {word: place for place, word in enumerate(["some", "more", "words", "?"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([*special])
    return tokenizer


@pytest.mark.parametrize(
    ("make", "padding", "size"),
    [
        (bytes_tokenizer, "<|padding|>", 258),
        (lambda: train_bpe(["some words, some more words\n"] * 9, 260), "<|padding|>", 261),
        (lambda: of_words("[PAD]", "<|endoftext|>"), "[PAD]", 6),
        (lambda: of_words("<pad>"), "<pad>", 5),
    ],
    ids=["bytes", "bpe", "others", "no end"],
)
def test_collators_score_the_end_of_a_text_and_no_padding(make, padding, size, tmp_path):
    """With a stored tokenizer, from ``lm prepare`` or a file of the user."""
    made = make()
    made.enable_truncation(1)
    made.save(str(tmp_path / "file.json"))
    save_tokenizer(load_tokenizer(str(tmp_path / "file.json")), tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.pad_token, len(loaded), loaded.padding_side) == (padding, size, "left")
    assert loaded.pad_token_id != loaded.eos_token_id == loaded.bos_token_id == end_of(made)
    texts = [text + (loaded.eos_token or "") for text in ("some", "some more words")]
    batch = transformers.DataCollatorForLanguageModeling(loaded, mlm=False)(
        [{"input_ids": loaded(text, add_special_tokens=False).input_ids} for text in texts]
    )
    if loaded.eos_token:
        assert batch["labels"][:, -1].tolist() == [loaded.eos_token_id] * 2
    assert batch["labels"][batch["attention_mask"] == 0].unique().tolist() == [-100]
    # It reads other texts as before.
    found = loaded("more words", add_special_tokens=False).input_ids
    assert found == make().encode("more words", add_special_tokens=False).ids
    assert read_alike(load_tokenizer(str(tmp_path)), make())


def test_a_stored_tokenizer_adds_no_tokens_that_the_model_has_not_read(tmp_path):
    made = of_words("</s>")
    end = ("</s>", made.token_to_id("</s>"))
    made.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[end])
    save_tokenizer(made, tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [*loaded("more words").input_ids, end[1]] == encode(made, ["more words"])[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--conv-size -1", "conv_size must be greater than or equal to 0, got -1"),
        ("--batch-size 4 --accumulate 5", "batch_size must be at least 5 with accumulate=5 and 1"),
        ("--size 7B", "size must be"),
        ("--attention-every 4", "attention_every must be at most 3, the number of layers, got 4"),
        ("--device cuda", "device must be available"),
    ],
)
def test_numbers_that_cannot_be_are_named(prepared, tmp_path, refused, words, message):
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = ["lm", "train", "--folder", str(tmp_path / "run"), "--tokens", str(prepared)]
    refused([*command, *words.split()], message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("size", "width", "number"), [("nano", 160, 40), ("nano", 320, 80), ("140M", 16, 1)]
)
def test_a_wider_preset_has_more_blocks(size, width, number):
    command = train_text.TrainText(Path("run"), size=size, hidden_size=width)
    config, _ = command.request(bytes_tokenizer())
    assert config.mixers["linear_attention"]["num_blocks"] == number


def test_held_out_text_without_bytes_is_refused_before_training(prepared, tmp_path, refused):
    folder = shutil.copytree(prepared, tmp_path / "tokens")
    (folder / "held_out.json").unlink()
    command = ["lm", "train", "--folder", str(tmp_path / "run"), "--tokens", str(folder), *TINY]
    refused(command, "held_out.bin must have a .json with the bytes of")
    assert not (tmp_path / "run").exists()


def test_a_byte_pair_encoding_needs_a_size(prepared, tmp_path, capsys):
    texts = str(prepared.parent / "texts")
    number, limits = "tokenizer must be bpe:SIZE with a number", "as SIZE of bpe:SIZE, got"
    for name, message in {
        "bpe": number, "bpe:many": number, "bpe:256": limits, "bpe:99999999999999999999": limits,
    }.items():  # fmt: skip
        command = ["lm", "prepare", texts, "--output", str(tmp_path / "x"), "--tokenizer", name]
        assert main(command) == 2
        assert message in capsys.readouterr().err
