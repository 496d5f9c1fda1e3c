"""``statemix lm generate``: continue a text."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge

from statemix.cli.parser import Argument
from statemix.errors import RequestError
from statemix.lm.prepared import errors_of_strangers, open_model
from statemix.lm.shards import check_ids
from statemix.training.config import Count, NotNegative, Seed


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
                **(sampling if self.temperature else {"do_sample": False}),
            )
        sys.stdout.write(tokenizer.decode(found[0].tolist()) + "\n")
