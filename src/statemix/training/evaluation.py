"""Scores of a model on labelled sequences; activations do not grow with their length."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator
from torch import Tensor
from torch.nn import functional

from statemix.errors import OptionError, RequestError, SettingError
from statemix.models import ReadoutModel
from statemix.ops.checks import bind
from statemix.tasks import IGNORED, Examples, Task
from statemix.tasks.addressing import Split
from statemix.tasks.task import check_examples
from statemix.training.config import RunConfig
from statemix.training.loop import Evaluation, Loop, Row
from statemix.training.schedules import attributes_set
from statemix.training.settings import built, to_plain

# Enough work to hide the overhead of a call, while the gates of blocks of 16 stay below 300 MB.
_TOKENS_PER_CALL = 4096
# Long sequences run in parallel, so that the kernels can divide the rows among threads.
_ROWS_AT_LEAST = 16
# Examples that show whether a task scores every position.
_TRIED = 32


Stored = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that files hold as null if it is not finite."""


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
    token_accuracy: Stored
    mad_accuracy: Stored
    sequence_accuracy: Stored
    loss: Stored


HeadScores = dict[str, Scores]
"""Head -> its scores."""


def accuracy(scores: Mapping[str, Scores]) -> float:
    """Return the mean token accuracy over heads, the criterion for choosing among runs."""
    return math.fsum(one.token_accuracy for one in scores.values()) / len(scores)


class SplitEvaluator:
    """Scores a model on the first sequences of a split; ``length`` is that of training if None."""

    def __init__(
        self,
        task: Task,
        split: Split,
        num_sequences: int,
        length: int | None = None,
        *,
        batch_size: int = 128,
    ) -> None:
        # Making only the last one shows whether the split has enough sequences.
        try:
            last = task.examples(split, num_sequences - 1, num_sequences, length)
        except OptionError as error:
            raise OptionError(str(error).replace("stop must", "num_sequences must", 1)) from error
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
        self._examples = cache(partial(task.examples, split, 0, num_sequences, length))
        self._batch_size = batch_size

    def __call__(self, model: ReadoutModel, **options: Any) -> HeadScores:
        """Return the scores by head; the options are those of :func:`evaluate`."""
        return evaluate(model, self._examples(), batch_size=self._batch_size, **options)


def sequences_at(length: int, *, at_most: int, tokens: int) -> int:
    """Return the number of sequences of a length that fit into a token budget, at least 1."""
    return max(1, min(at_most, tokens // length))


class NumberEvaluation(Evaluation):
    """Keeps the numbers that the function ``evaluate`` of ``fit`` returns."""

    def __init__(
        self,
        evaluate: Callable[[Any], Mapping[str, float]] | None,
        criterion: str | None,
        mode: str,
        stop_at: float | None,
        *,
        every: int,
        metrics: Path | None,
    ) -> None:
        super().__init__(every, metrics)
        self._function, self._criterion, self._stop_at = evaluate, criterion, stop_at
        self._sign = 1 if mode == "max" else -1

    def evaluate(self, loop: Loop) -> tuple[Row, str]:
        row: Row = {"step": loop.step}
        if self._function is None:
            return row, ""
        loop.model.eval()
        with torch.no_grad(), loop.fabric.autocast():
            found = loop.call(self._function)
        try:
            row["scores"] = {name: float(value) for name, value in found.items()}
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise RequestError(f"evaluate must return numbers by name, got {found!r}") from error
        # Another kind of device may round otherwise, but all processes must decide alike.
        row["scores"] = loop.ranks.on_first(lambda: row["scores"])
        return row, "".join(f", {name} {value:.4f}" for name, value in row["scores"].items())

    def scores(self, row: Row) -> dict[str, float]:
        if self._criterion is None:
            return {}
        scores = row.get("scores", {})
        if self._criterion not in scores:
            condition = f"must be a number of evaluate ({sorted(scores)})"
            raise SettingError("criterion", condition, self._criterion)
        value = scores[self._criterion]
        # Files of finished runs have None for NaN.
        is_number = value is not None and not math.isnan(value)
        return {"best": self._sign * value if is_number else -math.inf}

    def ends(self, row: Row) -> bool:
        stop_at = self._stop_at
        return stop_at is not None and self.scores(row)["best"] > self._sign * stop_at


class RunEvaluation(Evaluation):
    """Scores a run's model on its validation and test sequences."""

    def __init__(self, config: RunConfig, task: Task, steps_per_epoch: int, metrics: Path) -> None:
        self._task, self._settings, self._batch_size = task, config.evaluation, config.batches.size
        assert self._settings.every is not None
        super().__init__(self._settings.every * steps_per_epoch, metrics)
        self._validation = self.on_split(
            "validation", self._settings.validation_size, "evaluation.validation_size"
        )
        self._test = self.on_split("test", self._settings.test_size, "evaluation.test_size")
        if config.model.backbone == "autoencoder":
            # It rebuilds every position.
            count = min(_TRIED, self._settings.test_size)
            tokens, targets, lengths = task.examples("test", 0, count)
            ends = np.array([tokens.shape[1]] * len(tokens)) if lengths is None else lengths
            present = np.arange(tokens.shape[1]) < ends[:, None]
            if any((classes[present] == IGNORED).any() for classes in targets.values()):
                condition = "must be 'causal' for a task that leaves positions unscored"
                raise SettingError("model.backbone", f"{condition} ({task.name})", "autoencoder")
        self._test_at = self._at("test", "lengths")
        self._validation_at = self._at("validation", "validation_lengths")

    def on_split(
        self, split: Split, count: int, setting: str, length: int | None = None
    ) -> SplitEvaluator:
        """Return an evaluator on the first sequences of a split; messages name the setting."""
        given = (self._task, split, count, length)
        return built(setting, SplitEvaluator, *given, batch_size=self._batch_size)

    def _at(self, split: Split, name: str) -> dict[int, SplitEvaluator]:
        at_most, tokens = getattr(self._settings, f"{split}_size"), self._settings.tokens
        found = {}
        for length in getattr(self._settings, name):
            count = sequences_at(length, at_most=at_most, tokens=tokens)
            found[length] = self.on_split(split, count, f"evaluation.{name}", length)
        return found

    def score(self, loop: Loop, evaluator: SplitEvaluator) -> HeadScores:
        """Return the scores of a loop's model; a signal ends the evaluation."""
        model: Any = loop.model
        return evaluator(model, autocast=loop.fabric.autocast, tick=loop.interrupts.check)

    def evaluate(self, loop: Loop) -> tuple[Row, str]:
        batches: Any = loop.batches
        with attributes_set(loop.model, self._settings.attributes):
            test, validation = self.score(loop, self._test), self.score(loop, self._validation)
            further = {length: self.score(loop, at) for length, at in self._validation_at.items()}
        by_split = [("test", test), ("validation", validation)]
        by_split += [("validation", heads) for heads in further.values()]
        for split, loss in ((s, scores.loss) for s, heads in by_split for scores in heads.values()):
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"loss of the {split} sequences must be finite, got {loss} after step "
                    f"{loop.step} of {loop.num_steps}; a smaller learning rate or clip_norm may "
                    "help"
                )
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

    def scores(self, row: Row) -> dict[str, float]:
        return {
            "best_test": _stored_accuracy(row["test"][str(self._task.length)]),
            "best_validation": _stored_accuracy(row["validation"]),
        }

    def ends(self, row: Row) -> bool:
        stop_at = self._settings.stop_at
        return stop_at is not None and _stored_accuracy(row["validation"]) > stop_at

    def summary(self, loop: Loop) -> dict[str, Any]:
        kept = ("step", "epoch", "attributes", "validation", "test")
        summary: dict[str, Any] = {n: {k: row[k] for k in kept} for n, row in self.rows.items()}
        summary["test_at_best_validation"] = summary.pop("best_validation")
        test = dict(summary["last"]["test"])
        with attributes_set(loop.model, self._settings.attributes):
            for length, evaluator in self._test_at.items():
                # The evaluations during training have covered the training length.
                if length != self._task.length:
                    scores = self.score(loop, evaluator)
                    test[str(length)] = to_plain(scores)
                    loop.emit("evaluated", f"length {length}: test {accuracy(scores):.4f}")
        summary["last"]["test"] = {length: test[length] for length in sorted(test, key=int)}
        return summary


def _stored_accuracy(heads: Mapping[str, Mapping[str, float]]) -> float:
    return math.fsum(scores["token_accuracy"] for scores in heads.values()) / len(heads)


def evaluate(
    model: ReadoutModel,
    examples: Examples,
    *,
    batch_size: int = 128,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    tick: Callable[[], None] | None = None,
) -> dict[str, Scores]:
    """Score a model on examples.

    Long sequences are processed in pieces, so that activations do not grow with the length.

    Args:
        model: model to score; it is left in evaluation mode.
        examples: tokens (N, T) and targets for every head of the model.
        batch_size: sequences per batch of the MAD accuracy, which depends on it.
        autocast: maker of the context in which the model runs, for mixed precision.
        tick: function called before each piece; an exception from it ends the evaluation.

    Returns:
        Head -> its scores.

    Raises:
        ValueError: if heads, shapes, targets, tokens or ``batch_size`` do not fit.
        TypeError: if a dtype does not fit.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    tokens = torch.from_numpy(examples.tokens)
    targets = {head: torch.from_numpy(classes) for head, classes in examples.targets.items()}
    _check_targets(model, tokens, targets)
    lengths = None if examples.lengths is None else torch.from_numpy(examples.lengths)
    predictions = {head: torch.empty_like(classes) for head, classes in targets.items()}
    losses = dict.fromkeys(targets, 0.0)

    def moved(pieces: Iterable[Tensor]) -> Iterator[Tensor]:
        for piece in pieces:
            if tick is not None:
                tick()
            yield piece.to(model.device)

    num_rows, length = tokens.shape
    at_once = max(_TOKENS_PER_CALL // length, _ROWS_AT_LEAST)
    span = max(1, _TOKENS_PER_CALL // min(at_once, num_rows))
    model.eval()
    with torch.inference_mode(), autocast():
        for row in range(0, num_rows, at_once):
            rows = slice(row, row + at_once)
            pieces = moved(torch.split(tokens[rows], span, dim=1))
            row_lengths = None if lengths is None else lengths[rows].to(model.device)
            found: dict[str, list[tuple[Tensor, Tensor]]] = {head: [] for head in targets}
            for place, logits in enumerate(model.in_pieces(pieces, row_lengths)):
                for head, classes in targets.items():
                    wanted = classes[rows, place * span : (place + 1) * span]
                    # A loss in 16 bits would be a few digits.
                    wide = logits[head].to(torch.promote_types(logits[head].dtype, torch.float32))
                    loss = functional.cross_entropy(
                        wide.flatten(0, 1),
                        wanted.to(wide.device).flatten(),
                        ignore_index=IGNORED,
                        reduction="sum",
                    )
                    found[head].append((loss, wide.argmax(-1)))
            for head, pairs in found.items():
                piece_losses, predicted = zip(*pairs, strict=True)
                predictions[head][rows] = torch.cat(predicted, dim=1).cpu()
                for loss in torch.stack(piece_losses).tolist():
                    losses[head] += loss
    return {
        head: _scores(predictions[head], classes, losses[head], batch_size)
        for head, classes in targets.items()
    }


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


def _scores(predictions: Tensor, wanted: Tensor, loss: float, batch_size: int) -> Scores:
    scored = wanted != IGNORED
    num_scored, num_sequences = int(scored.sum()), len(wanted)
    right = (predictions == wanted) & scored
    batches = [torch.split(classes, batch_size) for classes in (predictions, wanted)]
    mad = [mad_accuracy(*pair) * len(pair[0]) for pair in zip(*batches, strict=True)]
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

    Positions with the target -100 do not count. The average is 0 if no position is scored.

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
