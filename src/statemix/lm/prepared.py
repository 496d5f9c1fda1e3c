"""Folders of prepared tokens, and stored language models."""

import contextlib
import itertools
import lzma
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from statemix.errors import RequestError
from statemix.lm.corpora import HELD_OUT_SHARE, Document, read_corpus
from statemix.lm.shards import TokenFile, TokenWriter, check_new, read_tokens, with_suffix
from statemix.lm.text_tokenizers import (
    bytes_tokenizer,
    digest_of,
    encode,
    end_of,
    load_tokenizer,
    read_alike,
    train_bpe,
)

TRAIN, HELD_OUT, TOKENIZER = "train", "held_out", "tokenizer.json"
_SPLIT = f"sha256 of the group, modulo {HELD_OUT_SHARE}, is 0 for held-out groups"
# Documents that are encoded at once, and those that a BPE is trained on at most.
_AT_ONCE = 256
_MOST_FOR_BPE = 100_000


def prepare(
    sources: Sequence[str],
    folder: Path,
    *,
    tokenizer: str = "bpe:2048",
    field: str = "text",
    suffixes: Sequence[str] = (),
    most_documents: int | None = None,
) -> dict[str, TokenFile]:
    """Write the tokens of a corpus: one file to train on, one that is held out.

    Args:
        sources: as in :func:`statemix.lm.corpora.read_corpus`.
        folder: folder that receives the files.
        tokenizer: "bytes"; "bpe:SIZE", trained on the training split; a file; or a model.
        field: as in :func:`statemix.lm.corpora.read_corpus`.
        suffixes: as in :func:`statemix.lm.corpora.read_corpus`.
        most_documents: number of documents to read; None means all.

    Returns:
        "train" and "held_out" -> their tokens.

    Raises:
        RequestError: if a source cannot be read, there is no such tokenizer, or a file exists. The
            files of a killed call are replaced.
    """

    def documents() -> Iterator[Document]:
        every = read_corpus(sources, field=field, suffixes=suffixes)
        return itertools.islice(every, most_documents)

    _forget_half(folder)
    for name in (TRAIN, HELD_OUT):
        check_new(folder / name)
    chosen = _tokenizer(tokenizer, (one.text for one in documents() if not one.is_held_out))
    writers: dict[str, TokenWriter] = {}
    try:
        for name in (TRAIN, HELD_OUT):
            writers[name] = TokenWriter(folder / name, chosen.get_vocab_size())
        every = documents()
        while some := list(itertools.islice(every, _AT_ONCE)):
            for one, ids in zip(some, encode(chosen, [one.text for one in some]), strict=True):
                writers[HELD_OUT if one.is_held_out else TRAIN].add(ids, len(one.text.encode()))
        if not any(writer.num_documents for writer in writers.values()):
            raise RequestError(f"sources must have texts, got none in {', '.join(sources)}")
        empty = [name for name, writer in writers.items() if not writer.num_documents]
        if empty:
            raise RequestError(
                f"sources must have groups on both sides of the split, got none for {empty[0]}; "
                "a group is a top-level folder, package or document, and the hash of its name "
                "decides; about one of eight is held out, so add groups"
            )
        info = {
            "source": list(sources),
            "split": _SPLIT,
            "tokenizer": tokenizer,
            "tokenizer_sha256": digest_of(chosen),
        }
        chosen.save(str(folder / TOKENIZER))
        return {name: read_tokens(writer.finish(info)) for name, writer in writers.items()}
    except BaseException:
        for writer in writers.values():
            writer.discard()
        raise


def _forget_half(folder: Path) -> None:
    """Let the training tokens count as unfinished if a killed call has finished them alone."""
    half = with_suffix(folder / HELD_OUT, ".bin.partial").exists()
    if half and all(with_suffix(folder / TRAIN, one).exists() for one in (".bin", ".json")):
        with_suffix(folder / TRAIN, ".bin").replace(with_suffix(folder / TRAIN, ".bin.partial"))


def _tokenizer(name: str, texts: Iterable[str]) -> Tokenizer:
    if name == "bytes":
        return bytes_tokenizer()
    kind, _, size = name.partition(":")
    if kind == "bpe":
        if not size.isdecimal():
            raise RequestError(f"tokenizer must be bpe:SIZE with a number, got {name!r}")
        return train_bpe(itertools.islice(texts, _MOST_FOR_BPE), int(size))
    return load_tokenizer(name)


def read_prepared(folder: Path) -> tuple[TokenFile, TokenFile, Tokenizer]:
    """Return the training tokens, the held-out tokens and the tokenizer of a folder.

    Raises:
        RequestError: if a file is missing or damaged, or the tokenizer is another one.
    """
    if not (folder / TOKENIZER).is_file():
        raise RequestError(f"tokens must be a folder that `statemix lm prepare` made, got {folder}")
    tokenizer = load_tokenizer(str(folder / TOKENIZER))
    parts = [read_tokens(folder / f"{name}.bin", verify=True) for name in (TRAIN, HELD_OUT)]
    for part in parts:
        wanted = part.info.get("tokenizer_sha256")
        if wanted is not None and wanted != digest_of(tokenizer):
            raise RequestError(f"{folder / TOKENIZER} must be the tokenizer of {part.path}")
    return parts[0], parts[1], tokenizer


def check_tokenizers(folder: Path, own: Tokenizer, tokens: Path, other: Tokenizer) -> None:
    """Check that a model reads tokens of its own tokenizer.

    Args:
        folder: folder of the model.
        own: its tokenizer.
        tokens: folder of the tokens.
        other: their tokenizer.

    Raises:
        RequestError: if the tokenizers differ.
    """
    if not read_alike(own, other):
        raise RequestError(
            f"tokens must have the tokenizer of the model in {folder}, got another one in {tokens}"
        )


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Return a context in which transformers draws no bars between the lines of a command."""
    were_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            transformers_logging.enable_progress_bar()


def model_folder(folder: Path) -> Path:
    """Return the folder of the model of a run; another folder is that of a model itself."""
    inner = folder / "model"
    return inner if (inner / "config.json").exists() else folder


def load_language_model(folder: Path) -> tuple[Any, Tokenizer]:
    """Return the model of a finished run, or of a folder of transformers, and its tokenizer.

    Raises:
        RequestError: if there is none.
    """
    chosen = model_folder(folder)
    if not (chosen / "config.json").exists() or not (chosen / TOKENIZER).exists():
        raise RequestError(f"folder must hold a finished language model, got {folder}")
    with without_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(chosen)
    return model.eval(), load_tokenizer(str(chosen / TOKENIZER))


def compressed_bits_per_byte(
    tokens: TokenFile, held_out: TokenFile, tokenizer: Tokenizer, *, most_bytes: int | None = None
) -> dict[str, float]:
    """Return the bits per byte of held-out text under ``xz -9e``.

    Args:
        tokens: the training text, which "xz_given_training" compresses first.
        held_out: the text.
        tokenizer: their tokenizer.
        most_bytes: stop after the document that reaches this number of bytes.
    """
    text = _text(held_out, tokenizer, most_bytes)
    before = _text(tokens, tokenizer, None)
    alone, first, both = (_xz(part) for part in (text, before, before + text))
    return {"xz": 8 * alone / len(text), "xz_given_training": 8 * (both - first) / len(text)}


def _text(tokens: TokenFile, tokenizer: Tokenizer, most_bytes: int | None) -> bytes:
    parts, size, end = [], 0, end_of(tokenizer)
    for number in range(len(tokens.bounds) - 1):
        ids = tokens.document(number)
        # The end of a document is no part of its text.
        parts.append(tokenizer.decode(ids[ids != end].tolist()).encode())
        size += len(parts[-1])
        if most_bytes is not None and size >= most_bytes:
            break
    return b"".join(parts)


def _xz(text: bytes) -> int:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    return len(lzma.compress(text, filters=filters))
