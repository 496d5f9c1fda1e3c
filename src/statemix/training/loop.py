"""The training loop, for any model on any batches, and the hooks around its steps."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from statemix.errors import RequestError
from statemix.files import append, naming
from statemix.interrupts import Interrupts
from statemix.memory import is_shortage
from statemix.training import devices
from statemix.training.batches import Averages, Batches
from statemix.training.checkpoint import (
    TensorFiles,
    load_checkpoint,
    load_optimizer,
    newest_before,
    optimizer_state,
    save_checkpoint,
)
from statemix.training.devices import ALONE, Agreement, Ranks
from statemix.training.settings import finite

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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

    def losses(self, loop: "Loop", batch: Any) -> dict[str, Tensor]:  # noqa: ARG002
        """Return further losses of a batch by name."""
        return {}

    def row(self, loop: "Loop") -> dict[str, Any]:  # noqa: ARG002
        """Return entries for the row of an evaluation, as JSON data."""
        return {}

    def summary(self, loop: "Loop") -> dict[str, Any]:  # noqa: ARG002
        """Return entries for the summary of a run that has ended, as JSON data."""
        return {}

    def on_divergence(self, loop: "Loop", error: FloatingPointError) -> bool:  # noqa: ARG002
        """Return whether the loop may continue although a loss was not finite."""
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


def _add(stored: dict[str, Any], further: Mapping[str, Any], reserved: str) -> None:
    """Add what a hook stores, under names of files that nothing else has."""
    for name in further:
        if name in stored or name == reserved or Path(name).name != name:
            raise RequestError(f"hooks must store under names of their own, got {name!r}")
    stored |= further


Row = dict[str, Any]
"""What an evaluation leaves in the metrics, as JSON data."""


class Evaluation(Hook):
    """Evaluates from time to time and at the end, and keeps the best weights.

    The rows go to the file ``metrics``, which the first process has alone.
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

    def scores(self, row: Row) -> dict[str, float]:  # noqa: ARG002
        """Return name of a criterion -> its value: the first row with the highest is chosen."""
        return {}

    def ends(self, row: Row) -> bool:  # noqa: ARG002
        """Return whether training ends early."""
        return False

    def on_start(self, loop: "Loop") -> None:  # noqa: ARG002
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
        train_loss = row["train"]["loss"]
        loop.emit("evaluated", f"step {loop.step}: train loss {train_loss:.4f}{text}", row=row)

    def summary(self, loop: "Loop") -> dict[str, Any]:  # noqa: ARG002
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
        return {"evaluated_at": self.evaluated_at, "metrics_bytes": size, "selections": self.rows}

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
        found = load_checkpoint(
            self._folder, partial(loop.emit, "message"), loop.model.state_dict(), loop.ranks
        )
        if found is None:
            return False
        try:
            loop.load_state_dict(found[1], found[0])
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


class Loop:
    """Trains any model on batches, independent of tasks and layers.

    Every step is a function of its number and of the contents of :meth:`tensors` and
    :meth:`state_dict`, so a loop restored from them continues bit-identically. Each step waits for
    the device once, to check that loss and gradient are finite before the optimiser uses them.
    Losses are summed over the batches of a step and over processes, as gradients are. The arguments
    and attributes are as in :func:`statemix.training.fit` and :class:`Hook`.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batches,
        loss: Callable[[Any, Any], Tensor | dict[str, Tensor]],
        *,
        optimizer: torch.optim.Optimizer,
        fabric: "Fabric",
        hooks: Sequence[Hook] = (),
        clip_norm: float | None = None,
        seed: int = 0,
        emit: Callable[[Event], None] | None = None,
        interrupts: Interrupts | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model, self.batches, self.optimizer = model, batch, optimizer
        self.fabric, self.hooks = fabric, list(hooks)
        self.step, self.num_steps, self.stopped = 0, batch.num_steps, False
        self.interrupts, self.ranks = interrupts or Interrupts(), ranks
        self.averages = Averages()
        self._loss, self._clip_norm, self._seed = loss, clip_norm, seed
        self._emit = emit
        self._resumed, self._before_s, self._before_cpu_s = False, 0.0, 0.0
        self._began, self._cpu_began = time.monotonic(), time.process_time()
        # The wrapped pair trains; the bare pair is evaluated, saved and restored.
        set_up = fabric.setup if ranks.size == 1 else partial(devices.set_up_model, fabric)
        self._wrapped: Any = set_up(model, optimizer)
        self._agreement = Agreement(ranks, self.interrupts, fabric.device)
        self._forms = _forms(model)
        self._parameters = list(model.parameters())
        self._reporting = {
            name: module for name, module in model.named_modules() if hasattr(module, "reports")
        }

    def run(self) -> None:
        """Train up to the last step, or until a hook stops the loop."""
        self._began, self._cpu_began = time.monotonic(), time.process_time()
        began = "resumed" if self._resumed else "started"
        if self.ranks.size > 1:
            self._agreement.start()
        try:
            for hook in self.hooks:
                hook.on_start(self)
            self.emit("started", f"{began} at step {self.step} of {self.num_steps}")
            for step in iter(self._next_step, None):
                try:
                    loss = self.train_step(step)
                except FloatingPointError as error:
                    self._recover(error)
                    continue
                for hook in self.hooks:
                    hook.after_step(self, loss)
                self.emit("step", loss=loss)
            for hook in self.hooks:
                hook.on_end(self)
        # None of these is raised while the optimiser changes the weights.
        except (KeyboardInterrupt, FloatingPointError, RequestError):
            if self.step > 0 and not self.interrupts.forced:
                for hook in self.hooks:
                    hook.on_stop(self)
            raise

    def _next_step(self) -> int | None:
        """Let hooks act between two steps; return the next step, None at the end."""
        try:
            for hook in self.hooks:
                hook.before_step(self)
        except FloatingPointError as error:
            self._recover(error)
        if self.ranks.size == 1:
            self.interrupts.check()
        elif self._agreement.interrupted:
            raise KeyboardInterrupt
        return None if self.stopped or self.step >= self.num_steps else self.step

    def _recover(self, error: FloatingPointError) -> None:
        if not any(hook.on_divergence(self, error) for hook in self.hooks):
            raise error

    def train_step(self, step: int) -> float:
        """Make the optimiser step of a number, counted from 0; return the loss before it.

        If the loss or the gradient is not finite, FloatingPointError leaves the weights unchanged.
        """
        model, optimizer = self._wrapped
        model.train()
        # What layers draw depends on no earlier step. An odd multiplier keeps the sequences of two
        # seeds apart.
        own = self._seed * 0x9E3779B97F4A7C15 + self.ranks.rank * 0xBF58476D1CE4E5B9
        seed = (own + step) % 2**64
        # torch.manual_seed looks at every kind of device, which takes a hundred times as long.
        torch.default_generator.manual_seed(seed)
        if self.fabric.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        loss = torch.zeros((), device=self.fabric.device)
        parts, reports = [], []
        batches = self.batches.parts(step)
        for place, batch in enumerate(batches, 1):
            # Fabric converts a model's outputs to the default dtype, which would round float64.
            with self.fabric.strategy.precision.tensor_init_context():
                losses = self._batch_losses(model, batch)
            part = torch.stack(list(losses.values())).sum()
            self._backward(model, part, is_last=place == len(batches))
            loss = loss + part.detach()
            parts.append(losses)
            reports.append(
                {
                    f"{name}.{key}": number
                    for name, module in self._reporting.items()
                    for key, number in module.reports().items()
                }
            )
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = get_total_norm([g.coalesce().values() if g.is_sparse else g for g in gradients])
        numbers = [loss.double(), norm.double()]
        if self.ranks.size > 1:
            loss, parts, reports, agreed = self._agreement.sums(parts, reports)
            numbers = [loss, devices.whole_tensor(norm).double(), *agreed]
        # The only wait for the device.
        value, length, *agreed_on = torch.stack(numbers).tolist()
        if agreed_on:
            self._agreement.read(agreed_on)
        if error := self.refusal(value, length):
            optimizer.zero_grad()
            raise error
        if self._clip_norm is not None:
            clip_grads_with_norm_(self._parameters, self._clip_norm, norm)
        if step == 0:
            self.check_weights()
        # The averages must not include a step that failed.
        self.averages.collect(parts, reports)
        optimizer.step()
        optimizer.zero_grad()
        self.step = step + 1
        if step == 0:
            # What cannot be resumed shows now.
            optimizer_state(self.optimizer, self.model)
        return float(value)

    def _batch_losses(self, model: Any, batch: Any) -> dict[str, Tensor]:
        def losses(net: Any) -> dict[str, Tensor]:
            table = _by_name(self._loss(net, batch))
            for hook in self.hooks:
                table |= hook.losses(self, batch)
            return table

        return losses(model) if self.ranks.size == 1 else cast(dict[str, Tensor], model(losses))

    def _backward(self, model: Any, loss: Tensor, *, is_last: bool) -> None:
        if self.ranks.size == 1:
            self.fabric.backward(loss)
            return
        # DDP and FSDP2 average gradients, whose sum is that of one process.
        with self.fabric.no_backward_sync(model, enabled=not is_last):
            self.fabric.backward(loss * self.ranks.size)

    def refusal(self, loss: float, norm: float) -> FloatingPointError | None:
        """Return why the next step must not be made; None if loss and gradient are finite."""
        if math.isfinite(loss) and math.isfinite(norm):
            return None
        is_norm = math.isfinite(loss)
        name, value = ("norm of the gradient", norm) if is_norm else ("loss", loss)
        # Groups that are frozen have the factor 0.
        group = max(self.optimizer.param_groups, key=lambda one: one.get("rate_factor", 1.0))
        rate = group.get("lr", math.nan) / (group.get("rate_factor", 1.0) or 1.0)
        return FloatingPointError(
            f"{name} must be finite, got {value} at step {self.step + 1} of {self.num_steps} with "
            f"learning rate {rate:.3g}; a smaller rate or clip_norm may help"
        )

    def check_weights(self) -> None:
        """Check that calls of the model have made no weights, which a new model would not have."""
        before, after = self._forms, _forms(self.model)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                kind = "changed the shape or the dtype of" if name in before else "created"
                raise RequestError(
                    f"weights of the model must stay as they are: a call has {kind} {name!r}; "
                    "create weights in `__init__`"
                )

    def restart(self, weights: Mapping[str, Tensor]) -> None:
        """Continue with new weights and a new state of the optimiser, but with the next batches."""
        self.model.load_state_dict(dict(weights))
        self.optimizer.state.clear()
        self.averages = Averages()

    def emit(self, kind: Any, text: str = "", **fields: Any) -> None:
        if self._emit is not None:
            self._emit(Event(kind, self.step, self.num_steps, text=text, **fields))

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.numel() for parameter in self._parameters if parameter.requires_grad)

    @property
    def time_s(self) -> float:
        """Seconds of training so far, without interruptions."""
        return round(self._before_s + time.monotonic() - self._began, 3)

    @property
    def cpu_s(self) -> float:
        """Processor time of this process so far in seconds, without interruptions."""
        return round(self._before_cpu_s + time.process_time() - self._cpu_began, 3)

    @property
    def clock(self) -> float:
        """Seconds of a clock that never goes back, the same in all processes between two steps."""
        return time.monotonic() if self.ranks.size == 1 else self._agreement.clock

    def call(self, function: Callable[[Any], Any]) -> Any:
        """Call a function of the model between two steps, with all shards."""
        whole = self._wrapped[0]
        if not any(map(devices.is_sharded, self._parameters)):
            return function(self.model)
        found = whole(function)
        # Without a backward pass, the weights would stay whole.
        whole.reshard()
        return found

    def tensors(self) -> TensorFiles:
        """Return weights, state of the optimiser and tensors of hooks."""
        self.check_weights()
        weights = dict(self.model.state_dict())
        files = {"model": weights, "optimizer": optimizer_state(self.optimizer, self.model)[0]}
        buffers = {n: b for n, b in self.model.named_buffers() if n not in weights}
        if buffers:
            files["buffers"] = buffers
        for hook in self.hooks:
            _add(files, hook.tensors(), "buffers")
        return files

    def state_dict(self) -> dict[str, Any]:
        """Return everything else that changes with the steps, as JSON data."""
        state = {
            # Hooks store what they count beside "trainer".
            "trainer": {"step": self.step, "cpu_s": self.cpu_s, **self.averages.state_dict()},
            "stopped": self.stopped,
            "time_s": self.time_s,
            "optimizer": optimizer_state(self.optimizer, self.model)[1],
        }
        for hook in self.hooks:
            _add(state, hook.state_dict(), "files")
        return state

    def load_state_dict(self, state: Mapping[str, Any], tensors: TensorFiles) -> None:
        """Restore the results of :meth:`state_dict` and :meth:`tensors`."""
        self.model.load_state_dict(tensors["model"])
        for name, buffer in tensors.get("buffers", {}).items():
            path, _, attribute = name.rpartition(".")
            module = self.model.get_submodule(path)
            if attribute not in module._buffers:
                # A call has made it.
                module.register_buffer(attribute, None, persistent=False)
            setattr(module, attribute, buffer.to(self.fabric.device))
        # Checkpoints of older versions hold tensors alone.
        load_optimizer(self.optimizer, self.model, tensors["optimizer"], state.get("optimizer", {}))
        self.step, self.stopped = state["trainer"]["step"], state["stopped"]
        self._resumed = True
        # Checkpoints of older versions lack the processor time. On one core it is about the time.
        self._before_s = state["time_s"]
        self._before_cpu_s = state["trainer"].get("cpu_s", self._before_s)
        self.averages.load_state_dict(state["trainer"], self.fabric.device)
        for hook in self.hooks:
            hook.load_state_dict(state, tensors)


def _by_name(found: Any) -> dict[str, Tensor]:
    losses = {"train": found} if isinstance(found, Tensor) else found
    condition = "loss must be a tensor of shape (), or a table of such tensors by name"
    if not isinstance(losses, Mapping) or not losses:
        raise RequestError(f"{condition}, got {found!r}")
    for name, part in losses.items():
        if not isinstance(part, Tensor) or part.shape:
            got = f"shape {tuple(part.shape)}" if isinstance(part, Tensor) else repr(part)
            raise RequestError(f"{condition}, got {got} for {name!r}")
    return dict(losses)


def _forms(model: nn.Module) -> dict[str, Any]:
    weights = model.state_dict().items()
    return {name: (t.shape, t.dtype) for name, t in weights if isinstance(t, Tensor)}
