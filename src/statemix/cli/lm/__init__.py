"""``statemix lm``: prepare tokens, train a language model, generate text, evaluate."""

from collections.abc import Sequence
from typing import Any

from statemix.cli.lm.prepare_tokens import Prepare
from statemix.cli.lm.train_text import TrainText
from statemix.cli.lm.use_model import EvaluateText, Generate
from statemix.cli.parser import parse_part

PARTS: dict[str, type[Any]] = {
    "prepare": Prepare, "train": TrainText, "generate": Generate, "evaluate": EvaluateText,
}  # fmt: skip


def parse(arguments: Sequence[str]) -> Any:
    """Parse a command line: the name of a part, and its options."""
    return parse_part(PARTS, arguments, "statemix lm", "Language models: data, training, text.")
