"""The optimiser of a run, and schedules of its learning rate and of attributes of layers."""

import contextlib
import copy
import inspect
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from statemix.errors import ABSENT, OptionError, RequestError, SettingError
from statemix.models import earlier_name
from statemix.training.checkpoint import TensorFiles
from statemix.training.config import AttributeSchedule, OptimizerConfig, ScheduleConfig
from statemix.training.loop import Evaluation, Hook, Loop
from statemix.training.settings import plain_number


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Build AdamW over all parameters; as in MAD, biases, norms and embeddings decay, too."""
    left = dict(model.named_parameters())
    groups: list[dict[str, Any]] = []
    for place, group in enumerate(config.groups):
        names = {name: (name, earlier_name(name)) for name in left}
        matching = [n for n in left if any(fnmatchcase(a, group.parameters) for a in names[n])]
        if not matching:
            condition = "must match at least one parameter that no group before it matches"
            raise SettingError(f"optimizer.groups.{place}.parameters", condition, group.parameters)
        decay = config.weight_decay if group.weight_decay is None else group.weight_decay
        options = {"rate_factor": group.learning_rate_factor, "weight_decay": decay}
        groups.append({"params": [left.pop(name) for name in matching], **options})
    groups.insert(0, {"params": [*left.values()], "rate_factor": 1.0})
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )


class Schedules(Hook):
    """Sets the learning rate and the scheduled attributes before every step.

    The model has its initial attributes. ``steps_per_epoch`` is 1 on fresh examples.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        base_rate: float,
        model: nn.Module,
        *,
        num_steps: int,
        steps_per_epoch: int = 1,
    ) -> None:
        self._config, self._base_rate = config, base_rate
        self._num_steps, self._steps_per_epoch = num_steps, steps_per_epoch
        self.origin: int | None = 0
        """Steps done when the schedules begin; None while they wait for it."""
        self.began = 0
        """Steps done when the present weights were new; the warm-up begins there."""
        self._followers: dict[str, tuple[AttributeSchedule, nn.Module, Any]] = {}
        for place, schedule in enumerate(config.attributes):
            path = f"schedules.attributes.{place}"
            for name, module in holders(model, schedule.attribute, f"{path}.attribute").items():
                follower = f"{name}.{schedule.attribute}"
                if follower in self._followers:
                    condition = "must have only one schedule"
                    raise SettingError(f"{path}.attribute", condition, schedule.attribute)
                # It can begin at its layer's own value, and the layer takes its values.
                initial = getattr(module, schedule.attribute)
                curve = schedule.curve
                above = "" if curve == "linear" else f" and above 0 with curve={curve!r}"
                if schedule.start is None and (initial is None or (above and initial <= 0)):
                    condition = f"must be given{above} where {schedule.attribute} begins at"
                    raise SettingError(f"{path}.start", f"{condition} {initial}", ABSENT)
                for bound in ("start", "end"):
                    value = getattr(schedule, bound)
                    if value is not None:
                        value = value if isinstance(initial, float) else round(value)
                        _set(module, schedule.attribute, value, f"{path}.{bound}")
                        setattr(module, schedule.attribute, initial)
                self._followers[follower] = (schedule, module, initial)

    def before_step(self, loop: Loop) -> None:
        self.attributes(loop.step)
        rate = self.learning_rate(loop.step)
        for group in loop.optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]

    def row(self, loop: Loop) -> dict[str, Any]:
        rate = self.learning_rate(max(loop.step - 1, 0))
        return {"attributes": self.attributes(loop.step), "learning_rate": rate}

    def learning_rate(self, step: int) -> float:
        r"""Return the learning rate of step ``step``, counted from 0.

        .. math:: \eta = \eta_{min} + (\eta_0 - \eta_{min}) (1 + \cos(\pi p)) / 2

        where p is the fraction of training done *when the epoch began*. The rate is constant within
        an epoch, as with PyTorch's ``CosineAnnealingLR`` stepped once per epoch (MAD intends this
        but never applies it). The warm-up is a factor that rises linearly to 1.
        """
        rate, config = self._base_rate, self._config
        if config.learning_rate == "cosine":
            epoch = self._scheduled(step) // self._steps_per_epoch
            progress = epoch * self._steps_per_epoch / self._num_steps
            low = config.min_learning_rate
            rate = low + (rate - low) * (1 + math.cos(math.pi * progress)) / 2
        if config.warmup_steps:
            rate *= min((step - self.began + 1) / config.warmup_steps, 1.0)
        return rate

    def attributes(self, step: int) -> dict[str, float]:
        """Set the scheduled attributes to their values at a step; return them by module.

        Values of an attribute that was an integer or None at the beginning are rounded.
        """
        values = {}
        for follower, (schedule, module, initial) in self._followers.items():
            value = scheduled_value(schedule, initial, self._scheduled(step), self._num_steps)
            values[follower] = value if isinstance(initial, float) else round(value)
            path = f"schedules.attributes: {follower} at step {step}"
            _set(module, schedule.attribute, values[follower], path)
        return values

    def _scheduled(self, step: int) -> int:
        """Return the steps of the schedules that are done before step ``step``."""
        return 0 if self.origin is None else max(step - self.origin, 0)


def scheduled_value(config: AttributeSchedule, initial: float, step: int, num_steps: int) -> float:
    """Return the value of a scheduled attribute before a step; ``initial`` is the layer's own.

    Example:
        >>> sharpen = AttributeSchedule("gate_temperature", end=0.125, curve="reciprocal")
        >>> [1 / scheduled_value(sharpen, 1.0, step, 10) for step in (0, 5, 10)]
        [1.0, 4.5, 8.0]
    """
    start = initial if config.start is None else config.start
    first, last = config.begin * num_steps, config.finish * num_steps
    if step >= last:
        return config.end
    # If the change begins where it is complete, it is a jump.
    done = (step - first) / (last - first) if step > first else 0.0
    if config.curve == "reciprocal":
        return 1 / (1 / start + (1 / config.end - 1 / start) * done)
    if config.curve == "geometric":
        return float(start * (config.end / start) ** done)
    return start + (config.end - start) * done


def holders(model: nn.Module, attribute: str, path: str) -> dict[str, nn.Module]:
    """Return the modules that declare an attribute in their class's ``schedulable``, by name."""
    declared = {n: getattr(type(m), "schedulable", ()) for n, m in model.named_modules()}
    found = {n: model.get_submodule(n) for n, names in declared.items() if attribute in names}
    if not found:
        known = sorted(set().union(*declared.values())) or "none"
        condition = f"must be schedulable (the layers of this model declare {known})"
        raise SettingError(path, condition, attribute)
    return found


def _set(module: nn.Module, attribute: str, value: Any, path: str) -> None:
    try:
        setattr(module, attribute, value)
    except OptionError as error:
        raise SettingError(path, f"must suit {attribute} ({error})", value) from error


def restore_attributes(model: nn.Module, values: Mapping[str, float]) -> None:
    """Set attributes to the values that :meth:`Schedules.attributes` returned."""
    modules = dict(model.named_modules())
    modules |= {earlier_name(name): module for name, module in modules.items()}
    for follower, value in values.items():
        module, _, attribute = follower.rpartition(".")
        if module not in modules:
            raise AttributeError(f"the model has no part {module!r}")
        setattr(modules[module], attribute, value)


@contextlib.contextmanager
def attributes_set(
    model: nn.Module, values: Mapping[str, Any], setting: str = "evaluation.attributes"
) -> Iterator[None]:
    """Give schedulable attributes other values within this context; messages name the setting."""
    before = [
        (module, attribute, getattr(module, attribute))
        for attribute in values
        for module in holders(model, attribute, f"{setting}.{attribute}").values()
    ]
    try:
        for module, attribute, _ in before:
            _set(module, attribute, values[attribute], f"{setting}.{attribute}")
        yield
    finally:
        for module, attribute, value in before:
            setattr(module, attribute, value)


class TorchSchedule(Hook):
    """A schedule of PyTorch, which steps after each step of the optimiser.

    ``ReduceLROnPlateau`` steps after each evaluation, whose score ``criterion`` it reads. The
    others depend on the number of steps alone, so a resumed run repeats their steps.
    """

    def __init__(
        self, scheduler: LRScheduler, evaluation: Evaluation, criterion: str | None
    ) -> None:
        self._scheduler, self._evaluation, self._criterion = scheduler, evaluation, criterion
        self._options = _options(scheduler.optimizer)
        self._is_plateau = isinstance(scheduler, ReduceLROnPlateau)
        self._read_at = 0

    def before_step(self, loop: Loop) -> None:  # noqa: ARG002
        if self._is_plateau and self._evaluation.evaluated_at > self._read_at:
            self._scheduler.step(self._evaluation.rows["last"]["scores"][self._criterion])
            self._read_at = self._evaluation.evaluated_at

    def after_step(self, loop: Loop, loss: float) -> None:  # noqa: ARG002
        if not self._is_plateau:
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        if not self._is_plateau:
            return {}
        # As text: infinities are no JSON.
        return {"plateau": [self._read_at, json.dumps(self._scheduler.state_dict())]}

    def load_state_dict(self, state: Mapping[str, Any], tensors: TensorFiles) -> None:  # noqa: ARG002
        if self._is_plateau:
            self._read_at, text = state["plateau"]
            self._scheduler.load_state_dict(json.loads(text))
            return
        groups = self._scheduler.optimizer.param_groups
        for group, options in zip(groups, self._options, strict=True):
            group.update(options)
        with warnings.catch_warnings():
            # The optimiser has made these steps in another process.
            warnings.filterwarnings("ignore", "Detected call of .lr_scheduler.step", UserWarning)
            for _ in range(state["trainer"]["step"]):
                self._scheduler.step()


def check_optimizer(
    optimizer: torch.optim.Optimizer,
    scheduler: object,
    model: nn.Module,
    criterion: str | None,
    mode: str,
) -> None:
    """Check that an optimiser and a schedule of PyTorch suit a model and a criterion."""
    own = set(model.parameters())
    if any(p not in own for group in optimizer.param_groups for p in group["params"]):
        raise RequestError("optimizer must have parameters of the model alone")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        kind = type(optimizer).__name__
        raise RequestError(f"optimizer must make a step without a closure, got {kind}")
    if not isinstance(scheduler, LRScheduler | None):
        raise RequestError(f"scheduler must be a schedule of PyTorch or None, got {scheduler!r}")
    if scheduler is not None and scheduler.optimizer is not optimizer:
        raise RequestError("scheduler must be a schedule of the optimizer that is given")
    if not isinstance(scheduler, ReduceLROnPlateau):
        return
    if criterion is None:
        raise RequestError("criterion must be given with ReduceLROnPlateau, which reads it")
    if scheduler.mode != mode:
        raise RequestError(f"mode must be that of the scheduler, {scheduler.mode!r}, got {mode!r}")


def _options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


@contextlib.contextmanager
def options_restored(
    optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None
) -> Iterator[None]:
    """Leave the options of an optimiser and its schedule as they were, so that a call repeats.

    Within, rates that are tensors are numbers, which can be stored.
    """
    options = _options(optimizer)
    state = None if scheduler is None else copy.deepcopy(scheduler.state_dict())
    for group, before in zip(optimizer.param_groups, options, strict=True):
        group.update({name: plain_number(value) for name, value in before.items()})
    try:
        yield
    finally:
        for group, before in zip(optimizer.param_groups, options, strict=True):
            group.update(before)
        if scheduler is not None and state is not None:
            scheduler.load_state_dict(state)
