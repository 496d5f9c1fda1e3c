"""``statemix lm prepare``: texts become files of tokens."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from statemix.cli.parser import Argument
from statemix.lm.corpora import HELD_OUT_SHARE, CorpusReading
from statemix.lm.prepared import prepare
from statemix.training.config import Count


@dataclass(frozen=True)
class Prepare:
    """Turn texts into tokens: a file for training, a file of held-out text, and the tokenizer.

    Sources are "stdlib" (the standard library of this Python), "hub:NAME" or "hub:NAME:CONFIG" (a
    dataset of the Hugging Face hub, streamed), text files, rows in .jsonl, .json, .csv or .parquet,
    and folders. Files may end in .gz, too. The command says what it leaves out:

    statemix lm prepare stdlib --output data/python

    statemix lm prepare notes/ books.jsonl --output data/mine --tokenizer bpe:8192

    statemix lm prepare hub:HuggingFaceFW/fineweb:sample-10BT --output data/fineweb
    --tokenizer EleutherAI/gpt-neox-20b --documents 100000
    """

    sources: Annotated[tuple[str, ...], Argument("SOURCE", positional=True)]
    """Texts to read, in this order. Empty and repeated documents are left out."""

    output: Path
    """Folder that receives train.bin and held_out.bin, each with a .idx and a .json file, and
    tokenizer.json."""

    tokenizer: str = "bpe:2048"
    """bytes; bpe:SIZE, a byte-pair encoding trained on the training text; a tokenizer.json; or the
    name of a model on the Hugging Face hub."""

    field: str = "text"
    """Name of the field that holds the text in rows."""

    suffixes: tuple[str, ...] = ()
    """Endings of the files to read in folders (.py .txt .md .rst if not given)."""

    documents: Count | None = None
    """Largest number of documents to read (all if not given)."""

    held_out: float = HELD_OUT_SHARE
    """Share of the text to hold out. The name of a document's group decides whether the document is
    held out; if there are too few groups, the end of the text is held out."""

    def run(self) -> None:
        """Prepare the tokens and print their numbers."""
        made = prepare(
            self.sources,
            self.output,
            tokenizer=self.tokenizer,
            field=self.field,
            suffixes=self.suffixes,
            most_documents=self.documents,
            held_out=self.held_out,
        )
        reading = CorpusReading(**made["train"].info["reading"])
        for sentence in reading.sentences():
            print(sentence, file=sys.stderr)
        print(
            f"read: {reading.files:,} files, {reading.num_bytes:,} bytes of text; "
            f"{made['train'].info['split']}"
        )
        for name, tokens in made.items():
            documents = len(tokens.bounds) - 1
            print(
                f"{name}: {documents:,} documents, {tokens.num_bytes:,} bytes, "
                f"{len(tokens.ids):,} tokens in {tokens.path}"
            )
