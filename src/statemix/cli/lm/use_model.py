"""``statemix lm generate`` and ``statemix lm evaluate``: use a trained language model."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge

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
from statemix.lm.shards import check_ids
from statemix.lm.text_tokenizers import read_alike
from statemix.training.config import Count, NotNegative, Seed
from statemix.training.settings import finite


@dataclass(frozen=True)
class Generate:
    """Continue a text with a trained language model.

    The state of the model does not grow with the text, unless the model has attention.

    statemix lm generate runs/python "def " --max-new-tokens 200
    """

    folder: Annotated[Path, Argument("RUN", positional=True)]
    """Folder of a finished run, or a model folder of transformers with a tokenizer.json."""

    prompt: Annotated[str, Argument("TEXT", positional=True)]
    """Text to continue."""

    max_new_tokens: Count = 200
    """Largest number of tokens to generate."""

    temperature: NotNegative = 0.8
    """Temperature of sampling; 0 always takes the most likely token."""

    top_k: Annotated[int, Ge(0)] = 50
    """Sample only from this number of most likely tokens; 0 means from all tokens."""

    seed: Seed = 0
    """Random seed of sampling."""

    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own layers."""

    def run(self) -> None:
        """Print the text and its continuation."""
        model, tokenizer = open_model(self.folder)
        try:
            self.prompt.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"prompt must be UTF-8, got {self.prompt!r}") from error
        ids = tokenizer.encode(self.prompt, add_special_tokens=False).ids
        if not ids:
            raise RequestError("prompt must have at least one token, got none")
        check_ids("prompt", torch.tensor(ids), model.config.get_text_config().vocab_size)
        torch.manual_seed(self.seed)
        sampling = {"do_sample": True, "temperature": self.temperature, "top_k": self.top_k}
        with errors_of_strangers(self.folder):
            found = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
                max_new_tokens=self.max_new_tokens,
                # A single text has no padding, but transformers asks for its token.
                pad_token_id=0,
                # A lower temperature would make logits infinite.
                **(sampling if self.temperature > 1e-6 else {"do_sample": False}),
            )
        sys.stdout.write(tokenizer.decode(found[0].tolist()) + "\n")


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
