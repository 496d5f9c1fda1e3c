"""Train any module on any batches, with everything that a run has."""

import contextlib
import copy
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from statemix.errors import RequestError, SettingError
from statemix.interrupts import Interrupts
from statemix.memory import freed_memory_kept, is_shortage
from statemix.tensor_files import check_storable
from statemix.training import folder as runs
from statemix.training.batches import Batches, LoaderBatches
from statemix.training.config import (
    Device,
    NotNegative,
    Positive,
    Precision,
    RuntimeConfig,
    chosen_device,
)
from statemix.training.devices import (
    build_fabric,
    check_device,
    environment,
    own_random_numbers,
    threads,
)
from statemix.training.hooks import Checkpoints, Evaluation, Event, Hook, Row, TorchSchedule
from statemix.training.identity import (
    comparable,
    describe_model,
    describe_optimizer,
    describe_schedule,
    fingerprint,
    structure,
)
from statemix.training.loop import Loop
from statemix.training.outcome import save_outcome
from statemix.training.parallel import Strategy, parameter_names, rebind_optimizer
from statemix.training.ranks import join_ranks
from statemix.training.run import check_arguments, resume, run_loop
from statemix.training.settings import checked

# Version of what `fit` stores; runs of `train` have versions of their own.
_SCHEMA = 1


@dataclass(frozen=True)
class Fitted:
    """What :func:`fit` returns.

    Attributes:
        folder: folder of the run.
        last: last row of the metrics: "step", the numbers of ``evaluate``, and the means of losses.
        best: first row with the best criterion; the last row without a criterion.
        time_s: seconds of training and evaluation, without interruptions.
    """

    folder: Path
    last: Row
    best: Row
    time_s: float


@dataclass
class _Batches:
    """Batches by step, one for each."""

    batch: Callable[[int], Any]
    num_steps: int
    steps_per_epoch: int = 1

    def parts(self, step: int) -> Sequence[Any]:
        return [self.batch(step)]


def fit(
    model: nn.Module,
    batch: Callable[[int], Any] | Batches | DataLoader[Any],
    loss: Callable[[Any, Any], Tensor | dict[str, Tensor]],
    folder: Path | str,
    *,
    num_steps: int,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    evaluate_every: int = 100,
    criterion: str | None = None,
    mode: Literal["max", "min"] = "max",
    stop_at: float | None = None,
    settings: Mapping[str, Any] | None = None,
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
    strategy: Strategy = "ddp",
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
            when it ends, and each epoch has an order of its own, which depends on ``seed`` alone.
            Tensors of a function must be on the device of the model.
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
            or software. Data that such code reads, attributes of modules and the options of a
            ``DataLoader`` are not compared: state them in ``settings``.
        information: JSON data that is stored, and named by a warning if it changes.
        hooks: hooks of your own, such as a schedule of the learning rate.
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
        RequestError: if an argument is out of range, the weights cannot be stored and loaded, or
            the folder holds another run, is in use or cannot be written.
        FloatingPointError: if the loss or the gradient is not finite.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is saved.

    Example:
        >>> import tempfile
        >>> layer = nn.Linear(2, 1)
        >>> def square(model, x):
        ...     return model(x).square().mean()
        >>> def batch(step):
        ...     return torch.ones(4, 2)
        >>> found = fit(layer, batch, square, tempfile.mkdtemp(), num_steps=3)
        >>> found.last["step"]
        3
    """
    folder = Path(folder)
    check_arguments(on_event)
    _check_numbers(num_steps=num_steps, evaluate_every=evaluate_every)
    parts = getattr(batch, "parts", batch)
    is_loader = isinstance(batch, DataLoader)
    _check_parts(model, hooks, optimizer, batch=abs if is_loader else parts, loss=loss)
    _check_scheduler(scheduler, optimizer, criterion, mode)
    if evaluate is not None and not callable(evaluate):
        raise RequestError(f"evaluate must be a function or None, got {evaluate!r}")
    if evaluate is None and criterion is not None:
        raise RequestError(f"criterion must be None without evaluate, got {criterion!r}")
    if mode not in ("max", "min"):
        raise RequestError(f"mode must be 'max' or 'min', got {mode!r}")
    if criterion is None and stop_at is not None:
        raise RequestError(f"stop_at must be None without a criterion, got {stop_at}")
    if getattr(batch, "num_steps", num_steps) != num_steps:
        raise RequestError(f"num_steps must be that of the batches, got {num_steps}")
    if type(seed) is not int:
        raise RequestError(f"seed must be an int, got {seed!r}")
    clip_norm = checked(Positive | None, clip_norm, "clip_norm")
    stop_at = checked(float | None, stop_at, "stop_at")
    checkpoint_every_s = checked(NotNegative | None, checkpoint_every_s, "checkpoint_every_s")
    check_device("device", device)
    runtime = RuntimeConfig(
        precision=precision,
        device=chosen_device(device),
        num_threads=torch.get_num_threads() if num_threads is None else num_threads,
    )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RequestError("model must have weights that are trained, got none")
    check_storable(model)
    if strategy not in get_args(Strategy):
        raise RequestError(f"strategy must be 'ddp' or 'fsdp', got {strategy!r}")
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters())
    identity = {
        "seed": seed,
        **describe_model(model),
        "optimizer": describe_optimizer(optimizer, model),
        "clip_norm": clip_norm,
        "precision": precision,
        "criterion": criterion,
        "mode": mode,
        "stop_at": stop_at,
    }
    request = _request(identity, settings or {}, num_steps)
    described = {
        **environment(runtime),
        "code": {
            "batch": fingerprint(batch),
            "loss": fingerprint(loss),
            "evaluate": fingerprint(evaluate),
            "hooks": [fingerprint(hook) for hook in hooks if hook.changes_results],
            "scheduler": describe_schedule(scheduler),
            "modules of the model": structure(model),
        },
        "information": {"evaluate_every": evaluate_every, **(information or {})},
    }
    with contextlib.ExitStack() as stack:
        ranks = join_ranks(device)
        described["num_processes"] = ranks.size
        if ranks.size > 1:
            described["strategy"] = strategy
        sharded = strategy == "fsdp" and ranks.size > 1
        if sharded and precision == "64-true":
            raise RequestError(
                f"precision must be 32-true or bf16-mixed with fsdp, got {precision}"
            )
        if on_event is None and ranks.is_first and sys.stderr is not None and sys.stderr.isatty():
            # Rich is imported where it is used.
            from statemix.training.progress import shown

            on_event = partial(stack.enter_context(shown()), folder.name)

        def begin() -> runs.StoredConfig | None:
            # A folder that cannot be written is still read.
            stored = runs.resolve_config(folder, _comparable(request, folder), extend=extend)
            if not runs.is_finished(folder, stored):
                stack.enter_context(runs.lock_folder(folder))
                stored = runs.resolve_config(folder, _comparable(request, folder), extend=extend)
            if not runs.is_finished(folder, stored):
                return stored
            runs.warn_of_changes(folder, described)
            return None

        stored = ranks.on_first(begin)
        if stored is None:
            found = _load(model, folder)
            if on_event is not None and ranks.is_first:
                step, text = found.last["step"], f"{folder} holds this run, finished"
                on_event(Event("finished", step, step, text=text))
            return found
        stack.enter_context(threads(runtime.num_threads))
        stack.enter_context(freed_memory_kept())
        stack.enter_context(own_random_numbers(runtime.device))
        stack.enter_context(_restored(optimizer, scheduler))
        interrupts = stack.enter_context(Interrupts())
        # Whoever calls keeps a model without shards.
        trained = copy.deepcopy(model) if sharded else model
        if sharded:
            rebind_optimizer(optimizer, parameter_names(model), trained)
        fabric = build_fabric(runtime.device, precision, ranks, strategy)
        if isinstance(batch, DataLoader):
            batch = LoaderBatches(batch, num_steps, seed, fabric.to_device)
        loop = Loop(
            trained,
            _Batches(batch, num_steps) if callable(batch) else batch,
            lambda net, item: _by_name(loss(net, item)),
            optimizer=optimizer,
            fabric=fabric,
            clip_norm=clip_norm,
            seed=seed,
            emit=on_event if ranks.is_first else None,
            interrupts=interrupts,
            ranks=ranks,
        )
        _check_optimizer(loop)

        def score(row: Row) -> float:
            return _value(row, criterion, 1 if mode == "max" else -1)

        evaluation = Evaluation(
            lambda loop: _evaluate(loop, evaluate),
            every=evaluate_every,
            metrics=folder / runs.METRICS if ranks.is_first else None,
            criteria={} if criterion is None else {"best": score},
            stop_if=None
            if stop_at is None
            else lambda row: score(row) > (stop_at if mode == "max" else -stop_at),
        )
        checkpoints = Checkpoints(folder / runs.CHECKPOINTS, checkpoint_every_s)
        schedule = [] if scheduler is None else [TorchSchedule(scheduler, evaluation, criterion)]
        loop.hooks += [*hooks, evaluation, *schedule, checkpoints]
        ranks.on_first(lambda: runs.begin_run(folder, stored, described))
        with runs.record_status(folder) if ranks.is_first else contextlib.nullcontext():
            if not resume(loop, folder):
                # Another process may be given a model with other weights.
                checkpoints.save(loop)
            run_loop(loop, folder)
            save_outcome(loop, folder, evaluation.rows)
        if ranks.any_of(flag=interrupts.noted):
            raise KeyboardInterrupt
        return _load(model, folder)


@contextlib.contextmanager
def _restored(optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None) -> Iterator[None]:
    """Leave the options of an optimiser and its schedule as they were, so that a call repeats."""
    options = [
        {k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups
    ]
    state = None if scheduler is None else copy.deepcopy(scheduler.state_dict())
    try:
        yield
    finally:
        for group, before in zip(optimizer.param_groups, options, strict=True):
            group.update(before)
        if scheduler is not None and state is not None:
            scheduler.load_state_dict(state)


def _check_numbers(**numbers: object) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise RequestError(f"{name} must be an int of at least 1, got {number!r}")


def _check_parts(
    model: object, hooks: Sequence[object], optimizer: object, **functions: object
) -> None:
    if not isinstance(model, nn.Module):
        raise RequestError(f"model must be a module, got {model!r}")
    for hook in hooks:
        if not isinstance(hook, Hook):
            raise RequestError(f"hooks must be hooks, got {hook!r}")
    if not isinstance(optimizer, torch.optim.Optimizer | None):
        raise RequestError(f"optimizer must be an optimiser or None, got {optimizer!r}")
    for name, function in functions.items():
        if not callable(function):
            raise RequestError(f"{name} must be a function, got {function!r}")


def _check_scheduler(
    scheduler: object, optimizer: object, criterion: str | None, mode: str
) -> None:
    if not isinstance(scheduler, LRScheduler | None):
        raise RequestError(f"scheduler must be a schedule of PyTorch or None, got {scheduler!r}")
    if scheduler is not None and scheduler.optimizer is not optimizer:
        raise RequestError("scheduler must be a schedule of the optimizer that is given")
    if isinstance(scheduler, ReduceLROnPlateau):
        if criterion is None:
            raise RequestError("criterion must be given with ReduceLROnPlateau, which reads it")
        if scheduler.mode != mode:
            raise RequestError(
                f"mode must be that of the scheduler, {scheduler.mode!r}, got {mode!r}"
            )


def _request(
    identity: Mapping[str, Any], settings: Mapping[str, Any], num_steps: int
) -> runs.StoredConfig:
    try:
        plain = {
            "fit": {"settings": dict(settings), **identity},
            "schedules": {"num_steps": num_steps},
        }
        plain = json.loads(json.dumps(plain, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RequestError(f"settings must be JSON data, got {settings!r} ({error})") from error
    return runs.StoredConfig(_SCHEMA, plain, plain)


def _comparable(request: runs.StoredConfig, folder: Path) -> runs.StoredConfig:
    """Return a request without what a run of an older version in its folder does not state."""
    stored = runs.stored_config(folder, _SCHEMA)
    if stored is None or "fit" not in stored.asked:
        return request
    plain = {**request.asked, "fit": comparable(request.asked["fit"], stored.asked["fit"])}
    return runs.StoredConfig(_SCHEMA, plain, plain)


def _check_optimizer(loop: Loop) -> None:
    own = set(loop.model.parameters())
    if any(p not in own for group in loop.optimizer.param_groups for p in group["params"]):
        raise RequestError("optimizer must have parameters of the model alone")
    closure = inspect.signature(loop.optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        kind = type(loop.optimizer).__name__
        raise RequestError(f"optimizer must make a step without a closure, got {kind}")


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


def _evaluate(loop: Loop, evaluate: Callable[[Any], Mapping[str, float]] | None) -> tuple[Row, str]:
    row: Row = {"step": loop.step}
    if evaluate is None:
        return row, ""
    loop.model.eval()
    with torch.no_grad(), loop.fabric.autocast():
        found = loop.call(evaluate)
    try:
        row["scores"] = {name: float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise RequestError(f"evaluate must return numbers by name, got {found!r}") from error
    # Another kind of device may round otherwise, but all processes must decide alike.
    row["scores"] = loop.ranks.on_first(lambda: row["scores"])
    return row, "".join(f", {name} {value:.4f}" for name, value in row["scores"].items())


def _value(row: Row, criterion: str | None, sign: int) -> float:
    scores = row.get("scores", {})
    if criterion not in scores:
        condition = f"must be a number of evaluate ({sorted(scores)})"
        raise SettingError("criterion", condition, criterion)
    value = scores[criterion]
    # Files of finished runs have None for NaN.
    return -math.inf if value is None or math.isnan(value) else sign * value


def _load(model: nn.Module, folder: Path) -> Fitted:
    summary = runs.read_summary(folder)
    file = "model.safetensors"
    weights = runs.load_weights(folder, file, summary["weights"].get(file, ""))
    try:
        model.load_state_dict(weights)
        last = checked(dict[str, Any], summary["last"], "last")
        best = checked(dict[str, Any], summary.get("best", last), "best")
        return Fitted(folder, last, best, checked(float, summary["time_s"], "time_s"))
    except (KeyError, RuntimeError, SettingError) as error:
        if is_shortage(error):
            raise
        raise RequestError(f"{folder} must hold a run of this model, got: {error!r}") from error
