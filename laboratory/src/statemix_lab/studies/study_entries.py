"""Entries of a study: the runs that fill a number, their labels, and the published number."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from statemix.layers import LayerSpec
from statemix.sweeps.runner import Job, Runnable
from statemix.training import RunConfig, RuntimeConfig, config_from_plain
from statemix.training.settings import put
from statemix_lab.studies.store import StoredRow, key

ProtocolName = Literal["mad", "paper", "mlp", "tuned"]
SizeName = Literal["laptop", "workstation", "paper"]
PROTOCOLS: tuple[ProtocolName, ...] = ("mad", "paper", "mlp", "tuned")
"""The protocols, the one that decides first."""
SIZES: tuple[SizeName, ...] = ("laptop", "workstation", "paper")
Metric = Literal["token_accuracy", "mad_accuracy", "sequence_accuracy"]


class Number(NamedTuple):
    """A published accuracy, and the iterations of a layer that iterates, if they are stated."""

    accuracy: float
    iterations: int | None = None


ON_ONE_CORE = RuntimeConfig(device="cpu", num_threads=1)
"""Runtime of runs whose cost is measured, and whose results do not depend on other runs."""


def with_settings(config: RunConfig, settings: Mapping[str, object]) -> RunConfig:
    """Return a configuration with other values of settings, given by their dotted names."""
    tree = config.to_plain()
    for name, value in settings.items():
        put(tree, name, value)
    return config_from_plain(tree)


class Trial(NamedTuple):
    """One choice of settings in words, distinct within an entry, and a run for each seed."""

    setting: str
    runs: tuple[Runnable, ...]

    @classmethod
    def seeded(cls, setting: str, run: Runnable, seeds: Iterable[int]) -> "Trial":
        """Repeat a run with several seeds."""
        again: Any = run.replace if isinstance(run, RunConfig) else partial(replace, cast(Any, run))
        return cls(setting, tuple(again(seed=seed) for seed in seeds))


class Trials:
    """Settings to try, made when they are first needed: a search may have thousands of runs."""

    def __init__(self, make: Callable[[], Iterable[Trial]]) -> None:
        self._make = make

    @classmethod
    def seeded(cls, config: Runnable, seeds: Iterable[int]) -> "Trials":
        """Return a single setting, a run for each seed."""
        trial = Trial.seeded("", config, seeds)
        return cls(lambda: [trial])

    @classmethod
    def at_rates(
        cls, at_rate: Callable[[float, int], Runnable], rates: Iterable[float], seeds: Iterable[int]
    ) -> "Trials":
        """Return a setting for each learning rate; ``at_rate`` makes a run of a rate and a seed."""
        return cls(
            lambda: [
                Trial(f"lr={rate:g}", tuple(at_rate(rate, seed) for seed in seeds))
                for rate in rates
            ]
        )

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._make())

    @cached_property
    def runs(self) -> list[tuple[str, Runnable, str]]:
        """Setting, configuration and key of every run."""
        return [(trial.setting, config, key(config)) for trial in self for config in trial.runs]

    @cached_property
    def first_keys(self) -> tuple[str, ...]:
        """Keys of the runs of the first setting."""
        return tuple(key(config) for config in next(iter(self)).runs)

    def is_wanted(self, name: str, rows: Mapping[str, StoredRow]) -> bool | None:
        """Return whether a run is to be trained, by its key; None while other runs must end."""
        del name, rows
        return True


class ScreenedTrials(Trials):
    """Settings of which a screening run each decides which ones are trained with all seeds.

    ``make`` makes each setting as the screening run alone, which may be one of its runs, and in
    full. The ``kept`` most accurate ones are trained in full, of equal ones the first.
    """

    def __init__(
        self,
        make: Callable[[], Iterable[tuple[Trial, Trial]]],
        accuracy: Callable[[StoredRow], float],
        kept: int,
    ) -> None:
        self._make_settings, self._accuracy, self._kept = make, accuracy, kept

    @cached_property
    def _settings(self) -> list[tuple[Trial, Trial]]:
        return list(self._make_settings())

    def __iter__(self) -> Iterator[Trial]:
        yield from (screen for screen, full in self._settings if screen.runs[0] not in full.runs)
        yield from (full for _, full in self._settings)

    @cached_property
    def _keys(self) -> tuple[list[str], dict[str, int]]:
        """Keys of the screening runs, and key of a full run -> place of its setting."""
        places = {
            key(run): place for place, (_, full) in enumerate(self._settings) for run in full.runs
        }
        return [key(screen.runs[0]) for screen, _ in self._settings], places

    def is_wanted(self, name: str, rows: Mapping[str, StoredRow]) -> bool | None:
        screens, places = self._keys
        if name in screens:
            return True
        if any(screen not in rows for screen in screens):
            return None
        ended = [rows[screen] for screen in screens]
        scores = [self._accuracy(row) if row["status"] == "done" else -1.0 for row in ended]
        best = sorted(range(len(screens)), key=lambda place: -scores[place])[: self._kept]
        return places[name] in best


@dataclass(frozen=True, eq=False)
class StudyEntry:
    """Runs that fill a number of a study.

    Entries with equal labels, which differ in their data sets alone, fill one number together: the
    mean.

    Attributes:
        column: what is trained on, as the table of the study names it.
        trials: the settings to try.
        data: name of the data set in the plan; empty means that of the column.
        protocol: name of the protocol. Under "tuned" the test accuracy at the best validation
            accuracy counts, under others the best test accuracy.
        lengths: further test lengths to show.
        published: tokens of a test sequence -> published number; 0 stands for the length of
            training.
        published_for: setting of the published numbers if it is another one. They are shown, but
            not compared.
        layers: sequence layers that are tried. The first one sets the colour in figures.
        updates: optimiser steps of the published run; None if they are not known.
        labels: further labels, such as the panel of a figure.
    """

    column: str
    model: str
    trials: Trials
    data: str = ""
    protocol: ProtocolName = "paper"
    size: SizeName = "laptop"
    metric: Metric = "token_accuracy"
    lengths: tuple[int, ...] = ()
    published: Mapping[int, Number] = field(default_factory=dict)
    published_for: str = ""
    layers: Sequence[LayerSpec] = ()
    updates: int | None = None
    labels: Mapping[str, str | float] = field(default_factory=dict)

    def begun(self, rows: Collection[str]) -> bool:
        """Return whether the first setting has a run among the rows of a store."""
        return bool(rows) and any(name in rows for name in self.trials.first_keys)

    @property
    def place(self) -> dict[str, str | float]:
        """All labels, which the entries of one number have in common."""
        names = ("protocol", "size", "column", "model")
        return {**{name: getattr(self, name) for name in names}, **self.labels}

    @property
    def cell(self) -> tuple[object, ...]:
        """The values of all labels."""
        return tuple(self.place.values())

    @property
    def names(self) -> tuple[str, str]:
        """Names by which users choose its column."""
        return (self.column, self.data or self.column)


def begun(entries: Iterable[StudyEntry], rows: Collection[str]) -> list[StudyEntry]:
    """Return the entries of all numbers for which one data set has begun."""
    listed = list(entries)
    cells = {entry.cell for entry in listed if entry.begun(rows)}
    return [entry for entry in listed if entry.cell in cells]


class Planned(NamedTuple):
    """A run of a plan, its key in the results store, and the settings that it belongs to."""

    job: Job
    key: str
    trials: Trials


def plan(entries: Iterable[StudyEntry], folder: Path) -> list[Planned]:
    """Return the distinct runs of entries in the order in which they should be done."""
    planned: dict[str, Planned] = {}
    counts: Counter[tuple[object, ...]] = Counter()

    def place(entry: StudyEntry) -> int:
        """Return how many data sets of its number come before."""
        counts[entry.cell] += 1
        return counts[entry.cell]

    for entry in sorted(entries, key=place):
        for setting, config, name in entry.trials.runs:
            words = (entry.model, entry.data or entry.column, setting, f"seed {config.seed}")
            job = Job(", ".join(word for word in words if word), config, folder / name)
            planned.setdefault(name, Planned(job, name, entry.trials))
    return list(planned.values())


def due(planned: Sequence[Planned], rows: Mapping[str, StoredRow], *, retry: bool) -> list[Planned]:
    """Return the runs that the store has no row of, and with ``retry`` those without a result."""
    ended = {name for name, row in rows.items() if row["status"] == "done" or not retry}
    return [run for run in planned if run.key not in ended]
