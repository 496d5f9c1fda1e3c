"""Monitors of protocols, learned from labelled traces: networks beside RPNI and L*."""

from collections.abc import Iterator
from typing import get_args

from statemix.layers import LayerSpec
from statemix.sweeps.recipes import by_labels, exact
from statemix.sweeps.runner import Runnable
from statemix.tasks import TaskSpec
from statemix.tasks.automata.known_languages import MONITORS
from statemix.training import EvaluationConfig, ModelConfig, RunConfig, ScheduleConfig
from statemix_lab.studies.exactness.exact_suites import RECIPE, with_layer
from statemix_lab.studies.exactness.learned_automata import Algorithm, LearnedAutomaton
from statemix_lab.studies.study_entries import ON_ONE_CORE, StudyEntry, Trials

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
    # No data before the handshake of a connection is complete, or after its end.
    "tcp-handshake": """\
start: silent
bad: wrong
silent data ok wrong
half data ok wrong
closing data ok wrong
silent syn * half
half ack * open
half rst * silent
open rst * silent
open fin * closing
closing ack * silent
closing rst * silent""",
    # After three wrong passwords, nobody logs in or uses the account without an unlock.
    "login": """\
start: none
bad: wrong
locked right ok wrong
locked use ok wrong
none wrong * one
one wrong * two
two wrong * locked
none right * in
one right * in
two right * in
in logout * none
one unlock * none
two unlock * none
locked unlock * none""",
}
"""Safety property of each protocol."""

# Traces of training, and as many of validation.
_TRACES, _CALLS = 1000, 16
_TESTS, _LENGTH = 256, 1024
# Entries of a block, for all protocols alike: no learner knows how many states there are.
_ENTRIES = 16


def monitor_entries(*_: str) -> tuple[StudyEntry, ...]:
    """Return an entry for each protocol, share of wrong labels and learner."""
    return tuple(
        StudyEntry(column, learner, Trials.seeded(run, range(3)), labels={"wrong": share})
        for column in PROPERTIES
        for share in (0.0, 0.02, 0.1)
        for learner, run in _runs(column, share)
    )


def _runs(column: str, share: float) -> Iterator[tuple[str, Runnable]]:
    task = TaskSpec("automaton", preset=column, length=_CALLS, train_size=_TRACES, flipped=share)
    lstm = RunConfig(
        task=task,
        model=ModelConfig(layers=(LayerSpec("lstm"),)),
        schedules=ScheduleConfig(epochs=60),
    )
    evaluation = EvaluationConfig(
        every=20, lengths=(_LENGTH,), validation_size=_TRACES, test_size=_TESTS
    )
    # The recipe without what it takes from the automaton.
    right = exact(TaskSpec(task.name, **{**task.options, "flipped": 0.0})).search
    search = right.replace(size=_TRACES, length=_CALLS)
    search = by_labels(search, share, 2, num_labels=_TRACES * _CALLS)
    blind = with_layer(exact(task), block_size=_ENTRIES).replace(search=search)
    for learner, config in ((RECIPE, blind), ("LSTM", lstm)):
        yield learner, config.replace(evaluation=evaluation, runtime=ON_ONE_CORE)
    for algorithm in get_args(Algorithm):
        watched = PROPERTIES[column]
        yield algorithm, LearnedAutomaton(algorithm, task, watched, _TRACES, _LENGTH, _TESTS)


def property_of(task: TaskSpec) -> str:
    """Return the safety property of the protocol that is a task's automaton."""
    rules = task.options["rules"]
    return next(PROPERTIES[name] for name in PROPERTIES if MONITORS[name]["rules"] == rules)
