"""The tasks by which other works measure state tracking, with their published accuracies."""

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from statemix.layers import LayerSpec
from statemix.sweeps.recipes import exact
from statemix.sweeps.runner import Runnable, configured
from statemix.tasks import TaskSpec
from statemix.tasks.automata.known_languages import PREFIXES
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
)
from statemix_lab.studies.exactness.exact_suites import RECIPE
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study import chosen_rate
from statemix_lab.studies.study_entries import ON_ONE_CORE, Number, StudyEntry, Trials

# Beyond the training words of 40 letters, PD-SSM is tested up to 256, LDRU up to 500.
_PD_SSM, _LDRU = 256, 500
_WORDS: dict[str, Any] = {"length": 40, "min_length": 3}
_LAST: dict[str, Any] = {"labels": "last", "length": 40}
_PEERS = {
    "LSTM": LayerSpec("lstm"),
    "Mamba-2": LayerSpec("mamba2", d_state=8, d_conv=4),
    "DeltaNet [-1,1]": LayerSpec("delta_net", num_heads=4),
    "Gated DeltaProduct_4": LayerSpec(
        "delta_product", num_heads=4, num_householder=4, use_forget_gate=True
    ),
}
RATES = (3e-4, 1e-3, 3e-3)
"""Learning rates that every other network chooses from, for each task."""
_NESTED = tuple(f"D_{depth}" for depth in (2, 3, 4, 6, 8, 12))
# One task of each kind, as their training takes longer than that of the recipe: a sum, a memory,
# a large group, and pairs of moves that training has not seen.
_COMPARED = {"parity", "flip-flop", "A_5, 2 generators", "S_3 x S_3"}


class _Task(NamedTuple):
    """A task, further test lengths, and the published accuracies at some of them."""

    spec: TaskSpec
    lengths: tuple[int, ...]
    published: Mapping[int, float] = {}
    published_for: str = ""


def _language(preset: str, task: str = "regex") -> _Task:
    spec = TaskSpec(task, preset=preset, lengths="log-uniform", **_LAST)
    return _Task(spec, (_PD_SSM, _LDRU), {_LDRU: 0.999}, "MLP-LDRU, at least")


def _both(spec: TaskSpec, published: float) -> _Task:
    """Return a task that both works have."""
    numbers = {_PD_SSM: published, _LDRU: 1.0}
    return _Task(spec, (_PD_SSM, _LDRU), numbers, "PD-SSM at 256, MLP-LDRU at 500")


def _group(name: str, num_generators: int, published: float) -> _Task:
    spec = TaskSpec("permutation", group=name, num_generators=num_generators)
    return _Task(spec, (_PD_SSM, 4096), {_PD_SSM: published}, "PD-SSM, one layer")


_TASKS: dict[str, _Task] = {
    "parity": _both(TaskSpec("parity", **_WORDS), 0.999),
    "cycle navigation": _both(TaskSpec("cycle_navigation", **_WORDS), 0.995),
    # A proof is about words of one and two letters, too, which the published training leaves out.
    "even pairs": _both(TaskSpec("regex", preset="even-pairs", **_LAST), 0.997),
    "flip-flop": _Task(TaskSpec("automaton", preset="flip-flop"), (256, 4096)),
    "S_3 x S_3": _Task(
        TaskSpec("arrangement", preset="S_3 x S_3", length=8),
        (1024, 1_048_576),
        {1_048_576: 1.0},
        "Lee, words without a mistake",
    ),
    "modular sum": _language("modular-sum", "automaton"),
    **{f"tomita-{number}": _language(f"tomita-{number}") for number in range(3, 8)},
    **{name: _language(name) for name in (*_NESTED, *PREFIXES)},
    **{f"A_5, {count} generators": _group("A_5", count, 1.0) for count in (2, 6, 8, 12)},
    **{f"S_5, {count} generators": _group("S_5", count, 1.0) for count in (4, 8)},
    "S_5, 32 generators": _group("S_5", 32, 0.0107),
}


def _peer(layer: LayerSpec, spec: TaskSpec) -> RunConfig:
    return RunConfig(
        task=spec,
        model=ModelConfig(layers=(layer,)),
        batches=BatchConfig(packed=True),
        # About the steps of the recipe.
        schedules=ScheduleConfig(num_steps=1000, warmup_steps=50),
    )


def protocol_entries(*_: str) -> tuple[StudyEntry, ...]:
    """Return an entry for each task and network."""
    networks: list[tuple[str, Callable[[TaskSpec], RunConfig], Collection[str]]] = [
        (RECIPE, exact, _TASKS),
        *((name, partial(_peer, layer), _COMPARED) for name, layer in _PEERS.items()),
    ]
    entries = []
    for model, configure, columns in networks:
        for column in filter(columns.__contains__, _TASKS):
            task = _TASKS[column]
            evaluation = EvaluationConfig(every=250, lengths=task.lengths, validation_size=256)
            config = configure(task.spec).replace(evaluation=evaluation, runtime=ON_ONE_CORE)
            trials = (
                Trials.seeded(config, range(10))
                if model == RECIPE
                else Trials.at_rates(partial(_at_rate, config), RATES, range(3))
            )
            published = {at: Number(accuracy) for at, accuracy in task.published.items()}
            more: Any = {"published_for": task.published_for, "layers": config.model.layers}
            entries.append(StudyEntry(column, model, trials, published=published, **more))
    return tuple(entries)


def has_tuned_rate(run: Runnable, rows: Mapping[str, StoredRow]) -> bool | None:
    """Return whether a run has the rate with the lowest loss; None while runs are missing."""
    config = configured(run)
    if config.search.attempts is not None:
        return True
    tries = {rate: _at_rate(config, rate, 0) for rate in RATES}
    best = chosen_rate(tries, rows, _validation_loss)
    return None if best is None else config.optimizer.learning_rate == best


def _at_rate(run: RunConfig, rate: float, seed: int) -> RunConfig:
    return run.replace(optimizer=OptimizerConfig(learning_rate=rate), seed=seed)


def _validation_loss(row: StoredRow) -> float:
    losses = (head["loss"] for head in row["best_validation"].values())
    return math.fsum(math.inf if loss is None else loss for loss in losses)
