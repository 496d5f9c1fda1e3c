"""Hooks around the steps of a loop: what they are, evaluation, and checkpoints."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from statemix.errors import RequestError
from statemix.files import append, naming
from statemix.memory import is_shortage
from statemix.training.checkpoint import (
    TensorFiles,
    load_checkpoint,
    newest_before,
    save_checkpoint,
)
from statemix.training.settings import finite

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


class Hook:
    """Something that happens around the steps of a loop; a subclass overrides what it needs.

    The loop has the attributes ``model``, ``optimizer``, ``batches``, ``step`` (number of steps
    done), ``num_steps`` (steps of the whole run) and ``stopped``. A hook may change ``num_steps``
    and the options of the optimiser's groups. ``loop.stopped = True`` ends the training early.

    Hooks are called in the order in which the loop holds them. What changes in a hook with the
    steps belongs into :meth:`state_dict` and :meth:`tensors`, or a resumed run ends differently.
    """

    changes_results: ClassVar[bool] = True
    """False for a hook that only looks on: ``fit`` does not compare it."""

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

    def summary(self, loop: "Loop") -> dict[str, Any]:
        """Return entries for the summary of a run that has ended, as JSON data."""
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
    """Add what a hook stores, under names of files that nothing else has."""
    for name in further:
        if name in stored or name in reserved or Path(name).name != name:
            raise RequestError(f"hooks must store under names of their own, got {name!r}")
    stored |= further


Row = dict[str, Any]
"""What an evaluation leaves in the metrics, as JSON data."""


class Evaluation(Hook):
    """Evaluates from time to time and at the end, and keeps the best weights.

    A subclass defines :meth:`evaluate`, and may define :meth:`scores`, :meth:`ends` and
    :meth:`summary`. The rows go to the file ``metrics``, which the first process has alone.
    """

    def __init__(self, every: int, metrics: Path | None) -> None:
        self._every, self._metrics, self._size = every, metrics, 0
        self.rows: dict[str, Row] = {}
        """The last row ("last") and the best by every criterion."""
        self.weights: TensorFiles = {}
        """Name of a criterion -> weights at its best row."""
        self.evaluated_at = 0
        """Steps done at the last evaluation."""

    def evaluate(self, loop: "Loop") -> tuple[Row, str]:
        """Return the row of an evaluation, and a line about it for a reader."""
        raise NotImplementedError

    def scores(self, row: Row) -> dict[str, float]:
        """Return name of a criterion -> its value: the first row with the highest is chosen."""
        del row
        return {}

    def ends(self, row: Row) -> bool:
        """Return whether training ends early."""
        del row
        return False

    def on_start(self, loop: "Loop") -> None:
        del loop
        if self._metrics is not None:
            # Cut off what a resumed run will write again, and a row that is not whole.
            with self._metrics.open("ab") as file:
                file.truncate(self._metrics.read_bytes()[: self._size].rfind(b"\n") + 1)

    def before_step(self, loop: "Loop") -> None:
        is_due = loop.step % self._every == 0 or loop.stopped or loop.step >= loop.num_steps
        if loop.step == self.evaluated_at or not is_due:
            return
        row, text = self.evaluate(loop)
        for hook in loop.hooks:
            row |= hook.row(loop)
        row |= {"train": loop.averages.read(), "time_s": loop.time_s}
        self.rows["last"] = row
        for name, value in self.scores(row).items():
            # Of equal values, the first one counts.
            if name not in self.rows or value > self.scores(self.rows[name])[name]:
                self.rows[name] = row
                weights = loop.model.state_dict()
                self.weights[name] = {key: t.detach().clone() for key, t in weights.items()}
        if self._metrics is not None:
            append(self._metrics, json.dumps(finite(row)) + "\n")
        self.evaluated_at = loop.step
        loop.stopped |= self.ends(row)
        text = f"step {loop.step}: train loss {row['train']['loss']:.4f}{text}"
        loop.emit("evaluated", text, row=row)

    def summary(self, loop: "Loop") -> dict[str, Any]:
        del loop
        return self.rows

    def forget(self, step: int) -> None:
        """Forget all rows: weights that are given up at this step are not the run's."""
        self.rows, self.weights, self.evaluated_at = {}, {}, step

    def state_dict(self) -> dict[str, Any]:
        size = 0
        if self._metrics is not None:
            with naming(self._metrics), self._metrics.open("ab") as file:
                os.fsync(file.fileno())
                size = file.tell()
        counts = {"evaluated_at": self.evaluated_at, "metrics_bytes": size}
        return {**counts, "selections": self.rows}

    def tensors(self) -> TensorFiles:
        return self.weights

    def load_state_dict(self, state: Mapping[str, Any], tensors: TensorFiles) -> None:
        self.evaluated_at, self._size = state["evaluated_at"], state["metrics_bytes"]
        self.rows = dict(state["selections"])
        self.weights = {name: tensors[name] for name in self.rows if name in tensors}


# Fewest seconds between checkpoints, and the largest share of the time that they take.
_LEAST_S, _LARGEST_SHARE = 10.0, 0.02


class Checkpoints(Hook):
    """Saves a checkpoint from time to time, when the loop is interrupted, and at the end."""

    def __init__(self, folder: Path, every_s: float | None) -> None:
        self._folder, self._every_s = folder, every_s
        self._wait_s = _LEAST_S if every_s is None else every_s

    def resume(self, loop: "Loop") -> bool:
        """Restore a loop from the newest checkpoint; return whether there is one."""
        if loop.ranks.size == 1 and not self._folder.exists():
            return False
        found = load_checkpoint(self._folder, loop.report, loop.model.state_dict(), loop.ranks)
        if found is None:
            return False
        tensors, state = found
        try:
            loop.load_state_dict(state, tensors)
        except (RuntimeError, KeyError) as error:
            if is_shortage(error):
                raise
            text = f"{self._folder}: model, optimizer and hooks must match the checkpoint: "
            raise RequestError(text + " ".join(str(error).split())) from error
        return True

    def before_failure(self, step: int) -> str:
        """Say which checkpoint of fewer steps is the newest."""
        good = newest_before(self._folder, step)
        return f"the last good checkpoint is {good}" if good else "no good checkpoint was saved yet"

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
        save_checkpoint(self._folder, loop.step, loop.tensors(), loop.state_dict(), loop.ranks)
        if self._every_s is None:
            # All processes must save the next checkpoint at the same step.
            cost_s = loop.ranks.on_first(lambda: time.monotonic() - began)
            self._wait_s = max(_LEAST_S, cost_s / _LARGEST_SHARE)
        self._saved_at = loop.clock
        loop.emit("saved", f"checkpoint at step {loop.step}")
