"""Tokenizers by name: bytes, a byte-level BPE trained on a corpus, a file, or the hub's."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from statemix.errors import RequestError
from statemix.files import write_file

# The token after every document, and the one that fills rows of a batch.
END, PAD = "<|endoftext|>", "<|padding|>"
_ENDS = (END, "</s>", "<eos>", "<|end_of_text|>")
_PADDINGS = (PAD, "<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>")
_LARGEST = 2**31


def bytes_tokenizer() -> Tokenizer:
    """Return the tokenizer whose tokens are the 256 bytes, and the end of a document."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: place for place, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab | {END: len(vocab)}, merges=[]))
    return _byte_level(tokenizer)


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of ``vocab_size`` tokens: the 256 bytes, an end, and merges."""
    if not 257 <= vocab_size <= _LARGEST:
        limits = f"257..{_LARGEST}, as SIZE of bpe:SIZE"
        raise RequestError(f"vocab_size must be in {limits}, got {vocab_size}")
    tokenizer = _byte_level(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer of a file, or of a model of the hub, without truncation and padding."""
    path = Path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    if path.suffix == ".json" and not path.exists():
        raise RequestError(f"tokenizer must exist, got {path}")
    try:
        if path.exists():
            tokenizer = Tokenizer.from_buffer(path.read_bytes())
        else:
            tokenizer = Tokenizer.from_pretrained(name)
    # The library raises plain exceptions.
    except Exception as error:
        known = "tokenizer must be bytes, bpe:SIZE, a file or a model"
        raise RequestError(f"{known}, got {name!r} ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Store a tokenizer as ``AutoTokenizer`` loads it, with an end of a document and padding.

    These differ, as data collators give padding no label, and a model has to learn to stop. Tokens
    around a text are left out, as by :func:`encode`: the model has not read any.
    """
    tokenizer, padding = with_padding(tokenizer)
    parts = json.loads(tokenizer.to_str()) | {"post_processor": None}
    Tokenizer.from_str(json.dumps(parts)).save(str(folder / "tokenizer.json"))
    # On the left, the next token follows the last one of a prompt.
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "padding_side": "left",
        "pad_token": tokenizer.id_to_token(padding),
    }
    end = end_of(tokenizer)
    if end is not None:
        config |= dict.fromkeys(("bos_token", "eos_token"), tokenizer.id_to_token(end))
    write_file(folder / "tokenizer_config.json", (json.dumps(config, indent=2) + "\n").encode())


def with_padding(tokenizer: Tokenizer) -> tuple[Tokenizer, int]:
    """Return a tokenizer with a token for padding, ``PAD`` if it had none, and its id."""
    padding = _id_of(tokenizer, _PADDINGS)
    if padding is None:
        tokenizer, padding = Tokenizer.from_str(tokenizer.to_str()), tokenizer.get_vocab_size()
        tokenizer.add_special_tokens([PAD])
    return tokenizer, padding


def digest_of(tokenizer: Tokenizer) -> str:
    """Return the sha256 of everything that decides how a tokenizer reads text."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def read_alike(one: Tokenizer, other: Tokenizer) -> bool:
    """Return whether two tokenizers read alike, but for what transformers adds when it saves one.

    These are tokens around a text, which :func:`encode` leaves out, and its end and padding.
    """

    def reading(tokenizer: Tokenizer) -> dict[str, Any]:
        parts: dict[str, Any] = json.loads(tokenizer.to_str())
        for name in ("truncation", "padding", "post_processor"):
            del parts[name]
        parts["end"] = end_of(tokenizer)
        roles = {parts["end"], _id_of(tokenizer, _PADDINGS)}
        parts["added_tokens"] = [each for each in parts["added_tokens"] if each["id"] not in roles]
        return parts

    return reading(one) == reading(other)


def end_of(tokenizer: Tokenizer) -> int | None:
    """Return the id of the end of a document, or None if the tokenizer has none."""
    return _id_of(tokenizer, _ENDS)


def _id_of(tokenizer: Tokenizer, names: Sequence[str]) -> int | None:
    numbers = (tokenizer.token_to_id(name) for name in names)
    return next((int(number) for number in numbers if number is not None), None)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of texts, each followed by the end of a document if there is one."""
    end = end_of(tokenizer)
    # A text that spells out a special token has its characters.
    tokenizer.encode_special_tokens = True
    tail = [] if end is None else [end]
    return [[*one.ids, *tail] for one in tokenizer.encode_batch(texts, add_special_tokens=False)]


def decode(tokenizer: Tokenizer, documents: Sequence[list[int]]) -> list[str]:
    """Return the texts of the token ids that :func:`encode` has returned."""
    ids = documents if end_of(tokenizer) is None else [one[:-1] for one in documents]
    texts: list[str] = tokenizer.decode_batch(ids, skip_special_tokens=False)
    return texts


def _byte_level(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
