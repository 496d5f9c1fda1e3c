"""Runs: ``train`` makes those of tasks, and ``fit`` trains any module on any batches."""

import contextlib
import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from statemix import provenance
from statemix.errors import RequestError
from statemix.interrupts import Interrupts
from statemix.memory import freed_memory_kept
from statemix.ops import BackendUnavailableError
from statemix.tasks import Task
from statemix.tasks.permutation import Permutation
from statemix.training import config as configs
from statemix.training import devices, outcome, schedules
from statemix.training import folder as runs
from statemix.training.attempts import Attempts, PermutationPenalty, Representations
from statemix.training.batches import (
    Batches,
    CrossEntropy,
    FunctionBatches,
    LoaderBatches,
    TaskBatches,
)
from statemix.training.config import Device, Precision, RunConfig, RuntimeConfig
from statemix.training.evaluation import NumberEvaluation, RunEvaluation
from statemix.training.identity import comparable, describe_code, request_of
from statemix.training.loop import Checkpoints, Evaluation, Event, Hook, Loop
from statemix.training.outcome import Fitted, Outcome
from statemix.training.settings import checked, import_modules, source_digests


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
    request = runs.StoredConfig(configs.SCHEMA, config.asked(), resolved.to_plain())
    stored = runs.config_to_resume(folder, request, extend=extend)
    sources = source_digests(config.imports)
    if config.start_from is not None:
        source = Path(config.start_from)
        # The source is needed no longer when the run has finished.
        with contextlib.suppress(RequestError):
            weights = runs.read_summary(source)["weights"].get(outcome.WEIGHT_FILES["last"], "")
            sources[f"weights of {source}"] = weights
    # A machine that could not train a finished run still reads it.
    if runs.is_finished(folder, stored):
        runs.warn_of_changes(folder, {"information": sources})
        found = outcome.load_outcome(folder)
        outcome.clear_leftovers(folder, found.last.step, on_event)
        return found
    # A stored run keeps the choices that were made when it began.
    config = resolved
    if stored is not request:
        config = outcome.config_from_stored(folder, stored)
        task = config.build_task()
    runtime = config.runtime
    devices.check_here(runtime)
    with devices.threads(runtime.num_threads), devices.own_random_numbers(runtime.device):
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
    return outcome.load_outcome(folder)


def parts_of(config: RunConfig, task: Task, folder: Path) -> dict[str, Any]:
    """Build what a resolved configuration asks for: model, batch, loss, optimizer and hooks."""
    if devices.ranks_here().size > 1:
        raise RequestError("`train` has one process, not those of torchrun; `fit` can use them")
    model = config.build_model(task)
    device = torch.device(config.runtime.device)
    batches = TaskBatches(task, config.batches, config.schedules, seed=config.seed, device=device)
    losses = CrossEntropy(config.objective.position_power, task.length)
    optimizer = schedules.build_optimizer(model, config.optimizer)
    scheduled = schedules.Schedules(
        config.schedules,
        config.optimizer.learning_rate,
        model,
        num_steps=batches.num_steps,
        steps_per_epoch=batches.steps_per_epoch,
    )
    metrics = folder / runs.METRICS
    evaluation = RunEvaluation(config, task, batches.steps_per_epoch, metrics)
    hooks: list[Hook] = [scheduled, evaluation]
    attempts = None
    if config.search.attempts is not None:
        attempts = Attempts(config, task, scheduled, evaluation, losses)
        hooks.append(attempts)
    if config.objective.permutation_penalty:
        hooks.append(PermutationPenalty(config.objective.permutation_penalty, model, attempts))
    if isinstance(task, Permutation):
        hooks.append(Representations())
    # A call of the model shows what cannot run here before anything is written.
    precision = config.runtime.precision
    model.to(device, torch.float64 if precision == "64-true" else None).eval()
    try:
        with (
            schedules.attributes_set(model, config.evaluation.attributes),
            schedules.attributes_set(model, config.search.attributes, "search.attributes"),
            torch.inference_mode(),
            torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed"),
        ):
            list(model.in_pieces([torch.zeros((1, 1), dtype=torch.int64, device=device)]))
    except BackendUnavailableError as error:
        raise RequestError(f"model: {error}") from error
    if config.start_from is not None:
        outcome.load_weights_of(model, Path(config.start_from))
    parts = {"model": model, "batch": batches, "loss": losses}
    return {**parts, "optimizer": optimizer, "hooks": hooks}


def fit(
    model: nn.Module,
    batch: Callable[[int], Any] | Batches | DataLoader[Any],
    loss: Callable[[Any, Any], Tensor | dict[str, Tensor]],
    folder: Path | str,
    *,
    num_steps: int,
    optimizer: Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    evaluate_every: int = 100,
    criterion: str | None = None,
    mode: Literal["max", "min"] = "max",
    stop_at: float | None = None,
    settings: Mapping[str, Any] | runs.StoredConfig | None = None,
    information: Mapping[str, Any] | None = None,
    hooks: Sequence[Hook] = (),
    clip_norm: float | None = None,
    precision: Precision = "32-true",
    device: Device = "auto",
    num_threads: int | None = None,
    seed: int = 0,
    on_event: Callable[[Event], None] | None = None,
    checkpoint_every_s: float | None = None,
    extend: bool = False,
    strategy: devices.Strategy = "ddp",
) -> Fitted:
    """Train a module of your own, or resume an interrupted call.

    The same call after Ctrl-C, SIGTERM or ``kill -9`` ends with weights that are bit-identical to
    those of an uninterrupted call on the same machine, if ``batch``, ``loss`` and ``evaluate``
    depend on their arguments alone, and all that the model changes is in its parameters and
    buffers. Random numbers of PyTorch are seeded before every step.

    Under torchrun, every process makes this call. Losses and gradients are summed over processes,
    so ``batch`` returns the share of this process (``torch.distributed.get_rank()``), and a loss
    that is a mean divides by the size of the whole batch. Each process evaluates the same model.
    The first process writes the folder, which all processes must see, and reports events. Resuming
    is bit-identical with the same number of processes.

    Args:
        model: the model, trained in place; at the end, it has the last weights. Where a run
            resumes, its own weights count.
        batch: function of a step, counted from 0, that returns its batch; a
            :class:`~statemix.training.batches.Batches`, whose steps may have several batches; or a
            ``DataLoader`` with a length, whose batches are moved to the device. It begins again
            when it ends, and each epoch has an order of its own, which depends on ``seed`` and on
            whether the loader has workers. Tensors of a function must be on the model's device.
        loss: function of the model and a batch that returns a loss, or losses by name, whose sum
            is minimised.
        folder: folder of the run, made if absent. A finished run is loaded.
        num_steps: number of optimiser steps.
        optimizer: optimiser of the model's parameters; None means AdamW with PyTorch's defaults.
            At the end its options, such as the rate, are those before the call.
        scheduler: schedule of PyTorch for this optimiser, which steps after each optimiser step
            (``ReduceLROnPlateau`` after each evaluation, with the criterion). At the end it is
            where it was before the call.
        evaluate: function of the model, in evaluation mode and without gradients, that returns
            numbers by name for the metrics.
        evaluate_every: steps between two evaluations; there is one at the end, too.
        criterion: name of the number whose first best value chooses the weights that are kept as
            ``best.safetensors``.
        mode: whether the best value of the criterion is the highest ("max") or the lowest ("min").
        stop_at: value of the criterion beyond which training stops early.
        settings: JSON data that identifies the run, beside the options of this function. The
            optimiser, ``num_steps``, ``seed``, ``clip_norm``, ``precision``, ``criterion``,
            ``mode``, ``stop_at``, and shapes and dtypes of the model identify it, too. A folder
            that holds another run is refused. A warning says if the code of ``batch``, ``loss``,
            ``evaluate``, hooks or schedule has changed, the kinds of the model's modules, threads,
            or software. Data that such code reads, attributes of modules and the sampler of a
            ``DataLoader`` are not compared: state them in ``settings``. A ``StoredConfig`` is the
            whole request.
        information: JSON data that is stored, and named by a warning if it changes.
        hooks: hooks of your own, such as a schedule of the learning rate. An
            :class:`~statemix.training.loop.Evaluation` among them replaces that by ``evaluate``.
        clip_norm: largest norm of the gradient.
        precision: precision of weights and arithmetic.
        device: device, to which the model is moved.
        num_threads: CPU threads; None means PyTorch's number. Identical weights need equal threads.
        seed: seed of the random numbers in the steps.
        on_event: as in :func:`statemix.training.train`.
        checkpoint_every_s: as in :func:`statemix.training.train`.
        extend: continue a run of fewer steps, finished or not.
        strategy: how the processes of torchrun share the model. "ddp" keeps the whole model in each
            process. "fsdp" (FSDP2) keeps a shard of weights, gradients and moments; it gathers the
            weights by blocks, the entries of ``nn.ModuleList``. One process keeps the whole model.

    Raises:
        RequestError: if an argument is out of range, the model makes weights when it is called, or
            the folder holds another run, is in use or cannot be written.
        FloatingPointError: if the loss or the gradient is not finite.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is saved.

    Example:
        >>> import tempfile
        >>> def square(model, x):
        ...     return model(x).square().mean()
        >>> def batch(step):
        ...     return torch.ones(4, 2)
        >>> found = fit(nn.Linear(2, 1), batch, square, tempfile.mkdtemp(), num_steps=3)
        >>> found.last["step"]
        3
    """
    folder = Path(folder)
    num_steps = checked(configs.Count, num_steps, "num_steps")
    evaluate_every = checked(configs.Count, evaluate_every, "evaluate_every")
    steps = getattr(batch, "num_steps", num_steps)
    is_optimizer = isinstance(optimizer, Optimizer | None)
    is_batches = callable(getattr(batch, "parts", batch)) or isinstance(batch, DataLoader)
    for is_right, condition, given in (
        (isinstance(model, nn.Module), "model must be a module", model),
        *((isinstance(hook, Hook), "hooks must be hooks", hook) for hook in hooks),
        (is_optimizer, "optimizer must be an optimiser or None", optimizer),
        (is_batches, "batch must be a function", batch),
        (callable(loss), "loss must be a function", loss),
        (evaluate is None or callable(evaluate), "evaluate must be a function or None", evaluate),
        (evaluate or criterion is None, "criterion must be None without evaluate", criterion),
        (mode in ("max", "min"), "mode must be 'max' or 'min'", mode),
        (criterion or stop_at is None, "stop_at must be None without a criterion", stop_at),
        (steps == num_steps, "num_steps must be that of the batches", num_steps),
        (type(seed) is int, "seed must be an int", seed),
        (on_event is None or callable(on_event), "on_event must be a function or None", on_event),
        (strategy in get_args(devices.Strategy), "strategy must be 'ddp' or 'fsdp'", strategy),
    ):
        if not is_right:
            raise RequestError(f"{condition}, got {given!r}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RequestError("model must have weights that are trained, got none")
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters())
    schedules.check_optimizer(optimizer, scheduler, model, criterion, mode)
    clip_norm = checked(configs.Positive | None, clip_norm, "clip_norm")
    stop_at = checked(float | None, stop_at, "stop_at")
    every_s = checked(configs.NotNegative | None, checkpoint_every_s, "checkpoint_every_s")
    devices.check_device("device", device)
    runtime = RuntimeConfig(
        precision=precision,
        device=configs.chosen_device(device),
        num_threads=torch.get_num_threads() if num_threads is None else num_threads,
    )
    described = {
        **provenance.describe(),
        "num_threads": runtime.num_threads,
        "device": torch.cuda.get_device_name() if runtime.device == "cuda" else "cpu",
        "information": dict(information or {}),
    }
    if isinstance(settings, runs.StoredConfig):
        request = settings
    else:
        options = {"clip_norm": clip_norm, "precision": precision, "criterion": criterion}
        options |= {"mode": mode, "stop_at": stop_at}
        request = request_of(settings or {}, seed, model, optimizer, options, num_steps)
        described["information"]["evaluate_every"] = evaluate_every
        described["code"] = describe_code(batch, loss, evaluate, hooks, scheduler, model)
    with contextlib.ExitStack() as stack:
        ranks = devices.join_ranks(device)
        described["num_processes"] = ranks.size
        if ranks.size > 1:
            described["strategy"] = strategy
        sharded = strategy == "fsdp" and ranks.size > 1
        if sharded and precision == "64-true":
            raise RequestError("precision must be 32-true or bf16-mixed with fsdp, got 64-true")
        if on_event is None and ranks.is_first and sys.stderr is not None and sys.stderr.isatty():
            # Rich is imported where it is used.
            from statemix.training.progress import shown

            on_event = partial(stack.enter_context(shown()), folder.name)

        def begin() -> runs.StoredConfig | None:
            ours = request if request is settings else comparable(request, folder)
            # A folder that cannot be written is still read.
            stored = runs.config_to_resume(folder, ours, extend=extend)
            if not runs.is_finished(folder, stored):
                stack.enter_context(runs.lock_folder(folder))
                # Another process may have begun or finished the run meanwhile.
                stored = runs.config_to_resume(folder, ours, extend=extend)
            if not runs.is_finished(folder, stored):
                return stored
            runs.warn_of_changes(folder, described)
            return None

        stored = ranks.on_first(begin)
        if stored is None:
            found = outcome.load_fitted(model, folder)
            if ranks.is_first:
                outcome.clear_leftovers(folder, found.last["step"], on_event)
            return found
        if request is settings and stored != request:
            raise runs.FolderInUseError(f"another process has begun the run in {folder}")
        stack.enter_context(devices.threads(runtime.num_threads))
        stack.enter_context(freed_memory_kept())
        stack.enter_context(devices.own_random_numbers(runtime.device))
        stack.enter_context(schedules.options_restored(optimizer, scheduler))
        interrupts = stack.enter_context(Interrupts())
        # Whoever calls keeps a model without shards.
        trained = copy.deepcopy(model) if sharded else model
        if sharded:
            devices.rebind_optimizer(optimizer, devices.parameter_names(model), trained)
        fabric = devices.build_fabric(runtime.device, precision, ranks, strategy)
        if isinstance(batch, DataLoader):
            batch = LoaderBatches(batch, num_steps, seed, fabric.to_device)
        loop = Loop(
            trained,
            FunctionBatches(batch, num_steps) if callable(batch) else batch,
            loss,
            optimizer=optimizer,
            fabric=fabric,
            hooks=hooks,
            clip_norm=clip_norm,
            seed=seed,
            emit=on_event if ranks.is_first else None,
            interrupts=interrupts,
            ranks=ranks,
        )
        evaluation = next((hook for hook in hooks if isinstance(hook, Evaluation)), None)
        if evaluation is None:
            metrics = folder / runs.METRICS if ranks.is_first else None
            evaluation = NumberEvaluation(
                *(evaluate, criterion, mode, stop_at), every=evaluate_every, metrics=metrics
            )
            loop.hooks.append(evaluation)
        if scheduler is not None:
            loop.hooks.append(schedules.TorchSchedule(scheduler, evaluation, criterion))
        checkpoints = Checkpoints(folder / runs.CHECKPOINTS, every_s)
        loop.hooks.append(checkpoints)
        ranks.on_first(lambda: runs.begin_run(folder, stored, described))
        with runs.record_status(folder) if ranks.is_first else contextlib.nullcontext():
            if not checkpoints.resume(loop) and request is not settings:
                # Another process may be given a model with other weights.
                checkpoints.save(loop)
            try:
                loop.run()
            except FloatingPointError as error:
                text = f"{error}; {checkpoints.before_failure(loop.step)}"
                raise FloatingPointError(text) from error
            outcome.save_outcome(loop, folder)
        if ranks.any_of(flag=interrupts.noted):
            raise KeyboardInterrupt
        return outcome.load_fitted(model, folder)
