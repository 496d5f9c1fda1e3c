"""One run from its configuration to its outcome, resumable at any time."""

import math
import platform
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from statemix.errors import RequestError, SettingError
from statemix.interrupts import Interrupts
from statemix.memory import freed_memory_kept, is_shortage
from statemix.models import ReadoutModel
from statemix.ops import BackendUnavailableError
from statemix.tasks import IGNORED, Task
from statemix.tasks.addressing import SPLITS
from statemix.tasks.permutation import Permutation
from statemix.tensor_files import check_storable
from statemix.training import folder as runs
from statemix.training.attempts import Attempts
from statemix.training.batches import CrossEntropy, TaskBatches, beginnings
from statemix.training.checkpoint import load_checkpoint, newest_before
from statemix.training.config import SCHEMA, NotNegative, RunConfig
from statemix.training.devices import (
    build_fabric,
    check_here,
    environment,
    own_random_numbers,
    threads,
)
from statemix.training.evaluation import RunEvaluator
from statemix.training.hooks import Checkpoints, Evaluation, Event, Row, Schedules, build_optimizer
from statemix.training.loop import Loop
from statemix.training.outcome import (
    Outcome,
    Selection,
    load_finished,
    load_outcome,
    load_weights_of,
    resolved_config,
    save_outcome,
)
from statemix.training.plain import import_modules, source_digests, to_plain
from statemix.training.schedules import attributes_set
from statemix.training.settings import checked
from statemix.training.transition_hooks import PermutationPenalty, Representations

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Examples of each split that show whether a task scores every position.
_TRIED = 32


def train(
    config: RunConfig,
    folder: Path | str,
    *,
    on_event: Callable[[Event], None] | None = None,
    checkpoint_every_s: float | None = None,
    extend: bool = False,
) -> Outcome:
    """Train and evaluate a model, or resume an interrupted call.

    After Ctrl-C, SIGTERM, ``kill -9`` or a power cut at any moment, the same call ends with weights
    that are bit-identical to those of an uninterrupted run on the same machine.

    Args:
        config: configuration of the run. The fields that differ from their defaults identify the
            run. Open choices are made when the run begins, and stored.
        folder: folder of the run, made if absent. A finished run of the same request is returned
            unchanged.
        on_event: function called with each event, in this thread.
        checkpoint_every_s: seconds between checkpoints; None means 10, or more where checkpoints
            would take more than 2% of the time. Results do not depend on it.
        extend: continue a run whose request differs from ``config`` in fewer epochs, steps or
            attempts alone, finished or not, with its weights and the state of its optimiser.
            Further steps have the learning rate and the attributes that the longer schedules
            prescribe for them, so a cosine rises again where the run continues. With constant
            schedules, the result equals that of one longer run. Further attempts follow attempts
            that have all failed.

    Returns:
        The scores at the end, at the best test and at the best validation accuracy.

    Raises:
        RequestError: if the configuration cannot be run, or if the folder holds another run, is in
            use, holds other files or cannot be written.
        OSError: if a file cannot be written later, for instance because the disk is full.
        FloatingPointError: if the loss or the gradient is not finite; the state before that step
            is saved, and the message names the last checkpoint before it.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is saved.
    """
    folder = Path(folder)
    check_arguments(on_event)
    checkpoint_every_s = checked(NotNegative | None, checkpoint_every_s, "checkpoint_every_s")
    if config.imports:
        import_modules(config.imports)
    code = {"python": platform.python_version(), "code": source_digests(config.imports)}
    resolved = config.resolved()
    request = runs.StoredConfig(SCHEMA, config.asked(), resolved.to_plain())
    stored = runs.resolve_config(folder, request, extend=extend)
    if extend and config.schedules.first_length is not None:
        condition = "must be absent to extend a run, whose sequences are no longer cut"
        raise SettingError("schedules.first_length", condition, config.schedules.first_length)
    # A folder that cannot be written is still read.
    if runs.is_finished(folder, stored):
        runs.warn_of_changes(folder, code)
        return load_finished(folder, on_event)
    with runs.lock_folder(folder):
        # Another process may have begun or finished the run meanwhile.
        stored = runs.resolve_config(folder, request, extend=extend)
        if runs.is_finished(folder, stored):
            return load_finished(folder, on_event)
        # A stored run keeps the choices that were made when it began.
        config = resolved if stored is request else resolved_config(folder, stored)
        task = check_here(config)
        with (
            threads(config.runtime.num_threads),
            freed_memory_kept(),
            own_random_numbers(config.runtime.device),
            Interrupts() as interrupts,
        ):
            run = Run(config, task, folder, on_event, checkpoint_every_s, interrupts)
            runs.begin_run(folder, stored, {**environment(config.runtime), **code})
            with runs.record_status(folder):
                run.to_the_end()
        interrupts.check()
        return load_outcome(folder)


class Run:
    """A loop with the hooks that a configuration asks for.

    Args:
        config: resolved configuration of the run.
        task: task of the run.
        folder: folder of the run.
        on_event: as in :func:`train`.
        checkpoint_every_s: as in :func:`train`.
        interrupts: signals that end the run.

    Raises:
        RequestError: if the configuration cannot be run here.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        folder: Path,
        on_event: Callable[[Event], None] | None = None,
        checkpoint_every_s: float | None = None,
        interrupts: Interrupts | None = None,
    ) -> None:
        self.config, self.task, self.folder = config, task, folder
        fabric = build_fabric(config.runtime.device, config.runtime.precision)
        self.model = config.build_model(task)
        self.losses = CrossEntropy(config.objective.position_power, task.length)
        self.loop = build_loop(
            config,
            task,
            self.model,
            fabric,
            losses=self.losses,
            on_event=on_event,
            interrupts=interrupts,
        )
        (schedules,) = self.loop.hooks
        assert isinstance(schedules, Schedules)
        self.schedules = schedules
        self.evaluator = RunEvaluator(config, task, fabric.autocast, self.loop.interrupts.check)
        self.evaluation = build_evaluation(config, task, self.evaluator, self.loop, folder)
        self.loop.hooks.append(self.evaluation)
        self.attempts = self._add_specials()
        self.loop.hooks.append(Checkpoints(folder / runs.CHECKPOINTS, checkpoint_every_s))
        _check_backbone(config, task)
        _check_first_length(config, task)
        self._call_once()
        check_storable(self.model)
        if not (folder / runs.CHECKPOINTS).exists():
            self._take_weights()

    def _add_specials(self) -> Attempts | None:
        """Add the tools of experiments that the configuration asks for."""
        config, model, attempts = self.config, self.model, None
        search = config.search
        if search.attempts is not None:
            setting = "search.size" if search.length is None else "search.length"
            attempts = Attempts(
                config,
                self.task,
                self.loop,
                self.evaluator.on_split("validation", search.size, setting, search.length),
                schedules=self.schedules,
                evaluation=self.evaluation,
                losses=self.losses,
            )
            self.loop.hooks.append(attempts)
        if config.objective.permutation_penalty:
            penalty = PermutationPenalty(config.objective.permutation_penalty, model, attempts)
            self.loop.hooks.append(penalty)
        if isinstance(self.task, Permutation):
            self.loop.hooks.append(Representations(model, self.task))
        return attempts

    def _call_once(self) -> None:
        """Call the model once, so that layers that cannot run here fail before anything is written.

        Raises:
            RequestError: if a layer cannot run, or makes weights when it is called.
        """
        # As in evaluation, where layers draw no random numbers.
        self.model.eval()
        token = torch.zeros((1, 1), dtype=torch.int64, device=self.loop.fabric.device)
        try:
            with ExitStack() as stack:
                for setting in ("evaluation", "search"):
                    values = getattr(self.config, setting).attributes
                    if values:
                        path = f"{setting}.attributes"
                        stack.enter_context(attributes_set(self.model, values, path))
                stack.enter_context(torch.inference_mode())
                stack.enter_context(self.loop.fabric.autocast())
                list(self.model.in_pieces([token]))
        except BackendUnavailableError as error:
            raise RequestError(f"model: {error}") from error
        except (RuntimeError, MemoryError) as error:
            if not is_shortage(error):
                raise
            raise RequestError(f"model must fit into memory for one token: {error}") from error
        self.loop.check_weights()

    def _take_weights(self) -> None:
        """Begin with the weights of another run if the configuration names one."""
        if self.config.start_from is not None:
            load_weights_of(self.model, Path(self.config.start_from))

    def to_the_end(self) -> None:
        """Resume, train, evaluate, and write the result."""
        if not resume(self.loop, self.folder):
            self._take_weights()
        run_loop(self.loop, self.folder)
        last = dict(self.evaluation.rows["last"])
        further = self.evaluator.at_further_lengths(self.loop)
        test = last["test"] | {str(length): to_plain(heads) for length, heads in further.items()}
        last["test"] = {length: test[length] for length in sorted(test, key=int)}
        rows = {
            "last": last,
            "best_test": self.evaluation.rows["best_test"],
            "test_at_best_validation": self.evaluation.rows["best_validation"],
        }
        summary = {name: Selection.from_plain(row).to_plain() for name, row in rows.items()}
        attempts = [] if self.attempts is None else self.attempts.search.to_plain()["attempts"]
        save_outcome(self.loop, self.folder, {**summary, "attempts": attempts})


def build_loop(
    config: RunConfig,
    task: Task,
    model: ReadoutModel,
    fabric: "Fabric",
    *,
    losses: CrossEntropy | None = None,
    on_event: Callable[[Event], None] | None = None,
    interrupts: Interrupts | None = None,
) -> Loop:
    """Build the loop of a run, with its schedules as the only hook.

    Args:
        config: resolved configuration of the run.
        task: the run's task.
        model: the run's model.
        fabric: device and precision.
        losses: the run's losses; None builds them.
        on_event: as in :func:`train`.
        interrupts: signals that end the loop.

    Raises:
        SettingError: if a schedule or a parameter group does not fit the model.
    """
    batches = TaskBatches(
        task, config.batches, config.schedules, seed=config.seed, device=fabric.device
    )
    schedules = Schedules(
        config.schedules,
        config.optimizer.learning_rate,
        model,
        num_steps=batches.num_steps,
        steps_per_epoch=batches.steps_per_epoch,
    )
    return Loop(
        model,
        batches,
        losses or CrossEntropy(config.objective.position_power, task.length),
        optimizer=build_optimizer(model, config.optimizer),
        fabric=fabric,
        hooks=[schedules],
        clip_norm=config.optimizer.clip_norm,
        seed=config.seed,
        emit=on_event,
        interrupts=interrupts,
    )


def build_evaluation(
    config: RunConfig, task: Task, evaluator: RunEvaluator, loop: Loop, folder: Path
) -> Evaluation:
    """Build the hook that evaluates a run as its configuration asks."""
    settings = config.evaluation
    assert settings.every is not None

    def accuracy_on(split: str) -> Callable[[Row], float]:
        def mean_over_heads(row: Row) -> float:
            heads = row["test"][str(task.length)] if split == "test" else row["validation"]
            return math.fsum(scores["token_accuracy"] for scores in heads.values()) / len(heads)

        return mean_over_heads

    validation = accuracy_on("validation")
    stop_at = settings.stop_at
    return Evaluation(
        evaluator,
        every=settings.every * loop.batches.steps_per_epoch,
        metrics=folder / runs.METRICS,
        criteria={"best_test": accuracy_on("test"), "best_validation": validation},
        stop_if=None if stop_at is None else lambda row: validation(row) > stop_at,
    )


def check_arguments(on_event: object) -> None:
    """Check the arguments that every run has."""
    if on_event is not None and not callable(on_event):
        raise RequestError(f"on_event must be a function or None, got {on_event!r}")


def resume(loop: Loop, folder: Path) -> bool:
    """Restore a loop from the newest checkpoint of its run; return whether there is one.

    Raises:
        RequestError: if the checkpoint is that of another model or optimiser, or of a longer run.
    """
    checkpoints = folder / runs.CHECKPOINTS
    if loop.ranks.size == 1 and not checkpoints.exists():
        return False
    found = load_checkpoint(checkpoints, loop.report, loop.model.state_dict(), loop.ranks)
    if found is None:
        return False
    tensors, state = found
    try:
        loop.load_state_dict(state, tensors)
    except (RuntimeError, KeyError) as error:
        if is_shortage(error):
            raise
        text = f"{folder / runs.CONFIG}: model, optimizer and hooks must match the checkpoint: "
        raise RequestError(text + " ".join(str(error).split())) from error
    if loop.step > loop.num_steps:
        raise RequestError(
            f"{folder / runs.CONFIG}: schedules must last until the checkpoint at step "
            f"{loop.step}, got {loop.num_steps} steps"
        )
    return True


def run_loop(loop: Loop, folder: Path) -> None:
    """Run a loop to its end.

    Raises:
        FloatingPointError: if it diverges; the message names the last good checkpoint.
    """
    try:
        loop.run()
    except FloatingPointError as error:
        good = newest_before(folder / runs.CHECKPOINTS, loop.step)
        text = f"the last good checkpoint is {good}" if good else "no good checkpoint was saved yet"
        raise FloatingPointError(f"{error}; {text}") from error


def _check_backbone(config: RunConfig, task: Task) -> None:
    """Check that the backbone suits the task: an autoencoder rebuilds every position.

    Raises:
        SettingError: if the model is an autoencoder, and some positions of the task have no target.
    """
    if config.model.backbone != "autoencoder":
        return
    sizes = {
        "train": task.train_size or _TRIED,
        "validation": config.evaluation.validation_size,
        "test": config.evaluation.test_size,
    }
    for split in SPLITS:
        tokens, targets, lengths = task.examples(split, 0, min(sizes[split], _TRIED))
        present = np.ones_like(tokens, dtype=np.bool_)
        if lengths is not None:
            present = np.arange(tokens.shape[1]) < lengths[:, None]
        if any((classes[present] == IGNORED).any() for classes in targets.values()):
            condition = f"must be 'causal' for a task that leaves positions unscored ({task.name})"
            raise SettingError("model.backbone", condition, config.model.backbone)


def _check_first_length(config: RunConfig, task: Task) -> None:
    """Check that the beginnings of some training examples have labels.

    Raises:
        SettingError: if none of the first examples has.
    """
    first = config.schedules.first_length
    if first is None:
        return
    examples = task.examples("train", 0, min(task.train_size or _TRIED, _TRIED))
    kept = beginnings(examples, first)
    if all((classes == IGNORED).all() for classes in kept.targets.values()):
        condition = f"must reach the labels of the examples ({task.name} has none before)"
        raise SettingError("schedules.first_length", condition, first)
