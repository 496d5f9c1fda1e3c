"""Proofs of networks on tasks: by search or by structure, as the task allows."""

from collections.abc import Callable

from statemix.automaton import HasAutomaton
from statemix.errors import RequestError
from statemix.models import ReadoutModel
from statemix.place_rules import HasPlaces
from statemix.proofs.arrangement_search import prove_places
from statemix.proofs.certificate import Certificate, prove


def prove_task(
    model: ReadoutModel,
    task: HasAutomaton | HasPlaces,
    *,
    soft: bool = False,
    max_pairs: int = 100_000,
    on_progress: Callable[[int], None] | None = None,
) -> Certificate:
    """Prove or refute a network on a task, by :func:`prove` or :func:`prove_places`.

    Args:
        model: network with the tokens and the heads of the task.
        task: a task with an automaton or with places.
        soft: as in :func:`prove`.
        max_pairs: as in :func:`prove`.
        on_progress: as in :func:`prove`.
    """
    if isinstance(task, HasAutomaton):
        automaton = task.automaton()
        return prove(model, automaton, soft=soft, max_pairs=max_pairs, on_progress=on_progress)
    if soft:
        raise RequestError("soft must be absent for a task with places, whose proof hardens")
    return prove_places(model, task.places(), max_pairs=max_pairs, on_progress=on_progress)
