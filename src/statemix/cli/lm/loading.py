"""Open a language model for a command."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from statemix.errors import OptionError, RequestError
from statemix.lm.prepared import load_language_model
from statemix.training.folder import read_environment


def open_model(folder: Path) -> tuple[Any, Tokenizer]:
    """Return the model of a run or of a folder of transformers, and its tokenizer."""
    try:
        return load_language_model(folder)
    except OptionError as error:
        named = read_environment(folder).get("information", {}).get("imports") or ["MODULE"]
        advice = f"for a layer of your own, add --imports {' '.join(named)}"
        raise RequestError(f"{folder}: {error}; {advice}") from error
