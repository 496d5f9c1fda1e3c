"""How the runs of a table are configured: protocols and sizes by name."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from statemix.layers import LayerSpec
from statemix.models import MixerSpec, ModelKind
from statemix.tasks import TaskSpec
from statemix.training import (
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
)
from statemix_lab.studies.higher_order.contenders import STATE_SIZES, Contender, single
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study_entries import (
    Metric,
    Number,
    ProtocolName,
    ScreenedTrials,
    SizeName,
    StudyEntry,
    Trial,
    Trials,
    with_settings,
)

MLP_DECODER = MixerSpec("mlp", intermediate_size=32)
"""What protocol "mlp" adds behind the layer: the paper's "MLP decoder", whose width it lacks.

A wide MLP keeps BD-LRU with 192 state entries from learning S_4 (docs/studies/wrapper.md).
"""

# About as many evaluations in a run that is not as long as the paper's.
_EVALUATIONS = 25

_EPOCHS = 200
"""Epochs of the paper, those of MAD."""

_BATCH = 128
# A screening run of protocol "mad" has a quarter of the epochs, and 1,000 steps or all: after 100
# steps on S_3 from 250 examples, every layer is at chance.
_SCREEN = 4
_LEAST_STEPS = 1000


@dataclass(frozen=True)
class Grid:
    """How much of the paper's grid is run.

    The paper says "hidden size up to 6144", which we read as the number of entries of the state.
    ``screened_sizes`` and ``kept`` (settings trained in full) are those of protocol "mad", and
    ``num_settings`` those of "tuned". Runs are evaluated after every epoch, or about 25 times.
    """

    learning_rates: tuple[float, ...]
    state_sizes: tuple[int, ...]
    screened_sizes: tuple[int, ...]
    num_settings: int
    kept: int
    seeds: tuple[int, ...] = (0, 1, 2)
    all_variants: bool = False
    every_epoch: bool = False


GRIDS: dict[SizeName, Grid] = {
    "laptop": Grid(
        learning_rates=(1e-3,),
        state_sizes=(192,),
        screened_sizes=STATE_SIZES[:4],
        num_settings=7,
        kept=1,
    ),
    "workstation": Grid(
        learning_rates=(1e-3, 5e-4),
        state_sizes=(192, 768),
        screened_sizes=STATE_SIZES[:5],
        num_settings=13,
        kept=2,
    ),
    "paper": Grid(
        learning_rates=(1e-3, 5e-4, 1e-4),
        state_sizes=STATE_SIZES[2:],
        screened_sizes=STATE_SIZES,
        num_settings=25,
        kept=2,
        seeds=(0, 1, 2, 3, 4),
        all_variants=True,
        every_epoch=True,
    ),
}


@dataclass(frozen=True, eq=False)
class Data:
    """A data set of a table by its name in the plan.

    Durations are epochs, or optimiser steps on fresh examples, by size; ``lengths`` are further
    test lengths. Protocol "mad" trains on ``fixed`` for ``epochs``, by size, if given.
    """

    name: str
    task: TaskSpec
    durations: Mapping[SizeName, int]
    lengths: tuple[int, ...] = ()
    backbone: ModelKind = "causal"
    metric: Metric = "token_accuracy"
    fixed: TaskSpec | None = None
    epochs: Mapping[SizeName, int] = field(default_factory=dict)

    def task_of(self, protocol: ProtocolName) -> TaskSpec:
        """Return the task; protocol "mad" has a fixed training set, if another one has none."""
        return self.fixed if protocol == "mad" and self.fixed else self.task

    def updates(self, protocol: ProtocolName) -> int | None:
        """Return the optimiser steps of the paper, which trains like MAD; None if not known."""
        examples = self.task_of(protocol).options.get("train_size")
        return _EPOCHS * -(-examples // _BATCH) if isinstance(examples, int) else None


@dataclass(frozen=True)
class Column:
    """A column of a table: the mean over its data sets, which are the paper's or shorter ones."""

    name: str
    data: tuple[Data, ...]
    is_papers: bool = True

    @property
    def first(self) -> "Column":
        """The column with its first data set alone."""
        return replace(self, data=self.data[:1])


def cell(
    contender: Contender,
    column: Column,
    protocol: ProtocolName,
    size: SizeName,
    published: float | None = None,
    *,
    change: Callable[[Trials], Trials] = lambda trials: trials,
    **labels: str | float,
) -> list[StudyEntry]:
    """Return the entries of one model and column, one for each data set."""
    shared: dict[str, Any] = {
        "protocol": protocol,
        "size": size,
        "published": {} if published is None else {0: Number(published)},
        "layers": tried(contender, protocol, size),
        "labels": labels,
    }
    return [
        StudyEntry(
            column.name,
            contender.name,
            change(_trials(protocol, size, contender, data)),
            data=data.name,
            metric=data.metric,
            lengths=data.lengths,
            updates=data.updates(protocol),
            **shared,
        )
        for data in column.data
    ]


def tried(contender: Contender, protocol: ProtocolName, size: SizeName) -> list[LayerSpec]:
    """Return the layers of a model that a protocol tries at a size."""
    grid = GRIDS[size]
    if protocol == "mad":
        return contender.grown(grid.screened_sizes)
    return contender.choices(grid.state_sizes, all_variants=grid.all_variants)


def at_state_size(contender: Contender, state_size: int) -> Contender:
    """Return a model at one state size, without the variants of larger searches."""
    usual = GRIDS["laptop"].state_sizes[0]
    words = "" if state_size == usual else f", state of {state_size}"
    return single(contender.name + words, contender.layer(state_size))


# Tables, figures and claims share runs, whose keys take time.
@cache
def _trials(protocol: ProtocolName, size: SizeName, contender: Contender, data: Data) -> Trials:
    if protocol == "mad":
        return _screened(size, contender, data)
    return Trials(partial(trials, protocol, size, contender, data))


def _screened(size: SizeName, contender: Contender, data: Data) -> ScreenedTrials:
    """Return the settings of protocol "mad": every state size and rate, first in screening runs.

    The model is MAD's: the layer and an MLP, each with a norm and a residual connection, norm and
    linear readout. The model of compression is MAD's autoencoder.
    """
    grid = GRIDS[size]
    layers = tried(contender, "mad", size)
    epochs = data.epochs.get(size, data.durations[size])
    updates = data.updates("mad")
    least = 1 if updates is None else _EPOCHS * _LEAST_STEPS // updates
    short = min(epochs, max(1, epochs // _SCREEN, least))

    def settings() -> Iterator[tuple[Trial, Trial]]:
        for layer, rate in itertools.product(layers, grid.learning_rates):
            words = ", ".join([f"learning rate {rate:g}", *options_text(layer, layers)])
            config = _config(layer, data, size)
            screen = _as_mad(config, data, size, rate, short).replace(seed=grid.seeds[0])
            full = Trial.seeded(words, _as_mad(config, data, size, rate, epochs), grid.seeds)
            yield Trial(f"{words}, {short} epochs", (screen,)), full

    def accuracy(row: StoredRow) -> float:
        scores = [head[data.metric] for head in row["best_test"].values()]
        return float(sum(scores) / len(scores))

    return ScreenedTrials(settings, accuracy, grid.kept)


def _as_mad(config: RunConfig, data: Data, size: SizeName, rate: float, epochs: int) -> RunConfig:
    """Give a run the model, the data and the length of protocol "mad"."""
    return config.replace(
        task=data.task_of("mad"),
        model=config.model.replace(channel_mixer=MixerSpec("mlp")),
        optimizer=config.optimizer.replace(learning_rate=rate),
        schedules=config.schedules.replace(epochs=epochs, num_steps=None),
        evaluation=config.evaluation.replace(every=_every(size, epochs)),
    )


# The same choices for every model; what the paper fixes or leaves open.
_CHOICES: dict[str, tuple[object, ...]] = {
    "optimizer.learning_rate": (3e-3, 1e-3, 5e-4, 1e-4),
    "optimizer.weight_decay": (0.0, 0.1, 1.0),
    "model.residual": (True, False),
    "model.bos": (False, True),
    "schedules.learning_rate": ("cosine", "constant"),
}


def trials(
    protocol: ProtocolName, size: SizeName, contender: Contender, data: Data
) -> Iterator[Trial]:
    """Yield the settings to try for one model on one data set.

    Protocol "mad" screens every state size and learning rate (see ``_screened``); "paper" tries
    those of the paper, "mlp" with an MLP behind the layer unless the model has its own. "tuned"
    tries settings drawn at random, the same for every model, and that of "paper".
    """
    grid = GRIDS[size]
    layers = tried(contender, protocol, size)
    if protocol == "mad":
        yield from _screened(size, contender, data)
    elif protocol != "tuned":
        for layer, rate in itertools.product(layers, grid.learning_rates):
            config = _config(layer, data, size)
            if protocol == "mlp" and data.backbone == "causal":
                config = config.replace(model=config.model.replace(channel_mixer=MLP_DECODER))
            config = config.replace(optimizer=config.optimizer.replace(learning_rate=rate))
            words = ", ".join([f"learning rate {rate:g}", *options_text(layer, layers)])
            yield Trial.seeded(words, config, grid.seeds)
    else:
        for setting, layer in itertools.product(_settings(grid.num_settings), layers):
            config = with_settings(_config(layer, data, size), setting)
            parts = [f"{name.split('.')[-1]} {value}" for name, value in setting.items()]
            words = ", ".join([*parts, *options_text(layer, layers)])
            yield Trial.seeded(words, config, grid.seeds)


def _settings(count: int) -> Iterator[dict[str, object]]:
    """Yield settings drawn at random, and last, as other runs share it, that of "paper"."""
    usual = (1e-3, 0.0, True, False, "cosine")
    every = list(itertools.product(*_CHOICES.values()))
    drawn = [values for values in random.Random(0).sample(every, count - 1) if values != usual]
    for values in (*drawn, usual):
        yield dict(zip(_CHOICES, values, strict=True))


def options_text(layer: LayerSpec, layers: Sequence[LayerSpec]) -> list[str]:
    """Return the options of a layer in words, unless it is the only one to try."""
    if len(layers) == 1:
        return []
    return [" ".join(f"{name}={value}" for name, value in layer.options.items())]


def _every(size: SizeName, epochs: int) -> int:
    """Return the epochs between evaluations."""
    return 1 if GRIDS[size].every_epoch else max(1, epochs // _EVALUATIONS)


def _config(layer: LayerSpec, data: Data, size: SizeName) -> RunConfig:
    """Configure a run as the paper says, and as MAD does where the paper is silent."""
    duration = data.durations[size]
    fresh = "train_size" not in data.task.options
    every = max(1, duration // _EVALUATIONS) if fresh else _every(size, duration)
    return RunConfig(
        task=data.task,
        model=ModelConfig(layers=(layer,), hidden_size=128, backbone=data.backbone),
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.0),
        schedules=ScheduleConfig(
            epochs=None if fresh else duration,
            num_steps=duration if fresh else None,
            learning_rate="cosine",
            min_learning_rate=1e-5,
        ),
        evaluation=EvaluationConfig(every=every, lengths=data.lengths, stop_at=0.999),
        # One thread: two runs side by side are faster than one with two threads.
        runtime=RuntimeConfig(num_threads=1),
    )
