"""Runs over a grid of settings, and the choice of the best run."""

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemix.errors import RequestError, SettingError
from statemix.sweeps.runner import Job
from statemix.sweeps.study_runs import Runnable, configured
from statemix.training import Outcome, RunConfig, config_from_plain
from statemix.training.folder import CONFIG
from statemix.training.settings import lookup, put

# Each is a folder and a process of its own.
_MOST_RUNS = 2000
# Bytes of the longest name of a folder, and letters (or bytes) kept of a longer one.
_LONGEST_NAME, _KEPT = 200, 100


@dataclass(frozen=True)
class Axis:
    """A setting by its dotted name, such as "optimizer.learning_rate", and values to try."""

    name: str
    values: tuple[Any, ...]

    def value_in(self, config: Runnable) -> Any:
        """Return the setting's value in a configuration."""
        return lookup(configured(config).to_plain(), self.name)


def grid(config: RunConfig, folder: Path, axes: Sequence[Axis]) -> list[Job]:
    """Return a run for each combination of values, first axis outermost, each in its own folder."""
    if (folder / CONFIG).exists():
        raise RequestError(f"folder of a grid must not itself hold a run, got {folder}")
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise RequestError(f"axes of a grid must be distinct, got {names}")
    count = math.prod(len(axis.values) for axis in axes)
    if count > _MOST_RUNS:
        raise RequestError(f"grid must have at most {_MOST_RUNS} combinations, got {count}")
    jobs = [
        _job(config, folder, dict(zip(names, values, strict=True)))
        for values in itertools.product(*(axis.values for axis in axes))
    ]
    alike = {name for name, number in Counter(job.name for job in jobs).items() if number > 1}
    jobs = [_distinct(job, axes) if job.name in alike else job for job in jobs]
    for axis in axes:
        # Compared as settings: "1e-3" and "0.001" are one learning rate.
        found = {repr(axis.value_in(job.config)) for job in jobs}
        if not axis.values or len(found) < len(axis.values):
            raise SettingError(axis.name, "must have distinct values", list(axis.values))
    return jobs


def _job(config: RunConfig, folder: Path, values: Mapping[str, Any]) -> Job:
    tree = config.completed().to_plain()
    for name, value in values.items():
        put(tree, name, value)
    changed = config_from_plain(tree)
    plain = changed.to_plain()
    # Signs that some file systems do not allow are replaced.
    shown = {name: re.sub(r"[^\w.+-]", "_", str(lookup(plain, name))) for name in values}
    title = ",".join(f"{name}={value}" for name, value in shown.items())
    return Job(title, changed, folder / _folder_name(title))


def _distinct(job: Job, axes: Sequence[Axis]) -> Job:
    """Return a job whose name also tells values apart that differ in their signs alone."""
    values = repr([axis.value_in(job.config) for axis in axes])
    title = f"{job.name}-{hashlib.sha256(values.encode()).hexdigest()[:8]}"
    return Job(title, job.config, job.folder.with_name(_folder_name(title)))


def _folder_name(title: str) -> str:
    """Return a title as the name of a folder; most file systems allow 255 bytes."""
    if len(title.encode()) <= _LONGEST_NAME:
        return title
    kept = title[:_KEPT]
    if len(kept.encode()) > _LONGEST_NAME:
        kept = kept.encode()[:_KEPT].decode(errors="ignore")
    return f"{kept}-{hashlib.sha256(title.encode()).hexdigest()[:20]}"


def best_by_validation(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the run with the highest validation token accuracy, the first of equals."""
    best = max(outcomes, key=lambda o: o.test_at_best_validation.validation_accuracy, default=None)
    if best is None:
        raise RequestError("outcomes must hold at least one run, got none")
    return best
