"""The results of a suite as plain rows: one for each run, however it ended."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from statemix.experiments.runner import Ended, Job
from statemix.experiments.suite import Network, Suite
from statemix.plain import to_plain
from statemix.settings import RequestError
from statemix.training import Scores, load_outcome
from statemix.training.folder import ENVIRONMENT, read_metrics, read_status

Status = Literal["done", "diverged", "failed", "interrupted", "running", "missing"]


class Curve(TypedDict):
    """Scores during training: one entry per evaluation in every list."""

    step: list[int]
    # Null on fresh examples, which have no epochs.
    epoch: list[int] | None
    # Head to token accuracy on test sequences of the training length.
    accuracy: dict[str, list[float]]


HeadScores = dict[str, dict[str, float]]
"""Head to name of a score to its value."""


class Row(TypedDict):
    """One run: its network, task, ending and scores.

    Without a result, the scores and the curve are empty.
    """

    network: str
    # The sequence layers: each a table of the layer's name and its options.
    layers: list[dict[str, Any]]
    # The task's name and its options.
    task: dict[str, Any]
    seed: int
    status: Status
    # Reason for a missing result; empty if there is a result.
    message: str
    # With the last weights: length in tokens, as text, to head to scores.
    test: dict[str, HeadScores]
    # At the training length, with the weights that are best there (selected on the test set, as in
    # the papers), and with the weights that are best in validation.
    best_test: HeadScores
    test_at_best_validation: HeadScores
    curve: Curve
    num_parameters: int | None
    time_s: float | None


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
    row: Row = {
        "network": network.label,
        "layers": [to_plain(layer) for layer in network.layers],
        "task": to_plain(job.config.task),
        "seed": job.config.seed,
        "status": status,
        "message": message,
        "test": {},
        "best_test": {},
        "test_at_best_validation": {},
        "curve": {"step": [], "epoch": None, "accuracy": {}},
        "num_parameters": None,
        "time_s": None,
    }
    if status != "done":
        return row
    try:
        outcome = load_outcome(job.folder)
        metrics = read_metrics(job.folder)
    except (RequestError, OSError, ValueError) as error:
        row["status"], row["message"] = "failed", " ".join(str(error).split())
        return row
    length = outcome.config.build_task().length
    row["test"] = {str(at): _plain(heads) for at, heads in outcome.last.test.items()}
    row["best_test"] = _plain(outcome.best_test.test[length])
    row["test_at_best_validation"] = _plain(outcome.test_at_best_validation.test[length])
    row["curve"] = _curve(metrics, str(length))
    row["num_parameters"], row["time_s"] = outcome.num_parameters, outcome.time_s
    return row


def _noted(folder: Path) -> tuple[Status, str]:
    status = read_status(folder)
    return ("missing", "not trained yet") if status is None else (status.status, status.message)


def _plain(heads: Mapping[str, Scores]) -> HeadScores:
    return {head: dataclasses.asdict(scores) for head, scores in heads.items()}


def _curve(metrics: list[dict[str, Any]], length: str) -> Curve:
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
