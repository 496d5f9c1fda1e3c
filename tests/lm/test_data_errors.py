"""Damaged data, changed tokenizers and full disks: clear errors, and nothing is lost."""

import errno
import itertools
import json
import os
import resource
import shutil

import numpy as np
import pytest
import torch
from tests.lm.conftest import TINY, Killed, write_documents

from statemix import files
from statemix.cli.lm import train_text
from statemix.cli.main import main
from statemix.errors import RequestError
from statemix.lm import prepared as prepared_tokens
from statemix.lm import shards
from statemix.lm.prepared import prepare, read_prepared
from statemix.lm.shards import read_tokens
from statemix.training.checkpoint import load_tensors


@pytest.fixture
def written(tmp_path):
    return write_documents(tmp_path / "part", 50, [([1, 2, 3], 5), ([4], 1)], {})


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for place in range(12):
        # Less than a buffer, so that closing a file writes again.
        (folder / f"{place}.txt").write_text(f"text number {place} " * 200)
    return folder


@pytest.fixture
def copied(prepared, tmp_path):
    """A copy of the prepared tokens, which a test may damage."""
    return shutil.copytree(prepared, tmp_path / "tokens")


@pytest.mark.parametrize(
    ("suffix", "place", "message"),
    [
        (".bin", None, r"part\.bin must have 8 bytes by its index, got 7"),
        (".idx", None, r"part\.idx must have \d+ bytes by its header, got \d+"),
        (".idx", 9, r"part\.idx must have version 1 and a dtype code in .*, got 84 and 8"),
        (".bin", 3, r"part\.bin must have the sha256 \w{64}, got \w{64}"),
        (".json", 3, r"part\.json must have the format 'statemix tokens 1'"),
    ],
)
def test_damaged_files_are_named(written, suffix, place, message):
    path = written.with_suffix(suffix)
    content = bytearray(path.read_bytes())
    if place is None:
        content.pop()
    else:
        content[place] ^= 0x55
    path.write_bytes(content)
    with pytest.raises(RequestError, match=message):
        read_tokens(written, verify=True)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"sha256": None}, r"the sha256 of part\.bin and part\.idx alone"),
        ({"sha256": {"/dev/zero": "0"}}, "the sha256 of"),
        ({"document_bytes": [5]}, "the bytes of 2 documents"),
        ({"document_bytes": ["5", 1]}, "whole numbers as vocab_size and"),
        ({"document_bytes": [10**400, 1]}, "whole numbers as vocab_size and"),
        ({"vocab_size": "50"}, "whole numbers as vocab_size and"),
    ],
)
def test_descriptions_of_strangers_are_checked(written, entry, message):
    path = written.with_suffix(".json")
    path.write_text(json.dumps(json.loads(path.read_text()) | entry))
    with pytest.raises(RequestError, match=rf"part\.json must have {message}"):
        read_tokens(written, verify=True)
    path.write_text("[" * 100_000)
    with pytest.raises(RequestError, match=r"part\.json must hold the description of tokens"):
        read_tokens(written)


@pytest.mark.parametrize("documents", [[0, 7, 2], [0, -1, 2], [0, 2, 1, 2]])
def test_documents_are_counted_in_order(written, documents):
    path = written.with_suffix(".idx")
    head = bytearray(path.read_bytes()[: -8 * 3])
    head[26:34] = len(documents).to_bytes(8, "little")
    path.write_bytes(head + np.array(documents, "<i8").tobytes())
    with pytest.raises(RequestError, match=r"part\.idx must count the sequences"):
        read_tokens(written)


def test_checksums_are_compared_once_and_again_after_a_change(written, monkeypatch):
    read_tokens(written, verify=True)
    with monkeypatch.context() as patch:
        patch.delattr(shards.hashlib, "file_digest")
        read_tokens(written, verify=True)
    content = bytearray(written.read_bytes())
    content[0] ^= 1
    written.write_bytes(content)
    for _ in range(2):
        with pytest.raises(RequestError, match="must have the sha256"):
            read_tokens(written, verify=True)


def test_empty_corpora_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "blank.txt").write_text("")
    with pytest.raises(RequestError, match=r"got 0 bytes; .*empty texts: 1 \(blank.txt\) in"):
        prepare([str(tmp_path / "empty")], tmp_path / "out", tokenizer="bpe:300")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_no_half_of_the_tokens(texts, tmp_path):
    """The limit of the size of a file stands for the end of the disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            prepare([str(texts)], tmp_path / "out", tokenizer="bytes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "out" / ".unfinished-tokens" / "train.bin")
    assert not (tmp_path / "out").exists()
    prepare([str(texts)], tmp_path / "out", tokenizer="bytes")


@pytest.mark.parametrize("number", [0, 4, 6])
def test_what_a_killed_call_leaves_is_replaced(texts, tmp_path, monkeypatch, number):
    """Three files of each split, and the tokenizer, get their places by a rename."""
    prepare([str(texts)], tmp_path / "whole", tokenizer="bytes")
    rename, count = os.replace, itertools.count()

    def dying(*arguments, **options):
        if next(count) == number:
            raise Killed
        rename(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        patch.setattr(prepared_tokens.shutil, "rmtree", lambda folder: None)
        with pytest.raises(Killed):
            prepare([str(texts)], tmp_path / "run-tokens", tokenizer="bytes")
    with monkeypatch.context() as patch:
        asked = []
        patch.setattr(train_text, "prepare", lambda *arguments: asked.append(arguments))
        (tmp_path / "run").mkdir()
        patch.chdir(tmp_path / "run")
        for folder in (str(tmp_path / "run"), "."):
            assert main(["lm", "train", "--folder", folder, *TINY]) == 2
    assert asked == [(["stdlib"], tmp_path / "run-tokens")] * 2
    prepare([str(texts)], tmp_path / "run-tokens", tokenizer="bytes")
    # What is whole is not prepared again.
    monkeypatch.setattr(train_text, "prepare", pytest.fail)
    assert main(["lm", "train", "--folder", str(tmp_path / "run"), *TINY, "--steps", "1"]) == 0
    names = [path.name for path in (tmp_path / "whole").iterdir()]
    assert ".unfinished-tokens" not in names
    for name in names:
        whole, again = (tmp_path / folder / name for folder in ("whole", "run-tokens"))
        assert whole.read_bytes() == again.read_bytes()


def test_a_folder_that_another_has_made_is_left_alone(texts, tmp_path):
    folder = tmp_path / "out" / ".unfinished-tokens"
    folder.mkdir(parents=True)
    (folder / "draft.txt").write_text("mine")
    with pytest.raises(RequestError, match=r"unfinished-tokens must not exist"):
        prepare([str(texts)], tmp_path / "out", tokenizer="bytes")
    assert (folder / "draft.txt").read_text() == "mine"


def test_what_is_whole_stays_even_if_the_last_step_was_lost(texts, tmp_path):
    prepare([str(texts)], tmp_path / "out", tokenizer="bytes")
    (tmp_path / "out" / ".unfinished-tokens").mkdir()
    with pytest.raises(RequestError, match="must not exist yet"):
        prepare([str(texts)], tmp_path / "out", tokenizer="bytes")


def test_files_of_the_user_are_not_replaced(texts, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b"mine")
    with pytest.raises(RequestError, match=r"tokenizer.json must not exist yet"):
        prepare([str(texts)], tmp_path, tokenizer="bytes")
    assert (tmp_path / "tokenizer.json").read_bytes() == b"mine"


def test_a_full_disk_keeps_the_last_checkpoint(train_tiny, tmp_path, monkeypatch, capsys):
    words = ("--steps", "4", "--checkpoint-every-s", "0")
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        count, write = itertools.count(1), files.write_synced

        def failing(path, content):
            if path.name == "model.safetensors" and next(count) == 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            write(path, content)

        patch.setattr(files, "write_synced", failing)
        assert train_tiny(*words) == 1
    assert "checkpoints/unfinished/model.safetensors" in capsys.readouterr().err
    assert train_tiny(*words) == 0
    assert "resumed at step" in capsys.readouterr().err
    resumed = load_tensors((run / "model.safetensors").read_bytes())
    shutil.rmtree(run)
    assert train_tiny(*words) == 0
    whole = load_tensors((run / "model.safetensors").read_bytes())
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_a_changed_tokenizer_is_refused(prepared, copied, train_tiny, tmp_path, capsys, refused):
    texts, other = prepared.parent / "texts", tmp_path / "other"
    run = str(tmp_path / "run")
    assert train_tiny("--steps", "3") == 0
    prepare([str(texts)], other, tokenizer="bpe:290")
    capsys.readouterr()
    assert main(["lm", "evaluate", run, "--tokens", str(other)]) == 2
    assert "tokens must have the tokenizer of the model in" in capsys.readouterr().err
    assert main(["lm", "train", "--folder", run, "--tokens", str(other), *TINY]) == 2
    assert "pad_token_id=300, not 290" in capsys.readouterr().err
    shutil.copy(other / "tokenizer.json", copied / "tokenizer.json")
    with pytest.raises(RequestError, match="must be a folder that `statemix lm prepare` made"):
        read_prepared(tmp_path)
    for command in (["evaluate", run], ["train", "--folder", run, *TINY]):
        refused(["lm", *command, "--tokens", str(copied)], "must be the tokenizer of")


@pytest.mark.parametrize(
    ("split", "ids", "message"),
    [
        ("held_out", [5, 310], "document 0 of {}/held_out.bin must have tokens in 0..303"),
        ("train", [5, -1], "the text must have tokens in 0..299, the vocabulary, got -1..5"),
        ("held_out", [], "held_out.bin must have a .json with the bytes of each document"),
    ],
)
def test_tokens_that_a_model_cannot_score_are_named(
    copied, train_tiny, tmp_path, capsys, monkeypatch, split, ids, message
):
    assert train_tiny("--steps", "1") == 0
    for path in copied.glob(f"{split}.*"):
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(shards, "check_ids", lambda *_: None)
        write_documents(copied / split, 2**31, [(ids, len(ids))], {})
    capsys.readouterr()
    assert main(["lm", "evaluate", str(tmp_path / "run"), "--tokens", str(copied)]) == 2
    printed = capsys.readouterr()
    assert message.format(copied) in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_tokens_beyond_the_vocabulary_of_the_model_are_named(copied, tmp_path, refused):
    # Without a description, no checksum is known.
    for path in copied.glob("train.[jv]*"):
        path.unlink()
    ids = np.fromfile(copied / "train.bin", np.uint16)
    ids[:] = 400
    ids.tofile(copied / "train.bin")
    command = ["lm", "train", "--folder", str(tmp_path / "run"), "--tokens", str(copied), *TINY]
    refused([*command, "--steps", "3"], "must have tokens in 0..303, the vocabulary, got 400..400")
