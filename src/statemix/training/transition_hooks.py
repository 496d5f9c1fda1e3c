"""Hooks that look at the first layer's transitions: a penalty and a race, for experiments."""

from typing import Any

import torch
from torch import Tensor

from statemix.errors import SettingError
from statemix.layers import Layer
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.models import ReadoutModel
from statemix.tasks import IGNORED, Task
from statemix.tasks.groups import shares
from statemix.tasks.permutation import Permutation
from statemix.training.attempts import Attempts
from statemix.training.hooks import Hook
from statemix.training.loop import Loop

# Entries of the transitions of one token; more would slow evaluations.
_MOST_ENTRIES = 10_000


class PermutationPenalty(Hook):
    """Adds the penalty to the loss; an attempt has it when it has left its plateau."""

    def __init__(
        self, coefficient: float, model: ReadoutModel, attempts: Attempts | None = None
    ) -> None:
        self._coefficient, self._model, self._attempts = coefficient, model, attempts
        if token_transitions(model, 1) is None:
            condition = "must be 0 with a first layer that has no transitions"
            raise SettingError("objective.permutation_penalty", condition, coefficient)

    def losses(self, loop: Loop, batch: Any) -> dict[str, Tensor]:
        del loop
        if self._attempts is not None and self._attempts.search.on_plateau:
            return {}
        head, classes = next(iter(batch.targets.items()))
        # Splitting a step into several batches changes nothing.
        share = (classes != IGNORED).sum() / batch.num_scored[head]
        penalty = self._coefficient * share * permutation_penalty(self._model)
        return {"permutation_penalty": penalty}


def permutation_penalty(model: ReadoutModel) -> Tensor:
    r"""Return how far the transitions of a model's first layer are from permutations.

    .. math:: \mathrm{mean}_{x, k} \, \lVert A_x^k (A_x^k)^\top - I \rVert_F^2

    over tokens x and units k, such as blocks. A matrix that is not negative and whose rows sum to 1
    has penalty 0 if and only if it permutes.
    """
    transitions = token_transitions(model, model.backbone.vocab_size)
    assert transitions is not None
    products = transitions @ transitions.mT
    eye = torch.eye(products.shape[-1], dtype=products.dtype, device=products.device)
    return (products - eye).square().sum((-1, -2)).mean()


def token_transitions(model: ReadoutModel, num_tokens: int) -> Tensor | None:
    """Return the transitions of the first layer under each of the first tokens.

    The layer sees a token's normalised embedding at the beginning of a sequence. What came before
    matters only to layers with a short convolution. The shape is (num_tokens, units, m, m); None
    means that the layer runs no linear recurrence.
    """
    layer = model.backbone.blocks[0].mixer
    if not isinstance(layer, Layer):
        return None
    x = model.backbone.blocks[0].norm(model.backbone.embedding.weight[:num_tokens])
    recurrence = layer.recurrence(x.unsqueeze(1))
    return None if recurrence is None else recurrence.transitions[:, 0]


@torch.no_grad()
def representations(model: ReadoutModel, task: Task) -> dict[str, float]:
    r"""Split the transitions of a model's first layer by irreducible representation of the group.

    The table of transitions :math:`A(g)`, one for each token g, is a function on the group. The
    part that belongs to the group's action on its points can be sharpened into permutations of the
    entries; a network whose gates hold another part tracks short words alone, or a quotient.

    Returns:
        Name of each representation but the constant one
        (:func:`statemix.tasks.groups.components`) -> its share of the table's energy; empty if the
        task is not about all elements of a group, the first layer has no gates of its own, or they
        are too many.
    """
    layer = model.backbone.blocks[0].mixer
    if not isinstance(task, Permutation) or task.vocab_size < task.group.order:
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
    """Adds the shares of the representations to every row of the metrics."""

    def row(self, loop: Loop) -> dict[str, Any]:
        model: Any = loop.model
        batches: Any = loop.batches
        return {"representations": representations(model, batches.task)}
