"""Folders of prepared tokens, and stored language models."""

import contextlib
import itertools
import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from statemix.errors import OptionError, RequestError
from statemix.files import write_file
from statemix.lm.corpora import HELD_OUT_SHARE, CorpusReading, Document, read_corpus
from statemix.lm.hub_config import StatemixConfig
from statemix.lm.shards import (
    TokenFile,
    TokenWriter,
    check_ids,
    check_new,
    read_tokens,
    with_suffix,
)
from statemix.lm.text_tokenizers import (
    bytes_tokenizer,
    decode,
    digest_of,
    encode,
    end_of,
    load_tokenizer,
    read_alike,
    train_bpe,
)
from statemix.memory import is_shortage
from statemix.training.folder import lock_folder

TRAIN, HELD_OUT, TOKENIZER = "train", "held_out", "tokenizer.json"
# Documents that are encoded at once, and those that a BPE is trained on at most.
_AT_ONCE = 256
_MOST_FOR_BPE = 100_000
# Bytes before a cut in which an end of a line is sought.
_NEAR_CUT = 4096
_INEXACT = "texts that the tokenizer does not give back exactly, so bits per byte mean little"
# The window of `xz -9e`.
_WINDOW = 2**26


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
    """Write the tokens of a corpus: one file to train on, one that is held out.

    Args:
        sources: as in :func:`statemix.lm.corpora.read_corpus`.
        folder: folder that receives the files.
        tokenizer: "bytes"; "bpe:SIZE", trained on the training split; a file; or a model.
        field: as in :func:`statemix.lm.corpora.read_corpus`.
        suffixes: as in :func:`statemix.lm.corpora.read_corpus`.
        most_documents: number of documents to read; None means all.
        held_out: share of the text to hold out. The name of a group decides whether the group is
            held out. If there are fewer than ``1 / held_out`` groups, or none is held out, or all
            are, then the end of the text is held out.

    Returns:
        "train" and "held_out" -> their tokens. Their ``info`` states how the text was split, and
        under "reading" what was read and left out, as :class:`statemix.lm.corpora.CorpusReading`.

    Raises:
        RequestError: if a source cannot be read, there is no such tokenizer, a file exists, or
            another process is using the folder. The files of a killed call are replaced.
    """
    if not 0 < held_out < 1:
        raise RequestError(f"held_out must be between 0 and 1, got {held_out}")

    def documents(reading: CorpusReading | None = None) -> Iterator[Document]:
        every = read_corpus(sources, field=field, suffixes=suffixes, reading=reading)
        return itertools.islice(every, most_documents)

    with lock_folder(folder, "output"):
        stored = folder / TOKENIZER
        killed = with_suffix(folder / HELD_OUT, ".bin.partial").exists()
        has_tokenizer = stored.exists() and not killed
        _forget_half(folder)
        for name in (TRAIN, HELD_OUT):
            check_new(folder / name)
        cut = _cut_of(documents(), held_out)
        texts = (text for is_held, text in _divide(documents(), held_out, cut) if not is_held)
        chosen = _tokenizer(tokenizer, texts)
        if has_tokenizer and digest_of(load_tokenizer(str(stored))) != digest_of(chosen):
            raise RequestError(f"{stored} must not exist yet")
        writers: dict[str, TokenWriter] = {}
        reading = CorpusReading()
        try:
            for name in (TRAIN, HELD_OUT):
                writers[name] = TokenWriter(folder / name, chosen.get_vocab_size())
            every = _divide(documents(reading), held_out, cut)
            while some := list(itertools.islice(every, _AT_ONCE)):
                tokens = encode(chosen, [text for _, text in some])
                again = decode(chosen, tokens)
                for (is_held, text), ids, back in zip(some, tokens, again, strict=True):
                    if back != text:
                        number = sum(writer.num_documents for writer in writers.values())
                        reading.remark(_INEXACT, f"document {number}")
                    writers[HELD_OUT if is_held else TRAIN].add(ids, len(text.encode()))
            if not all(writer.num_documents for writer in writers.values()):
                found = "; ".join([f"{reading.num_bytes} bytes", *reading.sentences()])
                raise RequestError(
                    f"sources must have texts to train on and to hold out, got {found} in "
                    f"{', '.join(sources)}"
                )
            split = f"{held_out:g} of the groups are held out, by the SHA-256 of their names"
            if cut is not None:
                split = f"the last {held_out:g} of the text is held out"
            info = {
                "source": list(sources),
                "split": split,
                "tokenizer": tokenizer,
                "tokenizer_sha256": digest_of(chosen),
                "reading": asdict(reading),
            }
            write_file(stored, chosen.to_str(pretty=True).encode())
            return {name: read_tokens(writer.finish(info)) for name, writer in writers.items()}
        except BaseException:
            for writer in writers.values():
                writer.discard()
            if not has_tokenizer:
                stored.unlink(missing_ok=True)
            raise


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
    """Yield texts, and whether they are held out.

    Args:
        documents: the documents.
        share: share of the groups that is held out.
        cut: bytes of text to train on, up to the end of a line; None splits by group.
    """
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
    """Return a context in which transformers prints nothing between the lines of a command."""
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
    with without_progress_bars(), errors_of_strangers(chosen):
        # By default, transformers asks in a terminal whether it may run the folder's code.
        model, found = AutoModelForCausalLM.from_pretrained(
            chosen, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True
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
            raise RequestError(
                f"weights of {chosen} must fit its config.json: {min(names)} {reason}"
            )
    return model.eval(), load_tokenizer(str(chosen / TOKENIZER))


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
    """Return the bits per byte of held-out text under ``xz -9e``.

    Args:
        tokens: the training text. "xz_given_training" first compresses its last 64 MiB: the window
            of ``xz -9e`` forgets what comes before.
        held_out: the text.
        tokenizer: their tokenizer.
        most_bytes: stop after the document that reaches this number of bytes.
    """
    before = _last_text(tokens, tokenizer)
    first, _ = _xz([before])
    alone, size = _xz(_texts(held_out, tokenizer, most_bytes))
    both, _ = _xz(itertools.chain([before], _texts(held_out, tokenizer, most_bytes)))
    return {"xz": 8 * alone / size, "xz_given_training": 8 * (both - first) / size}


def _texts(tokens: TokenFile, tokenizer: Tokenizer, most_bytes: int | None) -> Iterator[bytes]:
    """Yield the text of each document, up to the one that reaches a number of bytes."""
    size = 0
    for number in range(len(tokens.bounds) - 1):
        text = _text(tokens.document(number), tokenizer)
        yield text
        size += len(text)
        if most_bytes is not None and size >= most_bytes:
            return


def _last_text(tokens: TokenFile, tokenizer: Tokenizer) -> bytes:
    """Return the end of all text, as much as the window of the compressor holds."""
    parts, size, number = [], 0, len(tokens.bounds) - 1
    while number and size < _WINDOW:
        number -= 1
        # A token has at least one byte.
        parts.append(_text(tokens.document(number)[-_WINDOW:], tokenizer))
        size += len(parts[-1])
    return b"".join(reversed(parts))[-_WINDOW:]


def _text(ids: NDArray[Any], tokenizer: Tokenizer) -> bytes:
    # The end of a document is no part of its text.
    check_ids("the text", ids, tokenizer.get_vocab_size())
    return tokenizer.decode(ids[ids != end_of(tokenizer)].tolist()).encode()


def _xz(parts: Iterable[bytes]) -> tuple[int, int]:
    """Return the bytes of a text after compression, and before."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    compressor = lzma.LZMACompressor(filters=filters)
    compressed = size = 0
    for part in parts:
        compressed += len(compressor.compress(part))
        size += len(part)
    return compressed + len(compressor.flush()), size
