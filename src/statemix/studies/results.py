"""The results of runs as plain data, and those of a suite: a row for each run, however it ended."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from statemix.errors import RequestError
from statemix.studies.runner import Ended, Job
from statemix.studies.suite import Network, Suite
from statemix.training import Outcome, Scores, load_outcome
from statemix.training.folder import ENVIRONMENT, read_metrics, read_status
from statemix.training.plain import to_plain

Status = Literal["done", "diverged", "failed", "interrupted", "running", "missing"]


class Curve(TypedDict):
    """Scores during training: one entry per evaluation in every list."""

    step: list[int]
    # Null on fresh examples, which have no epochs.
    epoch: list[int] | None
    # Head to token accuracy on test sequences of the training length.
    accuracy: dict[str, list[float]]


class PlainScores(TypedDict):
    """Scores of one head, as in :class:`statemix.training.Scores`."""

    num_sequences: int
    token_accuracy: float
    mad_accuracy: float
    sequence_accuracy: float
    # None if it is not finite, which JSON has no number for.
    loss: float | None


HeadScores = dict[str, PlainScores]
"""Head to its scores."""


class Result(TypedDict):
    """The result of a run. Without one, scores are empty and numbers None."""

    # With the last weights: length in tokens, as text, to head to scores.
    test: dict[str, HeadScores]
    # At the training length, with the weights that are best there (selected on the test set, as in
    # the papers), and with the weights that are best in validation.
    best_test: HeadScores
    test_at_best_validation: HeadScores
    num_parameters: int | None
    time_s: float | None


class Row(Result):
    """One run: its network, task, ending and result. Without a result, the curve is empty."""

    network: str
    # The sequence layers: each a table of the layer's name and its options.
    layers: list[dict[str, Any]]
    # The task's name and its options.
    task: dict[str, Any]
    seed: int
    status: Status
    # Reason for a missing result; empty if there is a result.
    message: str
    curve: Curve


def result(outcome: Outcome | None) -> Result:
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


def plain_scores(heads: Mapping[str, Scores]) -> HeadScores:
    """Return the scores of heads as plain data."""
    found = {}
    for head, scores in heads.items():
        loss = scores.loss if math.isfinite(scores.loss) else None
        found[head] = cast(PlainScores, dataclasses.asdict(scores) | {"loss": loss})
    return found


def rows(suite: Suite, folder: Path, ended: Sequence[Ended] = ()) -> list[Row]:
    """Gather the results of a suite from its run folders.

    Args:
        suite: the suite.
        folder: the folder given to ``suite.jobs``.
        ended: endings of the runs, from ``run_all``. Runs without one are read from their status
            files.

    Returns:
        One row per run, in the order of ``suite.jobs``.
    """
    known = {row.job.folder: row for row in ended}
    return [
        _row(network, job, known.get(job.folder))
        for (network, _), job in zip(suite.members, suite.jobs(folder), strict=True)
    ]


def _row(network: Network, job: Job, ended: Ended | None) -> Row:
    status, message = (ended.status, ended.message) if ended else _noted(job.folder)
    outcome, metrics = None, []
    if status == "done":
        try:
            outcome, metrics = load_outcome(job.folder), read_metrics(job.folder)
        except (RequestError, OSError, ValueError) as error:
            status, message = "failed", " ".join(str(error).split())
    return {
        "network": network.label,
        "layers": [to_plain(layer) for layer in network.layers],
        "task": to_plain(job.config.task),
        "seed": job.config.seed,
        "status": status,
        "message": message,
        **result(outcome),
        "curve": _curve(outcome, metrics),
    }


def _noted(folder: Path) -> tuple[Status, str]:
    status = read_status(folder)
    return ("missing", "not trained yet") if status is None else (status.status, status.message)


def _curve(outcome: Outcome | None, metrics: list[dict[str, Any]]) -> Curve:
    if outcome is None:
        return {"step": [], "epoch": None, "accuracy": {}}
    length = str(outcome.config.build_task().length)
    epochs = [row["epoch"] for row in metrics]
    heads = metrics[0]["test"][length] if metrics else {}
    return {
        "step": [row["step"] for row in metrics],
        "epoch": None if None in epochs else epochs,
        "accuracy": {
            head: [row["test"][length][head]["token_accuracy"] for row in metrics] for head in heads
        },
    }


def environment(jobs: Sequence[Job]) -> dict[str, Any] | None:
    """Return software and machine of the first run that has begun; None if no run has."""
    for job in jobs:
        path = job.folder / ENVIRONMENT
        if path.exists():
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return stored
    return None
