"""Scores of a model on labelled sequences, in memory that does not grow with their length."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from statemix.layers.layer import check_sizes
from statemix.models import SyntheticModel
from statemix.ops.checks import bind
from statemix.tasks import IGNORED, Examples, Task
from statemix.tasks.addressing import Split

# Enough work to hide the overhead of a call, while the gates of blocks of 16 stay below 300 MB.
_TOKENS_PER_CALL = 4096
# Long sequences run in parallel, so that the kernels can divide the rows among threads.
_ROWS_AT_LEAST = 16


@dataclass(frozen=True)
class Scores:
    """How well a model labels a set of sequences by one head; only scored positions count.

    Attributes:
        num_sequences: number of sequences.
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


def accuracy(scores: Mapping[str, Scores]) -> float:
    """Return the mean token accuracy over heads, the criterion for choosing among runs."""
    return math.fsum(one.token_accuracy for one in scores.values()) / len(scores)


def sequences_at(length: int, *, at_most: int, tokens: int) -> int:
    """Return the number of sequences of a length that fit into a token budget, at least 1."""
    return max(1, min(at_most, tokens // length))


class SplitEvaluator:
    """Scores a model on the first sequences of a split of a task.

    Args:
        task: source of the sequences.
        split: split of the task.
        num_sequences: number of sequences.
        length: tokens of the longest sequence; None means the training length.
        batch_size: as in :func:`evaluate`.
        autocast: as in :func:`evaluate`.
        tick: as in :func:`evaluate`.

    Raises:
        ValueError: if the split has too few sequences, or none of this length.
    """

    def __init__(
        self,
        task: Task,
        split: Split,
        num_sequences: int,
        length: int | None = None,
        *,
        batch_size: int = 128,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        tick: Callable[[], None] | None = None,
    ) -> None:
        # Making only the last one shows whether the split has enough sequences.
        try:
            task.examples(split, num_sequences - 1, num_sequences, length)
        except ValueError as error:
            subject, must, condition = str(error).partition(" must ")
            if subject != "stop":
                raise
            raise ValueError(f"num_sequences{must}{condition}") from error
        self._draw = partial(task.examples, split, 0, num_sequences, length)
        self._examples: Examples | None = None
        self._evaluate = partial(evaluate, batch_size=batch_size, autocast=autocast, tick=tick)

    def __call__(self, model: SyntheticModel) -> dict[str, Scores]:
        """Return head -> its scores."""
        if self._examples is None:
            self._examples = self._draw()
        return self._evaluate(model, self._examples)


def evaluate(
    model: SyntheticModel,
    examples: Examples,
    *,
    batch_size: int = 128,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    tick: Callable[[], None] | None = None,
) -> dict[str, Scores]:
    """Score a model on examples.

    Long sequences are processed in pieces, so that memory is bounded.

    Args:
        model: model to score; it is left in evaluation mode.
        examples: tokens (N, T) and targets for every head of the model.
        batch_size: sequences per batch of the MAD accuracy, which depends on it.
        autocast: maker of the context in which the model runs, for mixed precision.
        tick: function called before each piece; an exception from it ends the evaluation.

    Returns:
        Head -> its scores.

    Raises:
        ValueError: if the heads or the shapes differ, a head scores no position, a target is not a
            class, ``batch_size`` is below 1, or a token is not in the vocabulary.
        TypeError: if a dtype does not fit or ``batch_size`` is not an int.
    """
    check_sizes(batch_size=batch_size)
    tokens = torch.from_numpy(examples.tokens)
    wanted = {head: torch.from_numpy(classes) for head, classes in examples.targets.items()}
    _check_targets(model, tokens, wanted)
    model.eval()
    num_sequences, length = tokens.shape
    rows = max(_TOKENS_PER_CALL // length, _ROWS_AT_LEAST)
    span = max(1, _TOKENS_PER_CALL // min(rows, num_sequences))
    predictions = {head: torch.empty_like(classes) for head, classes in wanted.items()}
    losses = dict.fromkeys(wanted, 0.0)
    lengths = None if examples.lengths is None else torch.from_numpy(examples.lengths)
    with torch.inference_mode(), autocast():
        for row in range(0, num_sequences, rows):
            some = slice(row, row + rows)
            ends = None if lengths is None else lengths[some].to(model.device)
            pieces = torch.split(tokens[some], span, dim=1)
            start = 0
            for logits in model.in_pieces(_moved(pieces, model.device, tick), ends):
                stop = start + span
                for head, classes in wanted.items():
                    losses[head] += float(_summed_loss(logits[head], classes[some, start:stop]))
                    predictions[head][some, start:stop] = logits[head].argmax(-1).cpu()
                start = stop
    return {
        head: _scores(predictions[head], classes, losses[head], batch_size)
        for head, classes in wanted.items()
    }


def _moved(
    pieces: Iterable[Tensor], device: torch.device, tick: Callable[[], None] | None
) -> Iterator[Tensor]:
    """Yield pieces on a device, each just before it is needed."""
    for piece in pieces:
        if tick is not None:
            tick()
        yield piece.to(device)


def _check_targets(model: SyntheticModel, tokens: Tensor, wanted: Mapping[str, Tensor]) -> None:
    if wanted.keys() != model.heads.keys():
        raise ValueError(
            f"targets must have the heads {list(model.heads)} of the model, got {list(wanted)}"
        )
    sizes: dict[str, int] = {}
    bind(sizes, "tokens", tokens, "N T")
    for head, classes in wanted.items():
        name = f"targets[{head!r}]"
        bind(sizes, name, classes, "N T")
        if classes.dtype != torch.int64:
            raise TypeError(f"{name} must be int64, got {classes.dtype}")
        scored = classes[classes != IGNORED]
        if len(scored) == 0:
            raise ValueError(f"{name} must score at least one position, got none")
        low, high = (int(bound) for bound in scored.aminmax())
        if low < 0 or high >= model.heads[head]:
            raise ValueError(
                f"{name} must be in 0..{model.heads[head] - 1} or {IGNORED}, "
                f"got {low if low < 0 else high}"
            )


def _summed_loss(logits: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(
        logits.flatten(0, 1).float(),
        classes.to(logits.device).flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )


def _scores(predictions: Tensor, wanted: Tensor, loss: float, batch_size: int) -> Scores:
    scored = wanted != IGNORED
    num_scored, num_sequences = int(scored.sum()), len(wanted)
    right = (predictions == wanted) & scored
    mad = [
        mad_accuracy(batch, classes) * len(batch)
        for batch, classes in zip(
            torch.split(predictions, batch_size), torch.split(wanted, batch_size), strict=True
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
