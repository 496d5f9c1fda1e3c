"""Monitors of protocols, learned from labelled traces: networks beside RPNI and L*."""

from collections.abc import Iterator
from typing import get_args

from statemix.layers import LayerSpec
from statemix.studies.exactness.learned_automata import Algorithm, LearnedAutomaton
from statemix.studies.recipes import exact
from statemix.studies.study_entries import ProtocolName, SizeName, StudyEntry, Trial, Trials
from statemix.studies.study_runs import Runnable
from statemix.tasks import TaskSpec
from statemix.tasks.automata.known_languages import MONITORS
from statemix.training import (
    EvaluationConfig,
    ModelConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
)

PROPERTIES = {
    # A handle that was closed is not read or written before it is opened again.
    "file-handle": """\
start: closed
bad: wrong
closed read ok wrong
closed write ok wrong
closed open-read * opened
closed open-write * opened
opened close * closed""",
    # No data before the handshake is complete.
    "tcp-handshake": """\
start: silent
bad: wrong
silent data ok wrong
half data ok wrong
silent syn * half
half ack * open
half rst * silent
open rst * silent""",
    # After three wrong passwords, nobody gets in without an unlock.
    "login": """\
start: none
bad: wrong
none wrong ok one
one wrong ok two
two wrong ok locked
one right * none
two right * none
one unlock * none
two unlock * none
locked unlock * none
locked right ok wrong
locked use ok wrong""",
}
"""Safety property of each protocol."""

_SHARES = (0.0, 0.02, 0.1)
_SEEDS = (0, 1, 2)
_TRACES, _TESTS, _LENGTH = 1000, 256, 1024
# About the steps of the recipe, in steps of 128 traces.
_EPOCHS = 125


def monitor_entries(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return an entry for each protocol, share of wrong labels and learner."""
    del protocol, size
    return tuple(
        StudyEntry(
            column,
            learner,
            Trials(lambda runs=runs: [Trial("", runs)]),  # type: ignore[misc]
            labels={"wrong": share},
        )
        for column in PROPERTIES
        for share in _SHARES
        for learner, runs in _runs(column, share)
    )


def _runs(column: str, share: float) -> Iterator[tuple[str, tuple[Runnable, ...]]]:
    task = TaskSpec("automaton", preset=column, train_size=_TRACES, flipped=share)
    lstm = RunConfig(
        task=task,
        model=ModelConfig(layers=(LayerSpec("lstm"),)),
        schedules=ScheduleConfig(epochs=_EPOCHS),
    )
    for learner, config in {"BD-LRU, recipe exact": exact(task), "LSTM": lstm}.items():
        measured = config.replace(
            evaluation=EvaluationConfig(every=25, lengths=(_LENGTH,), validation_size=_TESTS),
            runtime=RuntimeConfig(device="cpu", num_threads=1),
        )
        yield learner, tuple(measured.replace(seed=seed) for seed in _SEEDS)
    for algorithm in get_args(Algorithm):
        run = LearnedAutomaton(algorithm, task, PROPERTIES[column], _LENGTH, _TESTS)
        yield algorithm, tuple(run.with_seed(seed) for seed in _SEEDS)


def property_of(task: TaskSpec) -> str:
    """Return the safety property of the protocol that is a task's automaton."""
    rules = task.options["rules"]
    return next(PROPERTIES[name] for name in PROPERTIES if MONITORS[name]["rules"] == rules)
