"""Rows of runs with the iterations that their networks need."""

from typing import Any, TypedDict, cast

import torch

from statemix.layers import Layer
from statemix.models import ReadoutModel
from statemix.studies import store
from statemix.studies.runner import Ended
from statemix.studies.store import Row
from statemix.tasks.task import Examples
from statemix.training import load_config, load_model
from statemix.training.devices import threads
from statemix.training.schedules import attributes_set

# Sequences of the batch that is iterated, which ends when the slowest of them has converged.
_BATCH = 64


class Iterations(TypedDict):
    """How the layers of a network iterated on a batch of test sequences."""

    # Iterations, the mean over the layers.
    iterations: float
    # The largest residual of any sequence and layer.
    residual: float


def iterated_row(ended: Ended) -> Row:
    """Return the row of a run that has ended; with a result, also its iterations by test length.

    Raises:
        RequestError: if the files of a finished run are damaged.
    """
    row = store.row_of(ended)
    if ended.status != "done":
        return row
    config = load_config(ended.job.folder)
    task, model = config.build_task(), load_model(ended.job.folder)
    found: dict[str, Iterations] = {}
    with threads(config.runtime.num_threads), attributes_set(model, config.evaluation.attributes):
        for length in map(int, row["test"]):
            numbers = _iterations(model, task.examples("test", 0, _BATCH, length))
            if numbers is not None:
                found[str(length)] = numbers
    return cast(Row, {**cast(dict[str, Any], row), "iterated": found})


@torch.no_grad()
def _iterations(model: ReadoutModel, examples: Examples) -> Iterations | None:
    lengths = None if examples.lengths is None else torch.from_numpy(examples.lengths)
    model(torch.from_numpy(examples.tokens), lengths=lengths)
    reports = [layer.reports() for layer in model.modules() if isinstance(layer, Layer)]
    those = [numbers for numbers in reports if "iterations" in numbers]
    if not those:
        return None
    iterations = torch.stack([numbers["iterations"].double() for numbers in those])
    residuals = torch.stack([numbers["residual"].double() for numbers in those])
    return {"iterations": float(iterations.mean()), "residual": float(residuals.max())}
