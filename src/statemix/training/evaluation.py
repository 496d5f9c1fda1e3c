"""Scores of a model on labelled sequences, in memory that does not grow with their length."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from statemix.layers.layer import check_sizes
from statemix.models import ReadoutModel
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


def check_finite(split: str, scores: Mapping[str, Scores], when: str) -> None:
    """Check that the weights are still numbers.

    Args:
        split: name of the split, for the message.
        scores: head -> its scores.
        when: the time in the run, for the message.

    Raises:
        FloatingPointError: if a loss is not finite.
    """
    for one in scores.values():
        if not math.isfinite(one.loss):
            raise FloatingPointError(
                f"loss of the {split} sequences must be finite, got {one.loss} {when}; a smaller "
                "learning rate or clip_norm may help"
            )


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
        self.options: dict[str, Any] = {
            "batch_size": batch_size,
            "autocast": autocast,
            "tick": tick,
        }

    def __call__(self, model: ReadoutModel) -> dict[str, Scores]:
        """Return head -> its scores."""
        return evaluate(model, self.examples, **self.options)

    @property
    def examples(self) -> Examples:
        """The sequences, drawn when they are first needed."""
        if self._examples is None:
            self._examples = self._draw()
        return self._examples


def evaluate(
    model: ReadoutModel,
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
    answers = _Answers(model, examples, batch_size)
    model.eval()
    with torch.inference_mode(), autocast():
        for some, span in _parts(examples):
            answers.add(some, _answer(model, answers.asked(some), span, tick))
    return answers.scores()


def score_together(
    evaluators: Sequence[SplitEvaluator],
    models: Sequence[ReadoutModel],
    each: Callable[[Callable[..., Any], Any], Any],
) -> list[dict[str, Scores]]:
    """Score several models at once, each as its evaluator would.

    Args:
        evaluators: evaluators of equal numbers and lengths of sequences.
        models: the models, of one structure.
        each: calls a function of a model and a tree of tensors for every model; the tensors and
            the results have an axis of models in front.

    Returns:
        For each model, head -> its scores.
    """
    options = evaluators[0].options
    draws = [evaluator.examples for evaluator in evaluators]
    those = [
        _Answers(model, examples, options["batch_size"])
        for model, examples in zip(models, draws, strict=True)
    ]
    for model in models:
        model.eval()
    with torch.inference_mode(), options["autocast"]():
        for some, span in _parts(draws[0]):
            asked = _stacked([own.asked(some) for own in those])
            found = each(partial(_answer, span=span, tick=options["tick"]), asked)
            # One copy from the device for all models.
            found = {head: [tensor.cpu() for tensor in pair] for head, pair in found.items()}
            for place, own in enumerate(those):
                own.add(some, {head: (s[place], p[place]) for head, (s, p) in found.items()})
    return [own.scores() for own in those]


def _stacked(trees: Sequence[Any]) -> Any:
    """Stack tensors, or tables of tensors entry by entry."""
    if isinstance(trees[0], Mapping):
        return {name: _stacked([tree[name] for tree in trees]) for name in trees[0]}
    return torch.stack(list(trees))


def _parts(examples: Examples) -> Iterator[tuple[slice, int]]:
    """Yield some rows at a time, and the length of the pieces in which they are processed."""
    num_sequences, length = examples.tokens.shape
    rows = max(_TOKENS_PER_CALL // length, _ROWS_AT_LEAST)
    span = max(1, _TOKENS_PER_CALL // min(rows, num_sequences))
    for row in range(0, num_sequences, rows):
        yield slice(row, row + rows), span


class _Answers:
    """The predictions of a model on examples, gathered part by part."""

    def __init__(self, model: ReadoutModel, examples: Examples, batch_size: int) -> None:
        check_sizes(batch_size=batch_size)
        self._tokens = torch.from_numpy(examples.tokens)
        self._wanted = {head: torch.from_numpy(those) for head, those in examples.targets.items()}
        _check_targets(model, self._tokens, self._wanted)
        self._lengths = None if examples.lengths is None else torch.from_numpy(examples.lengths)
        self._device = model.device
        self._batch_size = batch_size
        self._predictions = {head: torch.empty_like(those) for head, those in self._wanted.items()}
        self._losses = dict.fromkeys(self._wanted, 0.0)

    def asked(self, some: slice) -> dict[str, Any]:
        """Return tokens, targets and lengths of some rows."""
        asked = {
            "tokens": self._tokens[some],
            "wanted": {head: classes[some] for head, classes in self._wanted.items()},
        }
        if self._lengths is not None:
            asked["lengths"] = self._lengths[some].to(self._device)
        return asked

    def add(self, some: slice, found: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Take the losses of the pieces of some rows, and the predicted classes."""
        for head, (losses, predictions) in found.items():
            for loss in losses.tolist():
                self._losses[head] += loss
            self._predictions[head][some] = predictions.cpu()

    def scores(self) -> dict[str, Scores]:
        """Return head -> scores of all rows."""
        return {
            head: _scores(self._predictions[head], classes, self._losses[head], self._batch_size)
            for head, classes in self._wanted.items()
        }


def _answer(
    model: ReadoutModel,
    asked: dict[str, Any],
    span: int,
    tick: Callable[[], None] | None,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return for each head the summed loss of every piece, and the predicted classes (B, T)."""
    losses: dict[str, list[Tensor]] = {head: [] for head in asked["wanted"]}
    predictions: dict[str, list[Tensor]] = {head: [] for head in asked["wanted"]}
    pieces = torch.split(asked["tokens"], span, dim=1)
    start = 0
    for logits in model.in_pieces(_moved(pieces, model.device, tick), asked.get("lengths")):
        for head, classes in asked["wanted"].items():
            losses[head].append(_summed_loss(logits[head], classes[:, start : start + span]))
            predictions[head].append(logits[head].argmax(-1))
        start += span
    return {
        head: (torch.stack(losses[head]), torch.cat(predictions[head], dim=1)) for head in losses
    }


def _moved(
    pieces: Iterable[Tensor], device: torch.device, tick: Callable[[], None] | None
) -> Iterator[Tensor]:
    """Yield pieces on a device, each just before it is needed."""
    for piece in pieces:
        if tick is not None:
            tick()
        yield piece.to(device)


def _check_targets(model: ReadoutModel, tokens: Tensor, wanted: Mapping[str, Tensor]) -> None:
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
