"""Losses that training minimises."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from statemix.errors import SettingError
from statemix.models import ReadoutModel
from statemix.tasks import IGNORED
from statemix.training.batches import Batch
from statemix.training.config import ObjectiveConfig
from statemix.training.transitions import token_transitions


class Objective(Protocol):
    """The losses of a model on a batch: training minimises their sum."""

    def __call__(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """Return name -> scalar loss; each is summed over the batches of an optimiser step."""
        ...


class Losses:
    """The losses of a run.

    Args:
        config: what is asked for.
        model: the model whose transitions a penalty is about.
        length: training length in tokens, over which the weights of positions have mean 1.

    Attributes:
        penalised: whether the penalty acts.

    Raises:
        SettingError: if there is a penalty, and the first layer has no square transitions.
    """

    def __init__(self, config: ObjectiveConfig, model: ReadoutModel, length: int) -> None:
        self.penalised = True
        # Of the step under way, if someone asks for it: the parts of its loss without weights.
        self._plain: list[Tensor] | None = None
        self._power, self._penalty = config.position_power, config.permutation_penalty
        self._model, self._length = model, length
        if self._penalty and token_transitions(model, 1) is None:
            condition = "must be 0 with a first layer that has no transitions"
            raise SettingError("objective.permutation_penalty", condition, self._penalty)

    def __call__(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """Return head -> cross-entropy, and the penalty if there is one."""
        losses, plain = _cross_entropies(model, batch, self._power, self._length)
        if self._plain is not None:
            self._plain.append(total(plain).detach())
        if self._penalty and self.penalised:
            head, classes = next(iter(batch.targets.items()))
            # Of the step, so that splitting it changes nothing.
            share = (classes != IGNORED).sum() / batch.num_scored[head]
            losses["permutation_penalty"] = self._penalty * share * permutation_penalty(self._model)
        return losses

    def watch(self, *, watched: bool) -> None:
        """Keep the loss of the next step without weights and penalty, or do not."""
        self._plain = [] if watched else None

    def of_task(self) -> float:
        """Return the loss of the step that was watched, without weights and penalty, in nats."""
        assert self._plain is not None
        return torch.stack(self._plain).sum().item()


def cross_entropy(
    model: Callable[..., Any], batch: Batch, power: float = 0.0, length: int = 1
) -> dict[str, Tensor]:
    r"""Return each head's mean cross-entropy over the scored positions of the step, in nats.

    .. math:: \frac1N \sum_t w_t \, \mathrm{CE}_t, \qquad
        w_t = t^p \Big/ \tfrac1T \textstyle\sum_{s=1}^T s^p

    The mean is over the whole step, so that splitting a step into several batches changes nothing.

    Args:
        model: function of tokens, ``cu_seqlens`` and ``lengths`` that returns head -> logits
            (B, T, classes).
        batch: the sequences.
        power: p.
        length: T.
    """
    return _cross_entropies(model, batch, power, length)[0]


def _cross_entropies(
    model: Callable[..., Any], batch: Batch, power: float, length: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the losses with weights of positions, and those without."""
    logits = model(batch.tokens, batch.cu_seqlens, batch.lengths)
    losses, plain = {}, {}
    for head, classes in batch.targets.items():
        # Without weights, the sum needs no tensor of losses.
        each = functional.cross_entropy(
            logits[head].flatten(0, 1),
            classes.flatten(),
            ignore_index=IGNORED,
            reduction="none" if power else "sum",
        )
        plain[head] = each.sum() / batch.num_scored[head]
        if power:
            weights = _positions(batch).double() ** power
            mean = torch.arange(1, length + 1, dtype=torch.float64).pow(power).mean().item()
            each = each.view_as(classes) * (weights / mean).to(each)
        losses[head] = each.sum() / batch.num_scored[head] if power else plain[head]
    return losses, plain


def _positions(batch: Batch) -> Tensor:
    """Return the place of each token in its sequence, counted from 1, to broadcast to tokens."""
    places = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    if batch.cu_seqlens is not None:
        sequence = torch.searchsorted(batch.cu_seqlens[1:].contiguous(), places, right=True)
        places = places - batch.cu_seqlens[sequence]
    return places + 1


def permutation_penalty(model: ReadoutModel) -> Tensor:
    r"""Return how far the transitions of a model's first layer are from permutations.

    .. math:: \mathrm{mean}_{x, k} \, \lVert A_x^k (A_x^k)^\top - I \rVert_F^2

    over tokens x and units k, such as blocks. A matrix that is not negative and whose rows sum to 1
    has penalty 0 if and only if it permutes.

    Args:
        model: a model whose first layer runs a linear recurrence.
    """
    transitions = token_transitions(model, model.backbone.vocab_size)
    assert transitions is not None
    products = transitions @ transitions.mT
    eye = torch.eye(products.shape[-1], dtype=products.dtype, device=products.device)
    return (products - eye).square().sum((-1, -2)).mean()


def total(losses: dict[str, Tensor]) -> Tensor:
    """Return the sum of all losses."""
    return torch.stack(list(losses.values())).sum()
