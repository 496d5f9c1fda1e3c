"""Open a language model for a command."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from statemix.errors import OptionError, RequestError
from statemix.lm.prepared import load_language_model
from statemix.training.folder import ENVIRONMENT, check_imported, read_environment


def open_model(folder: Path) -> tuple[Any, Tokenizer]:
    """Return the model of a run or of a folder of transformers, and its tokenizer."""
    try:
        return load_language_model(folder)
    except OptionError as error:
        # The folder may be that of the model within a run.
        for run in (folder, folder.resolve().parent):
            information = read_environment(run).get("information", {})
            check_imported(run / ENVIRONMENT, information.get("imports"))
        advice = "for a layer of your own, add --imports MODULE"
        raise RequestError(f"{folder}: {error}; {advice}") from error
