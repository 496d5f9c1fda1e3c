"""Folders of prepared tokens, and stored language models."""

import contextlib
import itertools
import lzma
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from statemix.errors import OptionError, RequestError
from statemix.files import read_json, sync_directory, write_file
from statemix.lm.corpora import HELD_OUT_SHARE, CorpusReading, Document, read_corpus
from statemix.lm.hub_config import StatemixConfig
from statemix.lm.shards import TokenFile, TokenWriter, check_ids, read_tokens
from statemix.lm.text_tokenizers import (
    END,
    bytes_tokenizer,
    decode,
    digest_of,
    encode,
    end_of,
    load_tokenizer,
    train_bpe,
)
from statemix.memory import is_shortage
from statemix.training.folder import (
    CONFIG,
    ENVIRONMENT,
    check_imported,
    lock_folder,
    read_environment,
    read_summary,
)

TRAIN, HELD_OUT, TOKENIZER = "train", "held_out", "tokenizer.json"
# The last one says that all are there.
_FILES = (
    TOKENIZER,
    *(f"{name}.{end}" for name in (TRAIN, HELD_OUT) for end in ("idx", "json", "bin")),
)
_UNFINISHED = ".unfinished-tokens"
# Documents that are encoded at once, and those that a BPE is trained on at most.
_AT_ONCE = 256
_MOST_FOR_BPE = 100_000
# Bytes before a cut in which an end of a line is sought.
_NEAR_CUT = 4096
_INEXACT = "read: texts that the tokenizer does not give back exactly, so bits per byte mean little"
# The window of `xz -9e`.
_WINDOW, _PRESET = 2**26, 9 | lzma.PRESET_EXTREME


def prepare(
    sources: Sequence[str],
    folder: Path,
    *,
    tokenizer: str = "bpe:2048",
    field: str = "text",
    suffixes: Sequence[str] = (),
    most_documents: int | None = None,
    held_out: float = HELD_OUT_SHARE,
) -> dict[str, TokenFile]:
    """Write the tokens of a corpus; return "train" and "held_out" -> their tokens.

    The options are those of ``statemix lm prepare`` and :func:`statemix.lm.corpora.read_corpus`. If
    there are fewer than ``1 / held_out`` groups, or none is held out, or all are, then the end of
    the text is held out.
    """
    if not 0 < held_out < 1:
        raise RequestError(f"held_out must be between 0 and 1, got {held_out}")

    def documents(reading: CorpusReading | None = None) -> Iterator[Document]:
        every = read_corpus(sources, field=field, suffixes=suffixes, reading=reading)
        return itertools.islice(every, most_documents)

    with _all_or_none(folder) as unfinished:
        cut = _cut_of(documents(), held_out)
        texts = (text for is_held, text in _divide(documents(), held_out, cut) if not is_held)
        kind, _, number = tokenizer.partition(":")
        if kind == "bpe":
            if not number.isdecimal():
                raise RequestError(f"tokenizer must be bpe:SIZE with a number, got {tokenizer!r}")
            chosen = train_bpe(itertools.islice(texts, _MOST_FOR_BPE), int(number))
        else:
            chosen = bytes_tokenizer() if tokenizer == "bytes" else load_tokenizer(tokenizer)
        reading = CorpusReading()
        if end_of(chosen) is None:
            what = f"read: with a tokenizer that has no end of documents, such as {END}"
            reading.note(what, tokenizer)
        write_file(unfinished / TOKENIZER, chosen.to_str(pretty=True).encode())
        every, size = _divide(documents(reading), held_out, cut), chosen.get_vocab_size()
        with (
            contextlib.closing(TokenWriter(unfinished / f"{TRAIN}.bin", size)) as training,
            contextlib.closing(TokenWriter(unfinished / f"{HELD_OUT}.bin", size)) as other,
        ):
            while some := list(itertools.islice(every, _AT_ONCE)):
                tokens = encode(chosen, [text for _, text in some])
                again = decode(chosen, tokens)
                for (is_held, text), ids, back in zip(some, tokens, again, strict=True):
                    if back != text:
                        place = training.num_documents + other.num_documents
                        reading.note(_INEXACT, f"document {place}")
                    (other if is_held else training).add(ids, len(text.encode()))
            if not training.num_documents or not other.num_documents:
                found = "; ".join([f"{reading.num_bytes} bytes", *reading.sentences()])
                raise RequestError(
                    f"sources must have texts to train on and to hold out, got {found} in "
                    f"{', '.join(sources)}"
                )
            by_name = f"{held_out:g} of the groups are held out, by the SHA-256 of their names"
            by_place = f"the last {held_out:g} of the text is held out"
            info = {
                "source": list(sources),
                "split": by_name if cut is None else by_place,
                "tokenizer": tokenizer,
                "tokenizer_sha256": digest_of(chosen),
                "reading": asdict(reading),
            }
            training.finish(info)
            other.finish(info)
    return {name: read_tokens(folder / f"{name}.bin") for name in (TRAIN, HELD_OUT)}


@contextlib.contextmanager
def _all_or_none(folder: Path) -> Iterator[Path]:
    """Yield a folder for the files of prepared tokens, which then get into ``folder`` together."""
    unfinished = folder / _UNFINISHED
    with lock_folder(folder, "output"):
        if was_killed := os.path.lexists(unfinished):
            # A killed call has left it, and may have moved some of its files.
            begun = tuple(name.partition(".")[0] for name in _FILES)
            if not unfinished.is_dir() or not all(
                name.startswith(begun) for name in os.listdir(unfinished)
            ):
                raise RequestError(f"{unfinished} must not exist: prepared tokens begin there")
            shutil.rmtree(unfinished)
        existing = [name for name in _FILES if (folder / name).exists()]
        if existing and not (was_killed and len(existing) < len(_FILES)):
            raise RequestError(f"{folder / existing[0]} must not exist yet")
        unfinished.mkdir()
        try:
            yield unfinished
            for name in _FILES:
                os.replace(unfinished / name, folder / name)
            sync_directory(folder)
        finally:
            shutil.rmtree(unfinished)


def _cut_of(documents: Iterable[Document], share: float) -> int | None:
    """Return the bytes of text to train on if the groups are too few, and otherwise None."""
    groups, sides, num_bytes = set(), set(), 0
    for document in documents:
        groups.add(document.group)
        sides.add(document.is_held_out(share))
        if len(groups) * share >= 1 and len(sides) > 1:
            return None
        num_bytes += len(document.text.encode())
    return int(num_bytes * (1 - share))


def _divide(
    documents: Iterable[Document], share: float, cut: int | None
) -> Iterator[tuple[bool, str]]:
    """Yield texts, and whether they are held out: by group, or those after a cut, in bytes."""
    left = cut
    for document in documents:
        if left is None:
            yield document.is_held_out(share), document.text
            continue
        content = document.text.encode()
        place = min(left, len(content))
        if 0 < place < len(content):
            near = content.rfind(b"\n", max(0, place - _NEAR_CUT), place) + 1
            if near or (place < _NEAR_CUT and left != cut):
                place = near
            # A character has a first byte and bytes of the form 10xxxxxx.
            while content[place] & 0xC0 == 0x80:
                place -= 1
        for is_held, part in ((False, content[:place]), (True, content[place:])):
            if part:
                yield is_held, part.decode()
        left = max(0, left - len(content))


def inexact(tokens: TokenFile) -> str | None:
    """Return what is to be said of tokens whose tokenizer loses text."""
    reading = CorpusReading(**tokens.info.get("reading", {}))
    return next((said for said in reading.sentences() if said.startswith(_INEXACT)), None)


def read_prepared(folder: Path) -> tuple[TokenFile, TokenFile, Tokenizer]:
    """Return the training tokens, the held-out tokens and the tokenizer of a folder."""
    if not (folder / TOKENIZER).is_file():
        raise RequestError(f"tokens must be a folder that `statemix lm prepare` made, got {folder}")
    tokenizer = load_tokenizer(str(folder / TOKENIZER))
    parts = [read_tokens(folder / f"{name}.bin", verify=True) for name in (TRAIN, HELD_OUT)]
    for part in parts:
        wanted = part.info.get("tokenizer_sha256")
        if wanted is not None and wanted != digest_of(tokenizer):
            raise RequestError(f"{folder / TOKENIZER} must be the tokenizer of {part.path}")
    return parts[0], parts[1], tokenizer


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Let transformers print nothing between the lines of a command."""
    were_enabled = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if were_enabled:
            transformers_logging.enable_progress_bar()


def open_model(folder: Path) -> tuple[Any, Tokenizer]:
    """Do what :func:`load_language_model` does, and say which modules are to be imported."""
    try:
        return load_language_model(folder)
    except OptionError as error:
        # The folder may be that of the model within a run.
        for run in (folder, folder.resolve().parent):
            information = read_environment(run).get("information", {})
            check_imported(run / ENVIRONMENT, information.get("imports"))
        advice = "for a layer of your own, add --imports MODULE"
        raise RequestError(f"{folder}: {error}; {advice}") from error


def load_language_model(folder: Path) -> tuple[Any, Tokenizer]:
    """Return the model of a finished run, or of a folder of transformers, and its tokenizer."""
    inner = folder / "model"
    chosen = inner if (inner / "config.json").exists() else folder
    config = folder / CONFIG
    if chosen == inner and config.is_file() and "model_type" not in read_json(config, "a run"):
        # The model of a run that goes on is an old one.
        read_summary(folder)
    if not (chosen / "config.json").exists() or not (chosen / TOKENIZER).exists():
        raise RequestError(f"folder must hold a finished language model, got {folder}")
    return load_weights(chosen), load_tokenizer(str(chosen / TOKENIZER))


def load_weights(folder: Path, kind: Any = AutoModelForCausalLM) -> Any:
    """Return the model of a folder of transformers, whose weights are complete."""
    with without_progress_bars(), errors_of_strangers(folder):
        # By default, transformers asks in a terminal whether it may run the folder's code.
        model, found = kind.from_pretrained(
            folder, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True
        )
    wrong = {
        "has another shape": [name for name, *_ in found["mismatched_keys"]],
        # transformers draws it, and leaves out what the configuration does not mention.
        "is missing": found["missing_keys"],
        "is unknown": found["unexpected_keys"] if isinstance(model.config, StatemixConfig) else (),
        "is not finite": [k for k, value in model.named_parameters() if not value.isfinite().all()],
    }
    for reason, names in wrong.items():
        if names:
            condition = f"must fit its config.json: {min(names)} {reason}"
            raise RequestError(f"weights of {folder} {condition}")
    return model.eval()


@contextlib.contextmanager
def errors_of_strangers(folder: Path) -> Iterator[None]:
    """Turn whatever transformers raises for the files of a folder into a RequestError."""
    try:
        yield
    except (RequestError, OptionError):
        raise
    except Exception as error:
        if is_shortage(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise RequestError(f"{folder} must hold a model of transformers, got {reason}") from error


def compressed_bits_per_byte(
    tokens: TokenFile, held_out: TokenFile, tokenizer: Tokenizer, *, most_bytes: int | None = None
) -> dict[str, float]:
    """Return the bits per byte of held-out text under ``xz -9e``, alone and after other text."""
    # A token has at least one byte.
    last = np.searchsorted(tokens.bounds, tokens.bounds[-1] - _WINDOW, side="right")
    before = b"".join(_texts(tokens, tokenizer, max(0, int(last) - 1)))[-_WINDOW:]
    parts, size = [], 0
    for part in _texts(held_out, tokenizer):
        parts.append(part)
        size += len(part)
        if most_bytes is not None and size >= most_bytes:
            break
    text = b"".join(parts)
    sizes = (len(lzma.compress(each, preset=_PRESET)) for each in (before, text, before + text))
    first, alone, both = sizes
    return {"xz": 8 * alone / size, "xz_given_training": 8 * (both - first) / size}


def _texts(tokens: TokenFile, tokenizer: Tokenizer, first: int = 0) -> Iterator[bytes]:
    """Yield the text of each document from the first one on."""
    for number in range(first, len(tokens.bounds) - 1):
        ids = tokens.document(number)[-_WINDOW:]
        check_ids("the text", ids, tokenizer.get_vocab_size())
        # The end of a document is no part of its text.
        yield tokenizer.decode(ids[ids != end_of(tokenizer)].tolist()).encode()
