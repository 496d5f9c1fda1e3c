"""``statemix lm evaluate``: bits per byte of held-out text, beside a compressor."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from statemix.cli.parser import Argument
from statemix.errors import RequestError
from statemix.lm.language_scores import bits_per_byte
from statemix.lm.prepared import (
    compressed_bits_per_byte,
    errors_of_strangers,
    inexact,
    open_model,
    read_prepared,
)
from statemix.lm.text_tokenizers import read_alike
from statemix.training.config import Count
from statemix.training.settings import finite


@dataclass(frozen=True)
class EvaluateText:
    """Score a language model on held-out text: bits per byte and perplexity.

    The model reads every document from its beginning and predicts each token from all tokens before
    it. A model with attention reads windows of its training length, and a model of transformers
    reads windows of its positions; each window overlaps half of the window before. For comparison,
    the compressor `xz -9e` compresses the same text twice: alone ("xz"), and after the last 64 MiB
    of the training text ("xz given training"), which is all that it can remember.

    statemix lm evaluate runs/python --tokens runs/python-tokens
    """

    folder: Annotated[Path, Argument("RUN", positional=True)]
    """Folder of a finished run, or a model folder of transformers with a tokenizer.json."""

    tokens: Path
    """Folder that `statemix lm prepare` made."""

    most_bytes: Count | None = None
    """Number of held-out bytes after which scoring stops, at the end of a document (all if not
    given)."""

    json: bool = False
    """Print JSON instead of lines."""

    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own layers."""

    def run(self) -> None:
        """Score and print."""
        model, own = open_model(self.folder)
        tokens, held_out, tokenizer = read_prepared(self.tokens)
        if not read_alike(own, tokenizer):
            raise RequestError(
                f"tokens must have the tokenizer of the model in {self.folder}, got another one in "
                f"{self.tokens}"
            )
        if not self.json and (lossy := inexact(held_out)) is not None:
            print(lossy)
        with errors_of_strangers(self.folder):
            scores = bits_per_byte(model, held_out, most_bytes=self.most_bytes)
        scores |= compressed_bits_per_byte(tokens, held_out, tokenizer, most_bytes=self.most_bytes)
        if self.json:
            print(json.dumps(finite(scores)))
            return
        for name, value in scores.items():
            print(f"{name.replace('_', ' ')}: {value:.4f}")
