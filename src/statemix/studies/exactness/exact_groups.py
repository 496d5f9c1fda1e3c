"""The study exact-groups: the recipe on every group; an LSTM and a control beside it."""

from collections.abc import Callable
from typing import NamedTuple

from statemix.layers import LayerSpec
from statemix.studies.exactness.recipe_changes import opened
from statemix.studies.recipes import exact
from statemix.studies.study_entries import ProtocolName, SizeName, StudyEntry, Trials
from statemix.tasks import TASKS, TaskSpec
from statemix.training import (
    EvaluationConfig,
    ModelConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
)

_LENGTHS = (64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)
# Steps between evaluations.
_EVERY = 250
# About as many steps as the recipe needs with its restarts.
_PEER_STEPS = 2500


def _group(name: str) -> TaskSpec:
    return TaskSpec("permutation", group=name)


_TASKS = {
    "S_3 from 250 words": TaskSpec("permutation", **TASKS["permutation"].presets["S3-250"]),
    "S_3": _group("S_3"),
    "S_4": _group("S_4"),
    "A_5": _group("A_5"),
    "S_5": _group("S_5"),
}


def _lstm(task: TaskSpec) -> RunConfig:
    """Return a peer that has no gates to sharpen."""
    size = task.build().train_size
    steps_per_epoch = 1 if size is None else -(-size // 128)
    return RunConfig(
        task=task,
        model=ModelConfig(layers=(LayerSpec("lstm"),)),
        schedules=ScheduleConfig(
            num_steps=_PEER_STEPS if size is None else None,
            epochs=None if size is None else -(-_PEER_STEPS // steps_per_epoch),
        ),
    )


class _Way(NamedTuple):
    """How a group is learned, with which seeds, and which groups are learned so."""

    configured: Callable[[TaskSpec], RunConfig]
    seeds: tuple[int, ...]
    columns: tuple[str, ...] = tuple(_TASKS)


_WAYS = {
    "BD-LRU, recipe exact": _Way(exact, tuple(range(20))),
    "LSTM": _Way(_lstm, (0, 1, 2)),
    "BD-LRU, start token, open gates": _Way(
        lambda task: opened(exact(task)), tuple(range(10)), ("A_5", "S_5")
    ),
}


def _measured(config: RunConfig) -> RunConfig:
    size = config.build_task().train_size
    evaluation = EvaluationConfig(
        every=_EVERY if size is None else -(-_EVERY // -(-size // config.batches.size)),
        lengths=_LENGTHS,
        validation_size=256,
    )
    return config.replace(evaluation=evaluation, runtime=RuntimeConfig(device="cpu", num_threads=1))


def group_entries(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return an entry for each way of training and group; there is one protocol and one size."""
    del protocol, size
    return tuple(
        StudyEntry(
            column,
            model,
            Trials.seeded(_measured(way.configured(_TASKS[column])), way.seeds),
        )
        for model, way in _WAYS.items()
        for column in way.columns
    )
