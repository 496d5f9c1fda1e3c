"""The same run with other values of some settings, and the choice among them."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemix.experiments.runner import Job
from statemix.plain import lookup, put
from statemix.settings import RequestError, SettingError
from statemix.training import Outcome, RunConfig, config_from_plain
from statemix.training.folder import CONFIG


@dataclass(frozen=True)
class Axis:
    """A setting by its dotted name, and the values to try.

    Attributes:
        name: such as "optimizer.learning_rate", "seed" or "model.layers.0.block_size".
        values: plain values, at least one.
    """

    name: str
    values: tuple[Any, ...]

    def value_in(self, config: RunConfig) -> Any:
        """The setting's value in a configuration."""
        return lookup(config.to_plain(), self.name)


def grid(config: RunConfig, folder: Path, axes: Sequence[Axis]) -> list[Job]:
    """Every combination of the axes' values, as a run with a folder of its own.

    Args:
        config: what all runs share.
        folder: folder of their folders.
        axes: the settings that differ, the first one outermost.

    Raises:
        RequestError: if a setting or a value is not possible, a value or an axis comes twice, or
            the folder holds a single run.
    """
    if (folder / CONFIG).exists():
        raise RequestError(f"folder must not hold a run to hold a grid of runs, got {folder}")
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise RequestError(f"axes of a grid must differ from each other, got {names}")
    for axis in axes:
        if not axis.values or len(set(map(repr, axis.values))) < len(axis.values):
            condition = "must have values that differ from each other"
            raise SettingError(axis.name, condition, list(axis.values))
    jobs = []
    for values in itertools.product(*(axis.values for axis in axes)):
        tree = config.to_plain()
        for name, value in zip(names, values, strict=True):
            put(tree, name, value)
        title = ",".join(f"{name}={_plain(v)}" for name, v in zip(names, values, strict=True))
        jobs.append(Job(title, config_from_plain(tree), folder / title))
    return jobs


def _plain(value: Any) -> str:
    """A value as part of a folder's name."""
    return re.sub(r"[^\w.+-]", "_", str(value))


def best_by_validation(outcomes: Iterable[Outcome]) -> Outcome:
    """The run with the highest token accuracy on its validation split, the first of equals.

    Raises:
        RequestError: if there is no run.
    """
    found = list(outcomes)
    if not found:
        raise RequestError("outcomes must hold at least one run, got none")
    return max(found, key=lambda outcome: outcome.test_at_best_validation.validation_accuracy)
