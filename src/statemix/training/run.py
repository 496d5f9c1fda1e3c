"""Runs on tasks: what a configuration asks for, as the arguments of ``fit``."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from statemix.errors import RequestError
from statemix.models import ReadoutModel
from statemix.ops import BackendUnavailableError
from statemix.tasks import Task
from statemix.tasks.permutation import Permutation
from statemix.training import folder as runs
from statemix.training.attempts import Attempts
from statemix.training.batches import CrossEntropy, TaskBatches
from statemix.training.config import SCHEMA, RunConfig
from statemix.training.devices import check_here, own_random_numbers, ranks_here, threads
from statemix.training.evaluation import RunEvaluation
from statemix.training.fit import fit
from statemix.training.hooks import Event, Hook
from statemix.training.outcome import (
    Outcome,
    load_finished,
    load_outcome,
    load_weights_of,
    resolved_config,
)
from statemix.training.schedules import Schedules, attributes_set, build_optimizer
from statemix.training.settings import import_modules, source_digests
from statemix.training.transition_hooks import PermutationPenalty, Representations


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
        FloatingPointError: if the loss or the gradient is not finite; the state before that step
            is saved, and the message names the last checkpoint before it.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is saved.
    """
    folder = Path(folder)
    import_modules(config.imports)
    task = config.build_task()
    resolved = config.resolved(task)
    request = runs.StoredConfig(SCHEMA, config.asked(), resolved.to_plain())
    stored = runs.resolve_config(folder, request, extend=extend)
    sources = source_digests(config.imports)
    # A machine that could not train a finished run still reads it.
    if runs.is_finished(folder, stored):
        runs.warn_of_changes(folder, {"information": sources})
        return load_finished(folder, on_event)
    # A stored run keeps the choices that were made when it began.
    config = resolved
    if stored is not request:
        config = resolved_config(folder, stored)
        task = config.build_task()
    runtime = config.runtime
    check_here(runtime)
    with threads(runtime.num_threads), own_random_numbers(runtime.device):
        parts = parts_of(config, task, folder)
    fit(
        **parts,
        folder=folder,
        num_steps=parts["batch"].num_steps,
        settings=stored,
        information=sources,
        clip_norm=config.optimizer.clip_norm,
        precision=runtime.precision,
        device=runtime.device,
        num_threads=runtime.num_threads,
        seed=config.seed,
        on_event=on_event or (lambda _: None),
        checkpoint_every_s=checkpoint_every_s,
        extend=extend,
    )
    return load_outcome(folder)


def parts_of(config: RunConfig, task: Task, folder: Path) -> dict[str, Any]:
    """Build what a resolved configuration asks for: model, batch, loss, optimizer and hooks."""
    if ranks_here().size > 1:
        raise RequestError("`train` has one process, not those of torchrun; `fit` can use them")
    model = config.build_model(task)
    device = torch.device(config.runtime.device)
    batches = TaskBatches(task, config.batches, config.schedules, seed=config.seed, device=device)
    losses = CrossEntropy(config.objective.position_power, task.length)
    optimizer = build_optimizer(model, config.optimizer)
    schedules = Schedules(
        config.schedules,
        config.optimizer.learning_rate,
        model,
        num_steps=batches.num_steps,
        steps_per_epoch=batches.steps_per_epoch,
    )
    metrics = folder / runs.METRICS
    evaluation = RunEvaluation(config, task, batches.steps_per_epoch, metrics)
    hooks: list[Hook] = [schedules, evaluation]
    attempts = None
    if config.search.attempts is not None:
        attempts = Attempts(config, task, schedules, evaluation, losses)
        hooks.append(attempts)
    if config.objective.permutation_penalty:
        hooks.append(PermutationPenalty(config.objective.permutation_penalty, model, attempts))
    if isinstance(task, Permutation):
        hooks.append(Representations())
    _call_once(config, model, device)
    if config.start_from is not None:
        load_weights_of(model, Path(config.start_from))
    parts = {"model": model, "batch": batches, "loss": losses}
    return {**parts, "optimizer": optimizer, "hooks": hooks}


def _call_once(config: RunConfig, model: ReadoutModel, device: torch.device) -> None:
    """Call the model once, so that what cannot run here fails before anything is written."""
    precision = config.runtime.precision
    model.to(device, torch.float64 if precision == "64-true" else None).eval()
    try:
        with ExitStack() as stack:
            for setting in ("evaluation", "search"):
                values = getattr(config, setting).attributes
                stack.enter_context(attributes_set(model, values, f"{setting}.attributes"))
            stack.enter_context(torch.inference_mode())
            is_mixed = precision == "bf16-mixed"
            stack.enter_context(torch.autocast(device.type, torch.bfloat16, enabled=is_mixed))
            list(model.in_pieces([torch.zeros((1, 1), dtype=torch.int64, device=device)]))
    except BackendUnavailableError as error:
        raise RequestError(f"model: {error}") from error
