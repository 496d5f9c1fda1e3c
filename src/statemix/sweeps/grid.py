"""Runs over a grid of settings, and the choice of the best run."""

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemix.errors import RequestError, SettingError
from statemix.sweeps.runner import Job, Runnable, configured
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
    titled: list[tuple[str, RunConfig]] = []
    for values in itertools.product(*(axis.values for axis in axes)):
        tree = config.completed().to_plain()
        for name, value in zip(names, values, strict=True):
            put(tree, name, value)
        changed = config_from_plain(tree)
        # Signs that some file systems do not allow are replaced.
        shown = [re.sub(r"[^\w.+-]", "_", str(axis.value_in(changed))) for axis in axes]
        pairs = zip(names, shown, strict=True)
        titled.append((",".join(f"{name}={value}" for name, value in pairs), changed))
    count_of, jobs = Counter(title for title, _ in titled), []
    for title, changed in titled:
        if count_of[title] > 1:
            # Names also tell values apart that differ in their signs alone.
            digest = hashlib.sha256(repr([axis.value_in(changed) for axis in axes]).encode())
            title = f"{title}-{digest.hexdigest()[:8]}"
        jobs.append(Job(title, changed, folder / _folder_name(title)))
    for axis in axes:
        # Compared as settings: "1e-3" and "0.001" are one learning rate.
        found = {repr(axis.value_in(job.config)) for job in jobs}
        if not axis.values or len(found) < len(axis.values):
            raise SettingError(axis.name, "must have distinct values", list(axis.values))
    return jobs


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
