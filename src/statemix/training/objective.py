"""Losses that training minimises."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from statemix.tasks import IGNORED
from statemix.training.batches import Batch


class Objective(Protocol):
    """The losses of a model on a batch: training minimises their sum."""

    def __call__(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """Return name -> scalar loss; each is summed over the batches of an optimiser step."""
        ...


def cross_entropy(model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
    """Return each head's mean cross-entropy over the scored positions of the step, in nats.

    The mean is over the whole step, so that splitting a step into several batches changes nothing.

    Args:
        model: function of tokens, ``cu_seqlens`` and ``lengths`` that returns head -> logits
            (B, T, classes).
        batch: the sequences.
    """
    logits = model(batch.tokens, batch.cu_seqlens, batch.lengths)
    return {
        head: functional.cross_entropy(
            logits[head].flatten(0, 1),
            classes.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
        )
        / batch.num_scored[head]
        for head, classes in batch.targets.items()
    }


def total(losses: dict[str, Tensor]) -> Tensor:
    """Return the sum of all losses."""
    return torch.stack(list(losses.values())).sum()
