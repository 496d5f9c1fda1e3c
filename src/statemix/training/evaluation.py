"""Scores of a model on labelled sequences, in memory that does not grow with their length."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from statemix.layers.layer import check_sizes
from statemix.models import SyntheticModel
from statemix.ops.checks import bind
from statemix.tasks import Task
from statemix.tasks.addressing import Split

IGNORED = -100
"""Target of positions that are not scored."""

# Enough work per call to hide its overhead, while gates of blocks of 16 stay below 300 MB.
_TOKENS_PER_CALL = 4096
# Long words run side by side, so that the kernels have rows to share out among threads.
_ROWS_AT_LEAST = 16


@dataclass(frozen=True)
class Scores:
    """How well a model labels a set of sequences; only scored positions count.

    Attributes:
        num_sequences: how many sequences.
        token_accuracy: fraction of positions that are right (micro average).
        mad_accuracy: see :func:`mad_accuracy`; the mean over batches weighted by their size.
        sequence_accuracy: fraction of sequences in which every position is right.
        loss: mean cross-entropy per position, in nats.
    """

    num_sequences: int
    token_accuracy: float
    mad_accuracy: float
    sequence_accuracy: float
    loss: float


def draw(
    task: Task, split: Split, num_sequences: int, length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens and targets of the first sequences of a split, each (num_sequences, length) int64."""
    tokens, targets = task.examples(split, 0, num_sequences, length)
    return torch.from_numpy(tokens), torch.from_numpy(targets)


def sequences_at(length: int, *, at_most: int, tokens: int) -> int:
    """How many sequences of a length fit into a budget of tokens: at least one."""
    return max(1, min(at_most, tokens // length))


def evaluate(
    model: SyntheticModel,
    tokens: Tensor,
    targets: Tensor,
    *,
    batch_size: int = 128,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    tick: Callable[[], None] | None = None,
) -> Scores:
    """Score a model.

    Long sequences are processed in pieces that hand their states on, so that memory is bounded.

    Args:
        model: put into evaluation mode and left there.
        tokens: shape (N, T) int32 or int64.
        targets: shape (N, T) int64; -100 is not scored.
        batch_size: sequences per batch of the MAD accuracy, which depends on it.
        autocast: makes the context in which the model runs, for mixed precision.
        tick: called between pieces; what it raises ends the evaluation.

    Raises:
        ValueError: if the shapes differ, no position is scored, a target is not a class,
            ``batch_size`` is below 1, or a token is not in the vocabulary.
        TypeError: if a dtype does not fit or ``batch_size`` is not an int.
    """
    check_sizes(batch_size=batch_size)
    sizes: dict[str, int] = {}
    bind(sizes, "tokens", tokens, "N T")
    bind(sizes, "targets", targets, "N T")
    if targets.dtype != torch.int64:
        raise TypeError(f"targets must be int64, got {targets.dtype}")
    scored = targets != IGNORED
    num_scored = int(scored.sum())
    if num_scored == 0:
        raise ValueError("targets must score at least one position, got none")
    low, high = (int(bound) for bound in targets[scored].aminmax())
    num_classes = model.readout.out_features
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"targets must be in 0..{num_classes - 1} (num_classes={num_classes}) or {IGNORED}, "
            f"got {low if low < 0 else high}"
        )
    model.eval()
    device = model.readout.weight.device
    num_sequences, length = tokens.shape
    rows = max(_TOKENS_PER_CALL // length, _ROWS_AT_LEAST)
    span = max(1, _TOKENS_PER_CALL // min(rows, num_sequences))
    predictions = torch.empty_like(targets)
    loss = 0.0
    with torch.inference_mode(), autocast():
        for row in range(0, num_sequences, rows):
            states = None
            for start in range(0, length, span):
                if tick is not None:
                    tick()
                piece = (slice(row, row + rows), slice(start, start + span))
                logits, states = model.extend(tokens[piece].to(device), states)
                wanted = targets[piece].to(device).flatten()
                flat = logits.flatten(0, 1).float()
                total = functional.cross_entropy(
                    flat, wanted, ignore_index=IGNORED, reduction="sum"
                )
                loss += float(total)
                predictions[piece] = logits.argmax(-1).to(predictions.device)

    right = (predictions == targets) & scored
    mad = [
        mad_accuracy(batch, wanted) * len(batch)
        for batch, wanted in zip(
            torch.split(predictions, batch_size), torch.split(targets, batch_size), strict=True
        )
    ]
    return Scores(
        num_sequences=num_sequences,
        token_accuracy=int(right.sum()) / num_scored,
        mad_accuracy=sum(mad) / num_sequences,
        sequence_accuracy=int((right | ~scored).all(1).sum()) / num_sequences,
        loss=loss / num_scored,
    )


def mad_accuracy(predictions: Tensor, targets: Tensor) -> float:
    """Recall per class, averaged over the classes that occur in targets *or in predictions*.

    A class that is predicted but never a target counts as 0: among c occurring classes, one
    spurious prediction elsewhere costs a factor c / (c + 1). Source: MAD's metric, which is
    torchmetrics' macro accuracy of one batch.

    Args:
        predictions: classes, any shape, int64.
        targets: same shape; -100 is dropped first.

    Returns:
        The average in [0, 1]; 0 if no position is scored.

    Example:
        >>> mad_accuracy(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, -100]))
        0.5
    """
    scored = targets != IGNORED
    predictions, targets = predictions[scored], targets[scored]
    if len(targets) == 0:
        return 0.0
    size = int(torch.maximum(predictions.max(), targets.max())) + 1
    wanted = torch.bincount(targets, minlength=size)
    given = torch.bincount(predictions, minlength=size)
    hits = torch.bincount(targets[predictions == targets], minlength=size)
    occurs = (wanted > 0) | (given > 0)
    recall = hits[occurs].double() / wanted[occurs].clamp(min=1)
    return float(recall.mean())
