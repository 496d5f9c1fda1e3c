"""Hooks around the steps of a loop, and the optimiser whose rates they set."""

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from statemix.errors import RequestError, SettingError
from statemix.files import append, naming
from statemix.models import earlier_name
from statemix.training.checkpoint import save_checkpoint
from statemix.training.config import OptimizerConfig, ScheduleConfig
from statemix.training.plain import finite
from statemix.training.schedules import Attributes
from statemix.training.shards_on_disk import TensorFiles

if TYPE_CHECKING:
    from statemix.training.loop import Loop


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run.

    Attributes:
        kind: "started" (or resumed), "step", "evaluated" (a row of metrics), "saved" (a
            checkpoint), "message" (something the user should know), "finished".
        step: optimiser steps done so far.
        num_steps: steps of the whole run.
        loss: training loss of the step, where ``kind`` is "step".
        row: the row of metrics, where ``kind`` is "evaluated".
        text: one line for a reader; empty for a "step" that nothing describes.
    """

    kind: Literal["started", "step", "evaluated", "saved", "message", "finished"]
    step: int
    num_steps: int
    loss: float | None = None
    row: dict[str, Any] | None = None
    text: str = ""


LEAST_S = 10.0
"""Fewest seconds between the checkpoints of a run, unless asked otherwise."""

LARGEST_SHARE = 0.02
"""Largest share of the time that checkpoints take."""


class Hook:
    """Something that happens around the steps of a loop; a subclass overrides what it needs.

    The loop has the attributes ``model``, ``optimizer``, ``batches``, ``step`` (number of steps
    done), ``num_steps`` (steps of the whole run) and ``stopped``. A hook may change ``num_steps``
    and the options of the optimiser's groups. ``loop.stopped = True`` ends the training early.

    Hooks are called in the order in which the loop holds them. What changes in a hook with the
    steps belongs into :meth:`state_dict` and :meth:`tensors`, or a resumed run ends differently.

    Attributes:
        changes_results: False for a hook that only looks on: ``fit`` does not compare it.
    """

    changes_results: ClassVar[bool] = True

    def on_start(self, loop: "Loop") -> None:
        """Act before the first step of this process; a resumed loop is restored by then."""

    def before_step(self, loop: "Loop") -> None:
        """Act when ``loop.step`` steps are done: before each further step, and after the last."""

    def after_step(self, loop: "Loop", loss: float) -> None:
        """Act after a step that began with this loss."""

    def losses(self, loop: "Loop", batch: Any) -> dict[str, Tensor]:
        """Return further losses of a batch by name."""
        del loop, batch
        return {}

    def row(self, loop: "Loop") -> dict[str, Any]:
        """Return entries for the row of an evaluation, as JSON data."""
        del loop
        return {}

    def on_divergence(self, loop: "Loop", error: FloatingPointError) -> bool:
        """Return whether the loop may continue although a loss was not finite."""
        del loop, error
        return False

    def on_stop(self, loop: "Loop") -> None:
        """Act when an interrupt, a divergence or a refused setting ends the loop early."""

    def on_end(self, loop: "Loop") -> None:
        """Act after the last step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as JSON data under names that no other hook uses."""
        return {}

    def tensors(self) -> TensorFiles:
        """Return the tensors that a checkpoint stores, by names of files."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], tensors: TensorFiles) -> None:
        """Restore this hook from the state and the tensors of all hooks."""


def add_stored(stored: dict[str, Any], further: Mapping[str, Any], reserved: Sequence[str]) -> None:
    """Add what a hook stores, under names of files that nothing else has.

    Raises:
        RequestError: if a name is taken, or is no name of a file.
    """
    for name in further:
        if name in stored or name in reserved or Path(name).name != name:
            raise RequestError(f"hooks must store under names of their own, got {name!r}")
    stored |= further


Row = dict[str, Any]
"""What an evaluation leaves in the metrics, as JSON data."""


class Evaluation(Hook):
    """Evaluates from time to time and at the end, and keeps the best weights.

    Args:
        evaluate: returns the row of an evaluation, and a line about it for a reader.
        every: steps between two evaluations.
        metrics: file of the rows; None writes none, as in all processes of a run but the first.
        criteria: name of a choice of weights -> function of a row; the first row with the highest
            value is chosen.
        stop_if: function of a row; training ends early when it is true. None means never.

    Attributes:
        rows: the last row ("last") and the best by every criterion.
        weights: name of a criterion -> weights at its best row.
        evaluated_at: steps done at the last evaluation.
    """

    def __init__(
        self,
        evaluate: Callable[["Loop"], tuple[Row, str]],
        *,
        every: int,
        metrics: Path | None,
        criteria: Mapping[str, Callable[[Row], float]],
        stop_if: Callable[[Row], bool] | None = None,
    ) -> None:
        self._evaluate, self._every, self._metrics = evaluate, every, metrics
        self._criteria, self._stop_if = criteria, stop_if
        self._size = 0
        self.rows: dict[str, Row] = {}
        self.weights: TensorFiles = {}
        self.evaluated_at = 0

    def on_start(self, loop: "Loop") -> None:
        if self._metrics is not None:
            cut_rows(self._metrics, self._size, loop.report)

    def before_step(self, loop: "Loop") -> None:
        is_due = loop.step % self._every == 0 or loop.stopped or loop.step >= loop.num_steps
        if loop.step == self.evaluated_at or not is_due:
            return
        row, text = self._evaluate(loop)
        for hook in loop.hooks:
            row |= hook.row(loop)
        averages = loop.averages.read()
        row |= {"train": averages, "time_s": loop.time_s}
        self.rows["last"] = row
        for name, criterion in self._criteria.items():
            value = criterion(row)
            # Of equal values, the first one counts.
            if name not in self.rows or value > criterion(self.rows[name]):
                self.rows[name] = row
                self.weights[name] = _copy(loop.model.state_dict())
        if self._metrics is not None:
            append(self._metrics, json.dumps(finite(row)) + "\n")
        self.evaluated_at = loop.step
        if self._stop_if is not None and self._stop_if(row):
            loop.stopped = True
        text = f"step {loop.step}: train loss {averages['loss']:.4f}{text}"
        loop.emit("evaluated", text, row=row)

    def forget(self, step: int) -> None:
        """Forget all rows: weights that are given up at this step are not the run's."""
        self.rows, self.weights, self.evaluated_at = {}, {}, step

    def state_dict(self) -> dict[str, Any]:
        return {
            "evaluated_at": self.evaluated_at,
            "metrics_bytes": 0 if self._metrics is None else sync_rows(self._metrics),
            "selections": self.rows,
        }

    def tensors(self) -> TensorFiles:
        return self.weights

    def load_state_dict(self, state: Mapping[str, Any], tensors: TensorFiles) -> None:
        self.evaluated_at, self._size = state["evaluated_at"], state["metrics_bytes"]
        self.rows = dict(state["selections"])
        self.weights = {name: tensors[name] for name in self._criteria if name in tensors}


class Schedules(Hook):
    """Sets the learning rate and the scheduled attributes before every step.

    Args:
        config: the schedules.
        base_rate: learning rate at the beginning.
        model: model whose attributes are scheduled; it has its initial values.
        num_steps: steps of the schedules.
        steps_per_epoch: steps of one epoch; 1 on fresh examples.

    Attributes:
        origin: steps done when the schedules begin; None while they wait for it.
        began: steps done when the present weights were new; the warm-up begins there.

    Raises:
        SettingError: as in :class:`statemix.training.schedules.Attributes`.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        base_rate: float,
        model: nn.Module,
        *,
        num_steps: int,
        steps_per_epoch: int,
    ) -> None:
        self._config, self._base_rate = config, base_rate
        self._num_steps, self._steps_per_epoch = num_steps, steps_per_epoch
        self._attributes = Attributes(model, config.attributes) if config.attributes else None
        self.origin: int | None = 0
        self.began = 0

    def before_step(self, loop: "Loop") -> None:
        self.attributes(loop.step)
        rate = self.learning_rate(loop.step)
        for group in loop.optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]

    def row(self, loop: "Loop") -> dict[str, Any]:
        rate = self.learning_rate(max(loop.step - 1, 0))
        return {"attributes": self.attributes(loop.step), "learning_rate": rate}

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of step ``step``, counted from 0."""
        done = self._scheduled(step)
        rate = learning_rate(
            self._base_rate, self._config, done, self._num_steps, self._steps_per_epoch
        )
        return rate * warmup(self._config, step - self.began)

    def attributes(self, step: int) -> dict[str, float]:
        """Set the scheduled attributes to their values at a step; return them by module."""
        if self._attributes is None:
            return {}
        return self._attributes.set(self._scheduled(step), self._num_steps)

    def _scheduled(self, step: int) -> int:
        """Return the steps of the schedules that are done before step ``step``."""
        return 0 if self.origin is None else max(step - self.origin, 0)


class TorchSchedule(Hook):
    """A schedule of PyTorch, which steps after each step of the optimiser.

    ``ReduceLROnPlateau`` steps after each evaluation. The others depend on the number of steps
    alone, so a resumed run repeats their steps.

    Args:
        scheduler: the schedule, where it begins.
        evaluation: the evaluation, called before this hook.
        criterion: name of the score that ``ReduceLROnPlateau`` reads.
    """

    def __init__(
        self, scheduler: LRScheduler, evaluation: Evaluation, criterion: str | None
    ) -> None:
        self._scheduler, self._evaluation, self._criterion = scheduler, evaluation, criterion
        self._options = [
            {name: value for name, value in group.items() if name != "params"}
            for group in scheduler.optimizer.param_groups
        ]
        self._read_at = 0

    def before_step(self, loop: "Loop") -> None:
        del loop
        scheduler, at = self._scheduler, self._evaluation.evaluated_at
        if isinstance(scheduler, ReduceLROnPlateau) and at > self._read_at:
            scheduler.step(self._evaluation.rows["last"]["scores"][self._criterion])
            self._read_at = at

    def after_step(self, loop: "Loop", loss: float) -> None:
        del loop, loss
        self._step()

    def _step(self) -> None:
        if not isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        if not isinstance(self._scheduler, ReduceLROnPlateau):
            return {}
        # As text: infinities are no JSON.
        return {"plateau": [self._read_at, json.dumps(self._scheduler.state_dict())]}

    def load_state_dict(self, state: Mapping[str, Any], tensors: TensorFiles) -> None:
        del tensors
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._read_at, text = state["plateau"]
            self._scheduler.load_state_dict(json.loads(text))
            return
        for group, options in zip(
            self._scheduler.optimizer.param_groups, self._options, strict=True
        ):
            group.update(options)
        with warnings.catch_warnings():
            # The optimiser has made these steps in another process.
            warnings.filterwarnings("ignore", "Detected call of .lr_scheduler.step", UserWarning)
            for _ in range(state["trainer"]["step"]):
                self._step()


class Checkpoints(Hook):
    """Saves a checkpoint from time to time, when the loop is interrupted, and at the end.

    Args:
        folder: folder of the checkpoints.
        every_s: seconds between two checkpoints. None means :data:`LEAST_S`, or more where saving
            would take a larger share of the time than :data:`LARGEST_SHARE`.
    """

    def __init__(self, folder: Path, every_s: float | None) -> None:
        self._folder, self._every_s = folder, every_s
        self._wait_s = LEAST_S if every_s is None else every_s

    def on_start(self, loop: "Loop") -> None:
        self._saved_at = loop.clock

    def before_step(self, loop: "Loop") -> None:
        if loop.clock - self._saved_at >= self._wait_s:
            self.save(loop)

    def on_stop(self, loop: "Loop") -> None:
        self.save(loop)

    def on_end(self, loop: "Loop") -> None:
        self.save(loop)

    def save(self, loop: "Loop") -> None:
        """Save a checkpoint."""
        began = time.monotonic()
        save_checkpoint(
            self._folder, loop.step, loop.tensors(), loop.state_dict(), ranks=loop.ranks
        )
        if self._every_s is None:
            # All processes must save the next checkpoint at the same step.
            cost_s = loop.ranks.on_first(lambda: time.monotonic() - began)
            self._wait_s = max(LEAST_S, cost_s / LARGEST_SHARE)
        self._saved_at = loop.clock
        loop.emit("saved", f"checkpoint at step {loop.step}")


def cut_rows(path: Path, size: int, report: Callable[[str], None]) -> None:
    """Make a file of rows if absent, and cut off what a resumed run will write again.

    Args:
        path: the file.
        size: its bytes at the time of the checkpoint.
        report: called with a line if the size has changed since.
    """
    with path.open("ab") as file:
        found = file.tell()
        if found < size:
            report(
                f"{path.name} has lost rows: {found} bytes are left of {size}; "
                "training continues without them"
            )
        if found > size:
            report(f"{path.name}: rows after the checkpoint will be written again")
        # A row that is not whole is cut off, too.
        file.truncate(path.read_bytes()[: min(found, size)].rfind(b"\n") + 1)


def sync_rows(path: Path) -> int:
    """Sync all rows of a file to the disk and return their size in bytes."""
    with naming(path), path.open("ab") as file:
        os.fsync(file.fileno())
        return file.tell()


def _copy(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Build AdamW over all parameters.

    As in MAD, biases, norms and embeddings decay unless a group sets their weight decay. The fused
    step is used on every device: it is one pass over the parameters instead of a dozen, which
    matters for models that need a millisecond per step.

    Raises:
        SettingError: if a group's pattern matches no parameter.
    """
    members: list[list[nn.Parameter]] = [[] for _ in (*config.groups, None)]
    for name, parameter in model.named_parameters():
        names = (name, earlier_name(name))
        matching = (
            any(fnmatchcase(one, group.parameters) for one in names) for group in config.groups
        )
        # The last list is for parameters that no group matches.
        place = next((n for n, matches in enumerate(matching) if matches), -1)
        members[place].append(parameter)
    groups: list[dict[str, Any]] = [{"params": members[-1], "rate_factor": 1.0}]
    for place, group in enumerate(config.groups):
        if not members[place]:
            condition = "must match at least one parameter that no group before it matches"
            raise SettingError(f"optimizer.groups.{place}.parameters", condition, group.parameters)
        decay = config.weight_decay if group.weight_decay is None else group.weight_decay
        groups.append(
            {
                "params": members[place],
                "rate_factor": group.learning_rate_factor,
                "weight_decay": decay,
            }
        )
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )


def learning_rate(
    base: float, config: ScheduleConfig, step: int, num_steps: int, steps_per_epoch: int
) -> float:
    r"""Return the learning rate of one optimiser step.

    .. math:: \eta = \eta_{min} + (\eta_0 - \eta_{min}) (1 + \cos(\pi p)) / 2

    where p is the fraction of training done *when the epoch began*. The rate is constant within an
    epoch, as with PyTorch's ``CosineAnnealingLR`` stepped once per epoch (MAD intends this but
    never applies it). :func:`warmup` is a factor of its own.

    Args:
        base: initial rate eta_0.
        config: schedule of the rate.
        step: steps done before this one.
        num_steps: steps of the whole run.
        steps_per_epoch: steps of one epoch; 1 on fresh examples.
    """
    rate = base
    if config.learning_rate == "cosine":
        progress = (step // steps_per_epoch) * steps_per_epoch / num_steps
        low = config.min_learning_rate
        rate = low + (base - low) * (1 + math.cos(math.pi * progress)) / 2
    return rate


def warmup(config: ScheduleConfig, step: int) -> float:
    """Return the factor (step + 1) / warmup_steps of the learning rate, 1 after the warm-up.

    Args:
        config: schedule of the rate.
        step: steps done with these weights before this one.
    """
    return min((step + 1) / config.warmup_steps, 1.0) if config.warmup_steps else 1.0
