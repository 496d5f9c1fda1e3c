"""Scores of a model on labelled sequences, in memory that does not grow with their length."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from statemix.errors import OptionError, RequestError
from statemix.models import ReadoutModel
from statemix.ops.checks import bind
from statemix.tasks import IGNORED, Examples, Task
from statemix.tasks.addressing import Split
from statemix.tasks.task import check_examples
from statemix.training.config import RunConfig
from statemix.training.devices import sequences_at
from statemix.training.plain import to_plain
from statemix.training.schedules import attributes_set
from statemix.training.settings import built

if TYPE_CHECKING:
    from statemix.training.loop import Loop

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


HeadScores = dict[str, Scores]
"""Head -> its scores."""


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
        RequestError: if the examples do not fit what the task says of them.
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
            last = task.examples(split, num_sequences - 1, num_sequences, length)
        except OptionError as error:
            subject, must, condition = str(error).partition(" must ")
            if subject != "stop":
                raise
            raise OptionError(f"num_sequences{must}{condition}") from error
        check_examples(task, last, length)
        if length is not None and last.lengths is None and last.tokens.shape[1] != length:
            # An example of this number may not exist at the training length.
            with suppress(OptionError):
                usual = task.examples(split, num_sequences - 1, num_sequences)
                if np.array_equal(last.tokens, usual.tokens):
                    raise RequestError(
                        f"task {task.name!r}: examples must follow the length asked for, got "
                        f"the same tokens at lengths {task.length} and {length}"
                    )
        self._draw = partial(task.examples, split, 0, num_sequences, length)
        self._examples: Examples | None = None
        self._score = partial(evaluate, batch_size=batch_size, autocast=autocast, tick=tick)

    def __call__(self, model: ReadoutModel) -> HeadScores:
        """Return the scores by head; the sequences are drawn when they are first needed."""
        if self._examples is None:
            self._examples = self._draw()
        return self._score(model, self._examples)


class RunEvaluator:
    """Scores a run's model on its validation and test sequences.

    Args:
        config: the run.
        task: its task.
        autocast: as in :func:`evaluate`.
        tick: as in :func:`evaluate`.

    Raises:
        RequestError: if the task cannot make sequences of a length.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        autocast: Callable[[], AbstractContextManager[object]],
        tick: Callable[[], None],
    ) -> None:
        self._task, self._settings = task, config.evaluation
        self._options = {"batch_size": config.batches.size, "autocast": autocast, "tick": tick}
        self._validation = self.on_split(
            "validation", config.evaluation.validation_size, "evaluation.validation_size"
        )
        self._test = self.on_split("test", config.evaluation.test_size, "evaluation.test_size")
        self._test_at = {
            length: self._at("test", length, "lengths") for length in config.evaluation.lengths
        }
        self._validation_at = {
            length: self._at("validation", length, "validation_lengths")
            for length in config.evaluation.validation_lengths
        }

    def on_split(
        self, split: Split, count: int, setting: str, length: int | None = None
    ) -> SplitEvaluator:
        """Return an evaluator on the first sequences of a split.

        Args:
            split: as in :class:`SplitEvaluator`.
            count: number of sequences.
            setting: dotted name of the setting that asks for them, for messages.
            length: as in :class:`SplitEvaluator`.

        Raises:
            RequestError: if there are not so many sequences.
        """
        arguments = (self._task, split, count, length)
        evaluator: SplitEvaluator = built(setting, SplitEvaluator, *arguments, **self._options)
        return evaluator

    def _at(self, split: Split, length: int, name: str) -> SplitEvaluator:
        at_most = getattr(self._settings, f"{split}_size")
        count = sequences_at(length, at_most=at_most, tokens=self._settings.tokens)
        return self.on_split(split, count, f"evaluation.{name}", length)

    def __call__(self, loop: "Loop") -> tuple[dict[str, Any], str]:
        """Return a row of metrics, and what to say about it.

        Raises:
            FloatingPointError: if a loss is not finite.
        """
        model: Any = loop.model
        batches: Any = loop.batches
        with attributes_set(model, self._settings.attributes):
            test, validation = self._test(model), self._validation(model)
            further = {length: one(model) for length, one in self._validation_at.items()}
        when = f"after step {loop.step} of {loop.num_steps}"
        check_finite("test", test, when)
        for heads in (validation, *further.values()):
            check_finite("validation", heads, when)
        row = {
            "step": loop.step,
            "epoch": batches.epoch(loop.step),
            "validation": to_plain(validation),
            "test": {str(self._task.length): to_plain(test)},
            "validation_at": {str(length): to_plain(heads) for length, heads in further.items()},
        }
        text = f", validation {accuracy(validation):.4f}, test {accuracy(test):.4f}"
        for length, heads in further.items():
            text += f", validation at length {length} {accuracy(heads):.4f}"
        return row, text

    def at_further_lengths(self, loop: "Loop") -> dict[int, HeadScores]:
        """Return test scores at the further lengths, in tokens."""
        model: Any = loop.model
        scores = {}
        with attributes_set(model, self._settings.attributes):
            for length, evaluator in self._test_at.items():
                # The evaluations during training have covered the training length.
                if length != self._task.length:
                    scores[length] = evaluator(model)
                    text = f"length {length}: test {accuracy(scores[length]):.4f}"
                    loop.emit("evaluated", text)
        return scores


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
    if not isinstance(batch_size, int) or isinstance(batch_size, bool):
        raise TypeError(f"batch_size must be an int, got {batch_size!r}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    tokens = torch.from_numpy(examples.tokens)
    targets = {head: torch.from_numpy(classes) for head, classes in examples.targets.items()}
    _check_targets(model, tokens, targets)
    lengths = None if examples.lengths is None else torch.from_numpy(examples.lengths)
    predictions = {head: torch.empty_like(classes) for head, classes in targets.items()}
    losses = dict.fromkeys(targets, 0.0)
    model.eval()
    with torch.inference_mode(), autocast():
        for rows, span in _parts(*examples.tokens.shape):
            pieces = _moved(torch.split(tokens[rows], span, dim=1), model.device, tick)
            row_lengths = None if lengths is None else lengths[rows].to(model.device)
            found: dict[str, list[tuple[Tensor, Tensor]]] = {head: [] for head in targets}
            for place, logits in enumerate(model.in_pieces(pieces, row_lengths)):
                for head, classes in targets.items():
                    wanted = classes[rows, place * span : (place + 1) * span]
                    loss = _summed_loss(logits[head], wanted)
                    found[head].append((loss, logits[head].argmax(-1)))
            for head, pairs in found.items():
                piece_losses, predicted = zip(*pairs, strict=True)
                predictions[head][rows] = torch.cat(predicted, dim=1).cpu()
                for loss in torch.stack(piece_losses).tolist():
                    losses[head] += loss
    return {
        head: _scores(predictions[head], classes, losses[head], batch_size)
        for head, classes in targets.items()
    }


def _parts(num_sequences: int, length: int) -> Iterator[tuple[slice, int]]:
    """Yield some rows at a time, and the length of the pieces in which they are processed."""
    rows = max(_TOKENS_PER_CALL // length, _ROWS_AT_LEAST)
    span = max(1, _TOKENS_PER_CALL // min(rows, num_sequences))
    for row in range(0, num_sequences, rows):
        yield slice(row, row + rows), span


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
    # A loss in 16 bits would be a few digits.
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(
        logits.flatten(0, 1),
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
