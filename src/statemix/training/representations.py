"""The representations of a group that the gates hold, by share; a tool of experiments.

Their race decides what a network can track.
"""

from typing import Any

import torch

from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.models import ReadoutModel
from statemix.tasks import Task
from statemix.tasks.groups import shares
from statemix.tasks.permutation import Permutation
from statemix.training.hooks import Hook
from statemix.training.loop import Loop
from statemix.training.permutation_penalty import token_transitions

# Entries of the transitions of one token; more would slow evaluations.
_MOST_ENTRIES = 10_000


@torch.no_grad()
def representations(model: ReadoutModel, task: Task) -> dict[str, float]:
    r"""Split the transitions of a model's first layer by irreducible representation of the group.

    The table of transitions :math:`A(g)`, one for each token g, is a function on the group. The
    part that belongs to the group's action on its points can be sharpened into permutations of the
    entries; a network whose gates hold another part tracks short words alone, or a quotient.

    Args:
        model: the model.
        task: its task.

    Returns:
        Name of each representation but the constant one
        (:func:`statemix.tasks.groups.components`) -> its share of the table's energy; empty if the
        task is not about all elements of a group, the first layer has no gates of its own, or they
        are too many.
    """
    layer = model.backbone.blocks[0].mixer
    if not isinstance(task, Permutation) or task.generators:
        return {}
    if not isinstance(layer, GatedRecurrence):
        return {}
    first = token_transitions(model, 1)
    assert first is not None
    if first.numel() > _MOST_ENTRIES:
        return {}
    table = token_transitions(model, task.group.order)
    assert table is not None
    return shares(table.flatten(1).double().cpu().numpy(), task.group.name)


class Representations(Hook):
    """Adds the shares of the representations to every row of the metrics.

    Args:
        model: the model.
        task: its task.
    """

    def __init__(self, model: ReadoutModel, task: Task) -> None:
        self._model, self._task = model, task

    def row(self, loop: Loop) -> dict[str, Any]:
        del loop
        return {"representations": representations(self._model, self._task)}
