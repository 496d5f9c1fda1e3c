"""Certificates of the runs of a suite."""

from pathlib import Path
from typing import Any

from statemix.analysis import certified, write_certificate
from statemix.errors import RequestError
from statemix.tasks.automaton import HasAutomaton
from statemix.training import load_config, load_model
from statemix.training.schedules import attributes_set

# Networks that track have a few hundred; the states of others are without end.
_MOST_PAIRS = 5000


def certificate(folder: Path) -> dict[str, Any]:
    """Certify a finished run, and keep the certificate and what is proven in its folder.

    Returns:
        The certificate as plain data (:class:`statemix.analysis.Certified`).

    Raises:
        RequestError: if the task has no automaton, or the files of the run are damaged.
    """
    config = load_config(folder)
    task = config.build_task()
    if not isinstance(task, HasAutomaton):
        raise RequestError(f"task must have a finite automaton, got {config.task.name}")
    model = load_model(folder)
    with attributes_set(model, config.evaluation.attributes):
        found = certified(model, task.automaton(), max_pairs=_MOST_PAIRS)
        # Here the attributes of evaluation are part of the network.
        write_certificate(folder, found, weights="last")
    return found.to_plain()
