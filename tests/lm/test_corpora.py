"""Corpora: what they read, how they split, and what they refuse."""

import hashlib
import json
import sys

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from statemix.errors import RequestError
from statemix.lm import corpora
from statemix.lm.corpora import Document, read_corpus
from statemix.lm.prepared import prepare, read_prepared
from statemix.lm.text_tokenizers import (
    bytes_tokenizer,
    digest_of,
    encode,
    end_of,
    load_tokenizer,
    read_alike,
    save_tokenizer,
    train_bpe,
)


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    for name in "abcdefghi":
        (folder / name).mkdir(parents=True)
        for number in range(3):
            (folder / name / f"{number}.py").write_text(f"# {name}{number}\nprint({number})\n" * 9)
    (folder / "a" / "notes.bin").write_bytes(b"\xff")
    (folder / "copy.py").write_text((folder / "a" / "0.py").read_text())
    return folder


def test_a_folder_is_split_by_its_first_level_without_copies(texts):
    documents = list(read_corpus([str(texts)]))
    # The file with another suffix and the copy are left out.
    assert len(documents) == 27
    sides = {}
    for document in documents:
        sides.setdefault(document.group, set()).add(document.is_held_out())
    assert all(len(side) == 1 for side in sides.values())
    assert list(read_corpus([str(texts)])) == documents


def test_parts_of_the_standard_library_are_left_out_at_every_level(tmp_path, monkeypatch):
    kept = ["one.py", "pkg/two.py"]
    left_out = ["pkg/tests/a.py", "pkg/test/deep/b.py", "encodings/c.py", "_sysconfigdata_x.py"]
    left_out += ["config-3.11-linux/d.py", "site-packages/e.py"]
    for name in (*kept, *left_out):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    monkeypatch.setattr(corpora.sysconfig, "get_path", lambda _: str(tmp_path))
    found = [(one.name, one.group) for one in read_corpus(["stdlib"])]
    assert found == [("one.py", "one"), ("pkg/two.py", "pkg")]


@pytest.mark.parametrize(
    ("source", "suffixes", "message"),
    [
        (".", ["py", ".c"], "suffixes must begin with a dot, got py"),
        ("nowhere", [], r"source must be stdlib, .* got 'nowhere'"),
        ("", [], "existing path, got ''"),
    ],
)
def test_requests_that_cannot_be_met_are_named(source, suffixes, message):
    with pytest.raises(RequestError, match=message):
        list(read_corpus([source], suffixes=suffixes))


def test_texts_come_once_from_all_sources_and_need_not_be_utf_8(tmp_path):
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_bytes(b"a\xffb")
    other.write_bytes(b"a\xffb")
    (document,) = read_corpus([str(one), str(other), str(one)])
    assert document == Document(str(one), "one.txt", "a\ufffdb")


def test_datasets_are_streamed(tmp_path, monkeypatch):
    """Of the hub, and files in Parquet, by the interface of `datasets`, without a network."""
    path, calls = tmp_path / "rows.parquet", []
    path.touch()

    class Stub:
        @staticmethod
        def load_dataset(*arguments, **options):
            calls.append((*arguments, options))
            yield {"text": "one", "body": "1"}
            raise ValueError("no more")

    monkeypatch.setitem(sys.modules, "datasets", Stub)
    assert next(read_corpus(["hub:owner/web:small"], field="body")).text == "1"
    documents = read_corpus([str(path)])
    assert next(documents).group == "rows.parquet:1"
    usual = {"split": "train", "streaming": True}
    parquet = ("parquet", {"data_files": str(path), **usual})
    assert calls == [("owner/web", "small", usual), parquet]
    with pytest.raises(RequestError, match=r"rows\.parquet cannot be read: no more"):
        next(documents)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RequestError, match=r"rows\.parquet needs datasets: pip install datasets"):
        next(read_corpus([str(path)]))


def test_a_tokenizer_that_does_not_exist_is_named(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(RequestError, match="tokenizer must be bytes, bpe:SIZE, a file or a model"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(RequestError, match=r"tokenizer must exist, got .*other\.json"):
        load_tokenizer(str(tmp_path / "other.json"))

    class Hub:
        @staticmethod
        def from_pretrained(name):
            raise OSError(f"{name} is not a model")

    monkeypatch.setattr("statemix.lm.text_tokenizers.Tokenizer", Hub)
    with pytest.raises(RequestError, match=r"got 'nobody/nothing' .nobody/nothing is not a model"):
        load_tokenizer("nobody/nothing")
    with pytest.raises(
        RequestError, match=r"vocab_size must be in 257\.\.2147483648, as SIZE of .*, got 9"
    ):
        train_bpe(["text"], 9)


def test_prepared_tokens_are_those_of_the_texts(texts, tmp_path):
    prepare([str(texts)], tmp_path / "out", tokenizer="bpe:280")
    tokens, held_out, tokenizer = read_prepared(tmp_path / "out")
    documents = list(read_corpus([str(texts)]))
    for part, side in ((tokens, False), (held_out, True)):
        wanted = [d.text for d in documents if d.is_held_out() is side]
        found = [part.document(n) for n in range(len(part.bounds) - 1)]
        assert [tokenizer.decode(ids[:-1].tolist()) for ids in found] == wanted
        assert part.num_bytes == sum(len(text.encode()) for text in wanted)
    assert tokens.info["source"] == [str(texts)]


def test_a_bpe_does_not_see_held_out_text(tmp_path):
    for place in range(30):
        document = Document("", f"p{place}.txt", "")
        word = "heldout" if document.is_held_out() else "training"
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / document.group).write_text(f"{word}{place} " * 50)
    prepare([str(tmp_path / "texts")], tmp_path / "out", tokenizer="bpe:270")
    vocabulary = read_prepared(tmp_path / "out")[2].get_vocab()
    assert "training" in vocabulary
    assert not any("eld" in token for token in vocabulary)


def test_the_first_documents_and_the_bytes_of_their_texts_are_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"body": f"ä{n}"}) + "\n" for n in range(60)))
    options = {"tokenizer": "bytes", "field": "body", "most_documents": 40}
    parts = prepare([str(path)], tmp_path / "out", **options).values()
    assert sum(len(part.bounds) - 1 for part in parts) == 40
    assert sum(part.num_bytes for part in parts) == sum(len(f"ä{n}".encode()) for n in range(40))


def test_damaged_tokens_are_refused_when_they_are_read(texts, tmp_path):
    prepare([str(texts)], tmp_path / "out", tokenizer="bytes")
    path = tmp_path / "out" / "train.bin"
    path.write_bytes(path.read_bytes()[:-2] + b"aa")
    with pytest.raises(RequestError, match=r"train\.bin .*sha256|checksum"):
        read_prepared(tmp_path / "out")


def test_texts_get_no_special_tokens_but_their_end():
    tokenizer = bytes_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing("a $A", special_tokens=[("a", 64)])
    assert encode(tokenizer, ["b"]) == [[tokenizer.token_to_id("b"), 256]]


@pytest.mark.parametrize("make", [bytes_tokenizer, lambda: train_bpe(["a b"], 300)])
def test_a_text_that_spells_out_an_end_has_one_end(make):
    tokenizer, text = make(), "def f():\n\treturn 'ä€\U0001f600' \x00 <|endoftext|> two"
    digest = digest_of(tokenizer)
    (ids,) = encode(tokenizer, [text])
    assert ids.count(end_of(tokenizer)) == 1
    assert tokenizer.decode(ids[:-1]) == text
    assert digest_of(tokenizer) == digest


@pytest.mark.parametrize("end", ["</s>", "<eos>", "<|end_of_text|>"])
def test_ends_of_other_tokenizers_are_known(end):
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, end: 1}, merges=[]))
    assert end_of(tokenizer) == 1
    assert encode(tokenizer, ["a"]) == [[0, 1]]
    assert encode(Tokenizer(models.BPE(vocab={"a": 0}, merges=[])), ["a"]) == [[0]]


@pytest.mark.parametrize("make", [bytes_tokenizer, lambda: train_bpe(["ab ab " * 9], 260)])
def test_a_tokenizer_that_transformers_has_saved_reads_alike(make, tmp_path):
    save_tokenizer(make(), tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    saved(["ab", "ab ab ab"], padding=True, truncation=True, max_length=2)
    saved.save_pretrained(tmp_path / "again")
    stored = json.loads((tmp_path / "again" / "tokenizer.json").read_text())
    assert stored["truncation"]["max_length"] == 2
    assert stored["padding"] is not None
    again = load_tokenizer(str(tmp_path / "again"))
    assert read_alike(make(), again)
    # Texts are neither cut nor padded.
    texts = ["ab", "ab ab ab"]
    assert encode(again, texts) == encode(make(), texts)
    again.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert not read_alike(make(), again)


def decoded(folder):
    """Return the texts of the training tokens and of the held-out tokens."""
    *parts, tokenizer = read_prepared(folder)
    return [
        [tokenizer.decode(part.document(n)[:-1].tolist()) for n in range(len(part.bounds) - 1)]
        for part in parts
    ]


@pytest.mark.parametrize(
    ("texts", "share", "held_out"),
    [
        # A document is cut at the end of a line, or between characters if no line ends nearby.
        (["ä" * 100], 0.305, ["ä" * 31]),
        (["a\n" + "b" * 9998], 0.2, ["b" * 2000]),
        (["one\n" * 50, "two\n" * 50, "three"], 0.3, ["two\n" * 30, "three"]),
        (["one\n" * 50, "b" * 190], 0.48, ["b" * 190]),
    ],
)
def test_few_groups_are_split_by_position(tmp_path, texts, share, held_out):
    (tmp_path / "texts").mkdir()
    for place, text in enumerate(texts):
        (tmp_path / "texts" / f"{place}.txt").write_text(text)
    made = prepare([str(tmp_path / "texts")], tmp_path / "out", tokenizer="bytes", held_out=share)
    found = decoded(tmp_path / "out")
    assert found[1] == held_out
    assert "".join(found[0] + found[1]) == "".join(texts)
    assert made["train"].info["split"] == f"the last {share:g} of the text is held out"
    assert made["train"].num_bytes == len("".join(found[0]).encode())


@pytest.mark.parametrize("share", [0.02, 1 / 8, 0.9])
def test_groups_are_held_out_by_a_share(tmp_path, share):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(1000)))
    made = prepare([str(path)], tmp_path / "out", tokenizer="bytes", held_out=share)
    assert (len(made["held_out"].bounds) - 1) / 1000 == pytest.approx(share, abs=0.025)
    if share == 1 / 8:
        first = [hashlib.sha256(f"rows.jsonl:{n}".encode()).digest() for n in range(1, 1001)]
        held_out = [f"text {n}" for n, one in enumerate(first) if one[3] % 8 == 0]
        assert decoded(tmp_path / "out")[1] == held_out


@pytest.mark.parametrize(
    ("text", "share", "message"),
    [
        ("a", 1 / 8, r"sources must have texts to train on and to hold out, got 1 bytes in"),
        ("ab", 1, "held_out must be between 0 and 1, got 1"),
        ("ab", float("nan"), "held_out must be between 0 and 1, got nan"),
    ],
)
def test_what_cannot_be_split_is_refused(tmp_path, text, share, message):
    (tmp_path / "one.txt").write_text(text)
    with pytest.raises(RequestError, match=message):
        prepare([str(tmp_path / "one.txt")], tmp_path / "out", tokenizer="bytes", held_out=share)
    assert not (tmp_path / "out").exists()
