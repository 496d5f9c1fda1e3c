"""The training loop: every step is a function of the configuration and its number alone."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from statemix.training import rundir
from statemix.training.batches import Batches
from statemix.training.checkpoint import (
    TensorFiles,
    load_checkpoint,
    optimizer_tensors,
    remove_checkpoints,
    restore_optimizer,
    save_checkpoint,
)
from statemix.training.config import RunConfig
from statemix.training.devices import build_fabric, threads
from statemix.training.evaluation import IGNORED, Scores, draw, evaluate, sequences_at
from statemix.training.events import Event
from statemix.training.interrupts import Interrupts
from statemix.training.optimizer import build_optimizer, inverse_temperature, learning_rate
from statemix.training.rundir import MetricsFile, Outcome, Selection


def train(
    config: RunConfig,
    folder: Path | str,
    *,
    on_event: Callable[[Event], None] | None = None,
    checkpoint_every_s: float = 10.0,
) -> Outcome:
    """Train and evaluate a model, or go on where an interrupted call of the same arguments stopped.

    After Ctrl-C, ``kill -9`` or a power cut at any moment, the same call ends with weights that
    equal those of an uninterrupted run bit for bit, on the same machine with the same number of
    threads (a resumed run takes the number from its folder where ``config`` leaves it open).

    Args:
        config: the run.
        folder: its folder, made if absent. A finished run of the same configuration is returned
            as it is.
        on_event: told what happens, in this thread.
        checkpoint_every_s: seconds between checkpoints. Results do not depend on it.

    Returns:
        The scores at the end, at the best test and at the best validation accuracy.

    Raises:
        ValueError: if the configuration cannot be run, or if the folder holds another run, is in
            use, holds something else or cannot be written.
        OSError: if a file cannot be written later on, for instance because the disk is full.
        FloatingPointError: if the loss or the gradient is not finite; the state before that step
            is saved.
        KeyboardInterrupt: after Ctrl-C, once a checkpoint is saved.
    """
    folder = Path(folder)
    emit = on_event or (lambda _: None)
    # Whatever cannot be run fails here, before anything is written.
    run = _Run(config.resolved(), folder, emit, checkpoint_every_s)
    with rundir.claimed(folder, config) as settled, threads(settled.num_threads):
        if not (folder / rundir.SUMMARY).exists():
            run.to_the_end()
            return rundir.load_outcome(folder)
        outcome = rundir.load_outcome(folder)
        # A run that was killed right after its summary was written leaves them behind.
        remove_checkpoints(folder / rundir.CHECKPOINTS)
        emit(run.event("finished", f"{folder} holds this run, finished"))
        return outcome


Best = Literal["best_test", "best_validation"]
BEST: tuple[Best, ...] = get_args(Best)


class _Run:
    """One run in the making; everything that changes with the steps is saved and restored."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        emit: Callable[[Event], None],
        checkpoint_every_s: float,
    ) -> None:
        self.config = config
        self.folder = folder
        self.emit = emit
        self.checkpoint_every_s = checkpoint_every_s
        self.interrupts = Interrupts()
        self.task = config.build_task()
        self.fabric = build_fabric(config.device, config.precision)
        self.model = rundir.build_model(config, self.task)
        self.base_temperature = float(config.layer_options.get("gate_temperature") or 1.0)
        optimizer = build_optimizer(self.model, config)
        # The wrapped pair trains; the bare pair is evaluated, saved and restored.
        self.wrapped = self.fabric.setup(self.model, optimizer)
        self.optimizer = optimizer
        self.parameters = list(self.model.parameters())

        self.batches = Batches(config, self.task, self.fabric.device)
        self.num_steps = self.batches.num_steps
        with _blamed_on("validation_size"):
            self.validation = draw(self.task, "validation", config.validation_size)
        with _blamed_on("test_size"):
            self.test = draw(self.task, "test", config.test_size)
        with _blamed_on("eval_lengths"):
            for length in config.eval_lengths:
                last = self._sequences_at(length) - 1
                self.task.examples("test", last, last + 1, length)

        # That the layer's backend cannot run on the device shows at its first call.
        first_token = self.validation[0][:1, :1].to(self.fabric.device)
        with torch.inference_mode(), self.fabric.autocast():
            self.model.extend(first_token)

        self.step = 0
        self.evaluated_at = 0
        self.stopped = False
        self.loss_sum = 0.0
        self.loss_count = 0
        self.time_s = 0.0
        self.selections: dict[str, Selection] = {}
        self.best_weights: TensorFiles = {}

    def event(self, kind: Any, text: str = "", **fields: Any) -> Event:
        """An event at the present step."""
        return Event(kind, self.step, self.num_steps, text=text, **fields)

    def to_the_end(self) -> None:
        """Resume, train, evaluate, and write what the run leaves."""
        with self.interrupts:
            found = load_checkpoint(self.folder / rundir.CHECKPOINTS, self._say)
            size = self._restore(*found) if found is not None else 0
            self.clock = self.saved_at = time.monotonic()
            path = self.folder / rundir.METRICS
            with contextlib.closing(MetricsFile(path, size, self._say)) as self.metrics:
                began = "resumed" if found is not None else "started"
                self.emit(self.event("started", f"{began} at step {self.step} of {self.num_steps}"))
                try:
                    self._train()
                    self._save()
                    last = self._at_further_lengths()
                except (KeyboardInterrupt, FloatingPointError):
                    if not self.interrupts.forced:
                        self._save()
                    raise
                self._finish(last)
            self.interrupts.check()

    def _train(self) -> None:
        while True:
            if self._evaluation_is_due():
                self._evaluate()
            if time.monotonic() - self.saved_at >= self.checkpoint_every_s:
                self._save()
            self.interrupts.check()
            if self.step == self.num_steps or self.stopped:
                return
            self._train_step()

    def _train_step(self) -> None:
        config, step = self.config, self.step
        rate = learning_rate(config, step, self.num_steps, self.batches.steps_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._sharpen(step)
        model, optimizer = self.wrapped
        model.train()
        tokens, targets = self.batches.batch(step)
        logits = model(tokens)
        loss = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED
        )
        value = loss.item()
        self._require_finite("loss", value, rate)
        self.fabric.backward(loss)
        norm = get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        # After the optimiser's step it would be too late: the weights would hold it.
        self._require_finite("norm of the gradient", norm.item(), rate)
        if config.clip_norm is not None:
            clip_grads_with_norm_(self.parameters, config.clip_norm, norm)
        optimizer.step()
        optimizer.zero_grad()
        self.loss_sum += value
        self.loss_count += 1
        self.step += 1
        self.emit(self.event("step", loss=value))

    def _require_finite(self, name: str, value: float, rate: float) -> None:
        if not math.isfinite(value):
            raise FloatingPointError(
                f"{name} must be finite, got {value} at step {self.step + 1} of {self.num_steps} "
                f"with learning rate {rate:.3g}; a smaller one or clip_norm may help"
            )

    def _sharpen(self, step: int) -> None:
        if self.config.sharpen_to != 1.0:
            sharpness = inverse_temperature(self.config, step, self.num_steps)
            self.model.set_gate_temperature(self.base_temperature / sharpness)

    def _evaluation_is_due(self) -> bool:
        if self.step == self.evaluated_at:
            return False
        assert self.config.eval_every is not None
        period = self.config.eval_every * self.batches.steps_per_epoch
        return self.step % period == 0 or self.step == self.num_steps

    def _evaluate(self) -> None:
        """Add a row to the metrics and keep the weights if they are the best so far."""
        test, validation = self._score(*self.test), self._score(*self.validation)
        now = Selection(
            self.step, self.batches.epoch(self.step), validation, {self.task.length: test}
        )
        self.selections["last"] = now
        for name in BEST:
            best = self.selections.get(name)
            # The first evaluation to reach an accuracy keeps its place.
            if best is None or self._criterion(name, now) > self._criterion(name, best):
                self.selections[name] = now
                self.best_weights[name] = {
                    key: tensor.detach().clone() for key, tensor in self.model.state_dict().items()
                }
        made = max(self.step - 1, 0)
        row = {
            **now.to_dict(),
            "train_loss": self.loss_sum / max(self.loss_count, 1),
            "learning_rate": learning_rate(
                self.config, made, self.num_steps, self.batches.steps_per_epoch
            ),
            "inverse_temperature": inverse_temperature(self.config, made, self.num_steps),
            "time_s": round(self._elapsed(), 3),
        }
        self.metrics.append(row)
        self.loss_sum, self.loss_count = 0.0, 0
        self.evaluated_at = self.step
        stop_at = self.config.stop_at
        self.stopped = stop_at is not None and validation.token_accuracy > stop_at
        text = (
            f"step {self.step}: train loss {row['train_loss']:.4f}, "
            f"validation {validation.token_accuracy:.4f}, test {test.token_accuracy:.4f}"
        )
        self.emit(self.event("evaluated", text, row=row))

    def _criterion(self, name: Best, selection: Selection) -> float:
        if name == "best_test":
            return selection.test[self.task.length].token_accuracy
        return selection.validation.token_accuracy

    def _score(self, tokens: Tensor, targets: Tensor) -> Scores:
        return evaluate(
            self.model,
            tokens,
            targets,
            batch_size=self.config.batch_size,
            autocast=self.fabric.autocast,
            tick=self.interrupts.check,
        )

    def _sequences_at(self, length: int) -> int:
        config = self.config
        return sequences_at(length, at_most=config.test_size, tokens=config.eval_tokens)

    def _at_further_lengths(self) -> Selection:
        """The last selection with the scores at the further lengths added."""
        last = self.selections["last"]
        test = dict(last.test)
        for length in self.config.eval_lengths:
            if length not in test:
                test[length] = self._score(
                    *draw(self.task, "test", self._sequences_at(length), length)
                )
                text = f"length {length}: test {test[length].token_accuracy:.4f}"
                self.emit(self.event("evaluated", text))
        ordered = {length: test[length] for length in sorted(test)}
        return Selection(last.step, last.epoch, last.validation, ordered)

    def _save(self) -> None:
        state = {
            "step": self.step,
            "evaluated_at": self.evaluated_at,
            "stopped": self.stopped,
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "time_s": self._elapsed(),
            "metrics_bytes": self.metrics.sync(),
            "selections": {name: found.to_dict() for name, found in self.selections.items()},
        }
        tensors = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer, self.model),
            **self.best_weights,
        }
        save_checkpoint(self.folder / rundir.CHECKPOINTS, self.step, tensors, state)
        self.saved_at = time.monotonic()
        self.emit(self.event("saved", f"checkpoint at step {self.step}"))

    def _restore(self, tensors: TensorFiles, state: dict[str, Any]) -> int:
        """Take over a checkpoint and return the size of the metrics at that time."""
        self.model.load_state_dict(tensors.pop("model"))
        restore_optimizer(self.optimizer, self.model, tensors.pop("optimizer"))
        self.best_weights = tensors
        self.step = state["step"]
        self.evaluated_at = state["evaluated_at"]
        self.stopped = state["stopped"]
        self.loss_sum = state["loss_sum"]
        self.loss_count = state["loss_count"]
        self.time_s = state["time_s"]
        self.selections = {
            name: Selection.from_dict(stored) for name, stored in state["selections"].items()
        }
        size: int = state["metrics_bytes"]
        return size

    def _finish(self, last: Selection) -> None:
        rundir.save_weights(self.folder, "last", self.model.state_dict())
        for name in BEST:
            rundir.save_weights(self.folder, name, self.best_weights[name])
        self.metrics.sync()
        outcome = Outcome(
            folder=self.folder,
            config=self.config,
            last=last,
            best_test=self.selections["best_test"],
            test_at_best_validation=self.selections["best_validation"],
            num_parameters=sum(p.numel() for p in self.parameters),
            time_s=round(self._elapsed(), 3),
        )
        rundir.save_outcome(outcome)
        remove_checkpoints(self.folder / rundir.CHECKPOINTS)
        self.emit(self.event("finished", f"finished at step {self.step}: {self.folder}"))

    def _elapsed(self) -> float:
        return self.time_s + time.monotonic() - self.clock

    def _say(self, text: str) -> None:
        self.emit(self.event("message", text))


@contextlib.contextmanager
def _blamed_on(field: str) -> Iterator[None]:
    """Name the field that asks a task for more than it has."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{field} must fit the task: {error}") from error
