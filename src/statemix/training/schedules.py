"""Schedules of attributes that layers declare, and other values of these in evaluation."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from statemix.errors import ABSENT, OptionError, SettingError
from statemix.models import earlier_name
from statemix.training.config import AttributeSchedule


def scheduled_value(config: AttributeSchedule, initial: float, step: int, num_steps: int) -> float:
    """Return the value of a scheduled attribute at one optimiser step.

    Args:
        config: schedule of the attribute.
        initial: value at the beginning if the schedule has no ``start``.
        step: steps done before this one.
        num_steps: steps of the whole run.

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


def schedulable(model: nn.Module) -> dict[str, dict[str, nn.Module]]:
    """Return attribute -> name of a module -> module, for all schedulable attributes.

    A module declares them in its class attribute ``schedulable``, as layers do.
    """
    found: dict[str, dict[str, nn.Module]] = {}
    for name, module in model.named_modules():
        for attribute in getattr(type(module), "schedulable", ()):
            found.setdefault(attribute, {})[name] = module
    return found


def holders(model: nn.Module, attribute: str, path: str) -> dict[str, nn.Module]:
    """Return the modules that declare an attribute schedulable, by name.

    Args:
        model: model to search.
        attribute: name of the attribute.
        path: dotted name of the setting that names the attribute, for the message.

    Raises:
        SettingError: if no module declares it.
    """
    found = schedulable(model)
    if attribute not in found:
        known = f" (the layers of this model declare {sorted(found) or 'none'})"
        raise SettingError(path, f"must be schedulable{known}", attribute)
    return found[attribute]


class Attributes:
    """The scheduled attributes of a model.

    Args:
        model: the model, whose layers have their initial values.
        schedules: schedules of the attributes.

    Raises:
        SettingError: if no layer of the model declares an attribute, or a layer refuses its start
            or end value.
    """

    def __init__(self, model: nn.Module, schedules: tuple[AttributeSchedule, ...]) -> None:
        self._followers: dict[str, tuple[AttributeSchedule, nn.Module, Any]] = {}
        for place, schedule in enumerate(schedules):
            path = f"schedules.attributes.{place}"
            for name, module in holders(model, schedule.attribute, f"{path}.attribute").items():
                initial = getattr(module, schedule.attribute)
                follower = f"{name}.{schedule.attribute}"
                if follower in self._followers:
                    condition = "must have only one schedule"
                    raise SettingError(f"{path}.attribute", condition, schedule.attribute)
                if schedule.start is None:
                    _check_initial(schedule, initial, path)
                for bound in ("start", "end"):
                    value = getattr(schedule, bound)
                    if value is not None:
                        _try(module, schedule.attribute, value, f"{path}.{bound}")
                self._followers[follower] = (schedule, module, initial)

    def set(self, step: int, num_steps: int) -> dict[str, float]:
        """Set all attributes to their values at a step; return "module.attribute" -> value.

        Values of an attribute that was an integer or None at the beginning are rounded.
        """
        values = {}
        for follower, (schedule, module, initial) in self._followers.items():
            value = scheduled_value(schedule, initial, step, num_steps)
            value = _like(initial, value)
            try:
                setattr(module, schedule.attribute, value)
            except OptionError as error:
                condition = f"must suit its layer at every step, but not at step {step} ({error})"
                raise SettingError(f"schedules.attributes: {follower}", condition, value) from error
            values[follower] = value
        return values


def restore_attributes(model: nn.Module, values: Mapping[str, float]) -> None:
    """Set the attributes of a model to the values that :meth:`Attributes.set` returned."""
    modules = dict(model.named_modules())
    modules |= {earlier_name(name): module for name, module in modules.items()}
    for follower, value in values.items():
        module, _, attribute = follower.rpartition(".")
        if module not in modules:
            raise AttributeError(f"the model has no part {module!r}")
        setattr(modules[module], attribute, value)


def _like(initial: float | None, value: float) -> float:
    """Return a value as an integer if the attribute was no float."""
    return value if isinstance(initial, float) else round(value)


def _check_initial(schedule: AttributeSchedule, initial: float | None, path: str) -> None:
    """Check that a schedule can begin at an attribute's own value."""
    above = "" if schedule.curve == "linear" else f" and above 0 with curve={schedule.curve!r}"
    if initial is None or (above and initial <= 0):
        condition = f"must be given{above} where {schedule.attribute} begins at {initial}"
        raise SettingError(f"{path}.start", condition, ABSENT)


def _try(module: nn.Module, attribute: str, value: Any, path: str) -> None:
    """Set and reset an attribute, so that a module refuses a bad value before training."""
    before = getattr(module, attribute)
    try:
        setattr(module, attribute, _like(before, value))
    except OptionError as error:
        raise SettingError(path, f"must suit {attribute} ({error})", value) from error
    setattr(module, attribute, before)


@contextmanager
def attributes_set(
    model: nn.Module, values: Mapping[str, Any], setting: str = "evaluation.attributes"
) -> Iterator[None]:
    """Give schedulable attributes other values within this context, as evaluation may ask.

    Args:
        model: the model.
        values: attribute -> value.
        setting: dotted name of the setting that holds the values, for messages.

    Raises:
        SettingError: if no layer of the model declares an attribute, or one refuses its value.
    """
    before = [
        (module, attribute, getattr(module, attribute))
        for attribute in values
        for module in holders(model, attribute, f"{setting}.{attribute}").values()
    ]
    try:
        for module, attribute, _ in before:
            path = f"{setting}.{attribute}"
            _try(module, attribute, values[attribute], path)
            setattr(module, attribute, values[attribute])
        yield
    finally:
        for module, attribute, value in before:
            setattr(module, attribute, value)
