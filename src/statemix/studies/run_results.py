"""The results of runs as plain data."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from statemix.training import Outcome, Scores
from statemix.training.folder import ENVIRONMENT


class PlainScores(TypedDict):
    """Scores of one head, as in :class:`statemix.training.Scores`."""

    num_sequences: int
    token_accuracy: float
    mad_accuracy: float
    sequence_accuracy: float
    # None if it is not finite, which JSON has no number for.
    loss: float | None


PlainHeads = dict[str, PlainScores]
"""Head to its scores."""


class Result(TypedDict):
    """The result of a run. Without one, scores are empty and numbers None."""

    # With the last weights: length in tokens, as text, to head to scores.
    test: dict[str, PlainHeads]
    # At the training length, with the weights that are best there (selected on the test set, as in
    # the papers), and with the weights that are best in validation.
    best_test: PlainHeads
    test_at_best_validation: PlainHeads
    num_parameters: int | None
    time_s: float | None


def plain_result(outcome: Outcome | None) -> Result:
    """Return the result of a finished run as plain data; None means a run without a result."""
    if outcome is None:
        return {
            "test": {},
            "best_test": {},
            "test_at_best_validation": {},
            "num_parameters": None,
            "time_s": None,
        }
    length = outcome.config.build_task().length
    return {
        "test": {str(at): plain_scores(heads) for at, heads in outcome.last.test.items()},
        "best_test": plain_scores(outcome.best_test.test[length]),
        "test_at_best_validation": plain_scores(outcome.test_at_best_validation.test[length]),
        "num_parameters": outcome.num_parameters,
        "time_s": outcome.time_s,
    }


def plain_scores(heads: Mapping[str, Scores]) -> PlainHeads:
    """Return the scores of heads as plain data."""
    found = {}
    for head, scores in heads.items():
        loss = scores.loss if math.isfinite(scores.loss) else None
        found[head] = cast(PlainScores, dataclasses.asdict(scores) | {"loss": loss})
    return found


def read_environment(folder: Path) -> dict[str, Any] | None:
    """Return software and machine of a run; None if it has not begun."""
    path = folder / ENVIRONMENT
    if not path.exists():
        return None
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return stored
