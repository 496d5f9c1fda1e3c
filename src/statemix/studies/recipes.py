"""Configurations with a name, for users who want what they achieve and not their details."""

from collections.abc import Callable

from statemix.automaton import IGNORED, NEVER, Automaton, HasAutomaton
from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.layers.bd_lru import COLUMN_TRACKING, TRACKING
from statemix.place_rules import HasPlaces
from statemix.tasks import TASKS, Task, TaskSpec
from statemix.tasks.automata.automaton_words import AutomatonTask
from statemix.tasks.permutation import Permutation
from statemix.training import (
    AttributeSchedule,
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    SearchConfig,
)
from statemix.training.settings import Assignments

MAX_PAIRS = 5000
"""Pairs after which the search for a proof stops; networks that track have a few hundred."""

_BATCH_SIZE = 128
# Optimiser steps of sharpening, after the search.
_STEPS = 700
_SHARP = 1 / 8
# Noise in raw gates of columns, without which some letters choose less clearly. With a single label
# for each word, networks that were right with gates of temperature 1/16 were wrong with gates of 0
# and 1 unless there was more noise.
_NOISE, _LAST_ONLY_NOISE = 0.3, 1.0
# Steps between evaluations: often enough to see an attempt leave its plateau.
_EVERY = 50
# Tests where a word has a single label. Before gates are sharpened, sharp gates answer few words.
_LAST_ONLY = {
    "size": 2048,
    "tests": 15,
    "accept": 0.9999,
    "accept_last": 0.999,
    "confirm": 0.9999,
    "attributes": Assignments(),
}
# Beyond what was measured, and within what the kernels are made for.
_MOST_STATES = 16


def exact(task: TaskSpec) -> RunConfig:
    """Return the settings that make a BD-LRU track an automaton exactly.

    One layer has six blocks. Their initial states are learned, and their input gates begin closed,
    so that tokens only mix what the blocks hold. Attempts from new weights are trained until one
    still answers words of four times the length with sharp gates. Then the gates are sharpened
    while the learning rate falls, and the attempt is tested again; if it fails, the next one
    begins. ``statemix certify`` sets the gates to 0 and 1, keeps the blocks that track, and proves
    the result.

    A block has an entry for each point of a permutation group; otherwise, for each state of the
    automaton. For an automaton of the user, one block with column gates and two entries for each
    state takes the place of the six, and noise in the gates while they are sharpened makes the
    letters choose clearly. Why this works is in ``docs/state_tracking.md``.

    If only the last letter of each word of such an automaton has a label, a batch has few labels,
    and long words of most languages have the same one. Attempts are then tested more often, on more
    words, of all lengths up to that of training; nearly all answers must be right. There is more
    noise while gates are sharpened.

    Args:
        task: a task with a finite automaton.

    Raises:
        RequestError: if the task has none or one of more than 16 states, or an option does not fit
            it.
    """
    built = task.build()
    num_entries = _num_entries(task.name, built)
    layer = LayerSpec("bd_lru", num_blocks=6, block_size=num_entries, **TRACKING)
    attributes = [
        AttributeSchedule(attribute="gate_temperature", end=_SHARP, finish=0.7, curve="geometric")
    ]
    last_only = isinstance(built, AutomatonTask) and built.labels == "last"
    if isinstance(built, AutomatonTask):
        # Several blocks would share the states, and follow them only together.
        columns = {"gate": "column_softmax", **COLUMN_TRACKING}
        layer = LayerSpec("bd_lru", num_blocks=1, block_size=2 * num_entries, **columns)
        noise = _LAST_ONLY_NOISE if last_only else _NOISE
        attributes.append(AttributeSchedule(attribute="gate_noise", end=noise, finish=0.0))
    fresh = built.train_size is None
    steps_per_epoch = 1 if built.train_size is None else -(-built.train_size // _BATCH_SIZE)
    return RunConfig(
        task=task,
        model=ModelConfig(layers=(layer,)),
        batches=BatchConfig(size=_BATCH_SIZE, packed=last_only),
        optimizer=OptimizerConfig(learning_rate=2e-3),
        schedules=ScheduleConfig(
            num_steps=_STEPS if fresh else None,
            epochs=None if fresh else -(-_STEPS // steps_per_epoch),
            warmup_steps=50,
            attributes=tuple(attributes),
        ),
        search=SearchConfig(
            attempts=12,
            length=4 * built.length,
            # Late attempts that track have passed this. Those that track a quotient of the group,
            # and the rest on short words alone, stay below.
            accept_last=0.75,
            # Networks that were proven had .998 at least, others .95 at most.
            confirm=0.99,
            attributes=Assignments(gate_temperature=_SHARP),
        ).replace(**_LAST_ONLY | {"length": built.length} if last_only else {}),
        evaluation=EvaluationConfig(every=_EVERY if fresh else -(-_EVERY // steps_per_epoch)),
    )


def _num_entries(name: str, task: Task) -> int:
    """Return the entries that a block needs to hold the state of a task."""
    if isinstance(task, Permutation):
        return task.group.degree
    if isinstance(task, HasPlaces):
        return task.places().num_places
    if not isinstance(task, HasAutomaton):
        having = [known for known in TASKS if issubclass(TASKS[known], HasAutomaton | HasPlaces)]
        raise RequestError(
            f"task must have a finite automaton or places ({', '.join(having)}), got {name}"
        )
    num_states = _num_told_apart(task.automaton())
    if num_states > _MOST_STATES:
        raise RequestError(
            f"task must need at most {_MOST_STATES} states, as blocks have an entry for each, got "
            f"{name}, which needs {num_states}"
        )
    return num_states


def _num_told_apart(automaton: Automaton) -> int:
    """Return the states that a network needs whose readout does not combine state and token.

    An automaton answers from the state before a token. A state that words reach with several
    answers counts once for each of them.
    """
    after, outputs = automaton.transitions, automaton.outputs
    answered = (after != NEVER) & (outputs != IGNORED)
    pairs = set(zip(after[answered], outputs[answered], strict=True))
    silent = {automaton.start, *after[after != NEVER]} - set(after[answered])
    return len(pairs) + len(silent)


DESCRIPTIONS = {
    "exact": "no start token but a learned initial state, input gates that begin closed, attempts "
    "from new weights until one still answers words four times as long, then sharpening, after "
    "which it must answer them again",
}
"""Name -> what a recipe does, for readers of results."""

RECIPES: dict[str, Callable[[TaskSpec], RunConfig]] = {"exact": exact}
"""Name -> configuration for a task."""
