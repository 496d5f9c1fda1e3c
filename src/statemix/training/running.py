"""A run under way: its steps, tests, evaluations and checkpoints."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statemix.errors import RequestError
from statemix.interrupts import Interrupts
from statemix.ops import BackendUnavailableError
from statemix.training import folder as runs
from statemix.training.checkpoint import (
    load_checkpoint,
    newest_before,
    remove_checkpoints,
    save_checkpoint,
)
from statemix.training.config import RunConfig
from statemix.training.devices import build_fabric
from statemix.training.evaluation import SplitEvaluator, accuracy, check_finite
from statemix.training.events import Event
from statemix.training.life import Ask, Life, Score, lived
from statemix.training.objective import Losses
from statemix.training.outcome import (
    WEIGHT_FILES,
    HeadScores,
    Outcome,
    Selection,
    save_outcome,
)
from statemix.training.parts import Evaluators, build_model, build_trainer
from statemix.training.plain import to_plain
from statemix.training.representations import representations
from statemix.training.request import check_here
from statemix.training.schedules import attributes_set
from statemix.training.search import Search
from statemix.training.selections import Selections
from statemix.training.suitability import check_backbone


class Running:
    """A run under way; everything that changes with the steps is saved and restored.

    Args:
        config: resolved configuration of the run.
        folder: folder of the run.
        emit: function called with each event.
        checkpoint_every_s: seconds between checkpoints.
        interrupts: signals that end the run; those of this run alone if not given.

    Raises:
        RequestError: if the configuration cannot be run here.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        emit: Callable[[Event], None],
        checkpoint_every_s: float,
        interrupts: Interrupts | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.emit = emit
        self.checkpoint_every_s = checkpoint_every_s
        self.interrupts = interrupts or Interrupts()
        self.task = check_here(config)
        self.fabric = build_fabric(config.runtime.device, config.runtime.precision)
        self.model = build_model(config, self.task)
        self.losses = Losses(config.objective, self.model, self.task.length)
        self.trainer = build_trainer(config, self.task, self.model, self.fabric, self.losses)
        self.splits = Evaluators(config, self.task, self.fabric, self.interrupts.check)
        check_backbone(config, self.task)
        self._try()

        self.search = Search(config.search)
        self._follow_search()
        self.evaluated_at = 0
        self.stopped = False
        self.time_s = 0.0
        self.selections = Selections(self.task.length)

    def _try(self) -> None:
        """Call the model once, so that layers that cannot run here fail now."""
        # As in evaluation, where layers draw no random numbers.
        self.model.eval()
        token = torch.zeros((1, 1), dtype=torch.int64, device=self.fabric.device)
        try:
            with (
                attributes_set(self.model, self.config.evaluation.attributes),
                attributes_set(self.model, self.config.search.attributes, "search.attributes"),
                torch.inference_mode(),
                self.fabric.autocast(),
            ):
                list(self.model.in_pieces([token]))
        except BackendUnavailableError as error:
            raise RequestError(f"model: {error}") from error

    def event(self, kind: Any, text: str = "", **fields: Any) -> Event:
        """Return an event at the present step."""
        return Event(kind, self.trainer.step, self.trainer.num_steps, text=text, **fields)

    def to_the_end(self) -> None:
        """Resume, train, evaluate, and write the result."""
        with self.interrupts:
            lived(self.life(), self.answer)

    def answer(self, ask: Ask) -> Any:
        """Do what the run waits for, and return what :meth:`life` is to be sent."""
        return self.trainer.train_step() if ask == "step" else self._score

    def evaluators(self, ask: Ask) -> tuple[SplitEvaluator, ...]:
        """Return the evaluators whose scores :meth:`life` is to be sent."""
        if ask == "test":
            assert self.splits.attempt is not None
            return (self.splits.attempt,)
        if ask == "evaluate":
            return self.splits.validation, self.splits.test, *self.splits.validation_at.values()
        # The last evaluation has covered the training length.
        return tuple(
            one for length, one in self.splits.test_at.items() if length != self.task.length
        )

    def life(self) -> Life:
        """Resume, train, evaluate, and write the result, but leave steps and scores to others.

        Yields:
            What the run waits for, to be sent what :meth:`answer` returns.
        """
        found = load_checkpoint(self.folder / runs.CHECKPOINTS, self._say)
        size = self._restore(*found) if found is not None else 0
        self.clock = self.saved_at = time.monotonic()
        path = self.folder / runs.METRICS
        with contextlib.closing(runs.MetricsFile(path, size, self._say)) as self.metrics:
            began = "resumed" if found is not None else "started"
            step, num_steps = self.trainer.step, self.trainer.num_steps
            self.emit(self.event("started", f"{began} at step {step} of {num_steps}"))
            try:
                yield from self._train()
                self._save()
                last = self._at_further_lengths((yield "lengths"))
            # None of these is raised while the optimiser changes the weights.
            except (KeyboardInterrupt, FloatingPointError, RequestError) as error:
                if not self.interrupts.forced:
                    self._save()
                if isinstance(error, FloatingPointError):
                    raise FloatingPointError(f"{error}; {self._last_good()}") from error
                raise
            self._finish(last)
        self.interrupts.check()

    def _train(self) -> Life:
        while True:
            try:
                yield from self._evaluated()
                if time.monotonic() - self.saved_at >= self.checkpoint_every_s:
                    self._save()
                self.interrupts.check()
                if self.trainer.step == self.trainer.num_steps or self.stopped:
                    if self.search.unconfirmed:
                        self._judge((yield "test"))
                    if self.search.origin is not None:
                        return
                loss = yield "step"
            except FloatingPointError as error:
                if not self.search.gives_up(self.trainer.step):
                    raise
                self._go_on(str(error))
            else:
                if self.search.origin is None:
                    self.search.saw(self.trainer.step, self.losses.of_task())
                    self._follow_search()
                self.emit(self.event("step", loss=loss))

    def _evaluated(self) -> Life:
        """Evaluate and test where it is due."""
        if self._evaluation_is_due():
            self._evaluate((yield "evaluate"))
        if self.search.due(self.trainer.step):
            self._judge((yield "test"))

    def _judge(self, score: Score) -> None:
        """Test the attempt, and begin another one or the schedules if it has ended."""
        step, text = self.trainer.step, "on validation sequences"
        self.trainer.attributes(step)
        with attributes_set(self.model, self.config.search.attributes, "search.attributes"):
            found = accuracy(score(*self.evaluators("test")))
        if self.search.unconfirmed:
            self.search.confirm(step, found)
            text += " after the schedules"
        else:
            self.search.judge(step, found)
        self._go_on(f"accuracy {found:.4f} {text}")

    def _go_on(self, text: str) -> None:
        """Begin another attempt, or the schedules, if the attempt has ended."""
        step, number = self.trainer.step, len(self.search.attempts)
        now = self.search.attempts[-1]
        if now.confirmed is not None and self.search.origin is not None:
            text += ": passed" if now.passed else ": failed; no attempts are left"
        elif now.passed:
            text += ": passed, the schedules begin"
        elif self.search.origin is not None:
            text += ": failed; no attempts are left, so the schedules begin with these weights"
        elif now.ended is not None:
            self.search.restart(step)
            self.trainer.restart(build_model(self.config, self.task, number).state_dict())
            self.selections.forget()
            self.stopped = False
            # The next row is about the new weights after their first steps.
            self.evaluated_at = step
            text += ": failed, the next attempt begins"
        self._follow_search()
        self._say(f"step {step}: attempt {number} of {self.config.search.attempts}, {text}")

    def _follow_search(self) -> None:
        """Let the schedules wait for the end of the search."""
        self.trainer.origin = self.search.origin
        self.trainer.waiting = self.search.most_steps(self.trainer.batches.num_steps)
        self.trainer.began = self.search.began
        self.losses.penalised = not self.search.on_plateau
        self.losses.watch(watched=self.search.origin is None)

    def _score(self, evaluator: SplitEvaluator) -> HeadScores:
        return evaluator(self.model)

    def _evaluation_is_due(self) -> bool:
        step = self.trainer.step
        if step == self.evaluated_at:
            return False
        assert self.config.evaluation.every is not None
        period = self.config.evaluation.every * self.trainer.batches.steps_per_epoch
        return step % period == 0 or step == self.trainer.num_steps

    def _evaluate(self, score: Score) -> None:
        """Add a row to the metrics, and keep the weights if they are the best so far."""
        step = self.trainer.step
        attributes = self.trainer.attributes(step)
        with attributes_set(self.model, self.config.evaluation.attributes):
            test, validation = score(self.splits.test), score(self.splits.validation)
            further = {length: score(one) for length, one in self.splits.validation_at.items()}
        when = f"after step {step} of {self.trainer.num_steps}"
        check_finite("test", test, when)
        for heads in (validation, *further.values()):
            check_finite("validation", heads, when)
        epoch = self.trainer.batches.epoch(step)
        now = Selection(step, epoch, attributes, validation, {self.task.length: test})
        self.selections.note(now, self.model)
        averages = self.trainer.averages()
        row = {
            **now.to_plain(),
            "attempt": len(self.search.attempts) or None,
            "representations": representations(self.model, self.task),
            "validation_at": {str(length): to_plain(heads) for length, heads in further.items()},
            "train": averages,
            "learning_rate": self.trainer.learning_rate(max(step - 1, 0)),
            "time_s": round(self._elapsed(), 3),
        }
        self.metrics.append(row)
        self.evaluated_at = step
        stop_at = self.config.evaluation.stop_at
        # During a search, accuracy at the training length says nothing.
        searching = self.search.origin is None
        self.stopped = stop_at is not None and not searching and accuracy(validation) > stop_at
        text = (
            f"step {step}: train loss {averages['loss']:.4f}, "
            f"validation {accuracy(validation):.4f}, test {accuracy(test):.4f}"
        )
        for length, heads in further.items():
            text += f", validation at length {length} {accuracy(heads):.4f}"
        self.emit(self.event("evaluated", text, row=row))

    def _at_further_lengths(self, score: Score) -> Selection:
        """Return the last selection with the scores at the further lengths added."""
        last = self.selections.found["last"]
        test = dict(last.test)
        with attributes_set(self.model, self.config.evaluation.attributes):
            for length, evaluator in self.splits.test_at.items():
                if length not in test:
                    test[length] = score(evaluator)
                    text = f"length {length}: test {accuracy(test[length]):.4f}"
                    self.emit(self.event("evaluated", text))
        ordered = {length: test[length] for length in sorted(test)}
        return replace(last, test=ordered)

    def _save(self) -> None:
        state = {
            "trainer": self.trainer.numbers(),
            "search": self.search.to_plain(),
            "evaluated_at": self.evaluated_at,
            "stopped": self.stopped,
            "time_s": self._elapsed(),
            "metrics_bytes": self.metrics.sync(),
            "selections": self.selections.to_plain(),
        }
        tensors = {**self.trainer.tensors(), **self.selections.weights}
        save_checkpoint(self.folder / runs.CHECKPOINTS, self.trainer.step, tensors, state)
        self.saved_at = time.monotonic()
        self.emit(self.event("saved", f"checkpoint at step {self.trainer.step}"))

    def _last_good(self) -> str:
        """Say where the last checkpoint is whose weights have made a finite step."""
        found = newest_before(self.folder / runs.CHECKPOINTS, self.trainer.step)
        if found is None:
            return "no good checkpoint was saved yet"
        return f"the last good checkpoint is {found}"

    def _restore(self, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> int:
        """Continue from a checkpoint; return the size of the metrics at that time."""
        # Absent in checkpoints of versions without a search.
        if "search" in state:
            self.search.restore(state["search"])
        self._follow_search()
        step, num_steps = state["trainer"]["step"], self.trainer.num_steps
        if step > num_steps:
            raise RequestError(
                f"{self.folder / runs.CONFIG}: schedules must last until the checkpoint at step "
                f"{step}, got {num_steps} steps"
            )
        try:
            self.trainer.restore(tensors, state["trainer"])
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise RequestError(
                f"{self.folder / runs.CONFIG}: model must be that of the checkpoint: {reason}"
            ) from error
        self.evaluated_at = state["evaluated_at"]
        self.stopped = state["stopped"]
        self.time_s = state["time_s"]
        self.selections.restore(state["selections"], tensors)
        size: int = state["metrics_bytes"]
        return size

    def _finish(self, last: Selection) -> None:
        weights = {"last": self.model.state_dict(), **self.selections.weights}
        hashes = {
            file: runs.save_weights(self.folder, file, weights[name])
            for name, file in WEIGHT_FILES.items()
        }
        self.metrics.sync()
        outcome = Outcome(
            folder=self.folder,
            config=self.config,
            last=last,
            best_test=self.selections.found["best_test"],
            test_at_best_validation=self.selections.found["best_validation"],
            attempts=tuple(self.search.attempts),
            num_parameters=self.trainer.num_parameters,
            time_s=round(self._elapsed(), 3),
            weights=hashes,
        )
        save_outcome(outcome)
        remove_checkpoints(self.folder / runs.CHECKPOINTS)
        self.emit(self.event("finished", f"finished at step {self.trainer.step}: {self.folder}"))

    def _elapsed(self) -> float:
        return self.time_s + time.monotonic() - self.clock

    def _say(self, text: str) -> None:
        self.emit(self.event("message", text))
