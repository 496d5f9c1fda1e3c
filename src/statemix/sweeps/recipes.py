"""Configurations with a name, for users who want what they achieve and not their details."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from statemix.automaton import IGNORED, NEVER, Automaton, HasAutomaton
from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.layers.bd_lru import COLUMN_TRACKING, TRACKING
from statemix.place_rules import HasPlaces
from statemix.tasks import TASKS, Task, TaskSpec
from statemix.tasks.automata.automaton_words import AutomatonTask
from statemix.tasks.automata.traces import Traces
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

_SHARP = 1 / 8
_SHARPENING = AttributeSchedule(
    attribute="gate_temperature", end=_SHARP, finish=0.7, curve="geometric"
)
# Steps between evaluations: often enough to see an attempt leave its plateau.
_EVERY = 50
# Beyond what was measured.
_MOST_STATES = 32
# Entries of a block with two for each state: the cost of a step grows with their square.
_MOST_ENTRIES = 32

# Share of blocks that the readout does not see while gates are sharpened: it must not need blocks
# that do not track, which the proof removes. A schedule that ends at 0 would already hide them in
# the search, in which attempts on S_5 then fail.
_HIDING = AttributeSchedule(attribute="block_dropout", end=0.5, finish=0.01)

# Noise in raw gates of columns, without which some letters choose less clearly. With a single label
# for each word, or with many states, networks with gates of 0 and 1 were wrong without more noise.
_NOISE, _MORE_NOISE = 0.3, 1.0
# Tests where labels are wrong: words, and standard deviations that a right network may be below.
_NOISY_SIZE, _DEVIATIONS = 512, 3
# Tests where a word has a single label. Before gates are sharpened, sharp gates answer few words.
_LAST_ONLY = {"size": 2048, "tests": 15, "accept": 0.9999, "accept_last": 0.999}
# Tests on distinguishing words. In long ones, most answers come after the pattern and are equal.
_DISTINGUISHING = {"size": 2048, "tests": 15, "accept": 0.99, "accept_last": 0.95}
# Each takes as long as an attempt. Networks that were proven needed up to four.
_REPAIRS = 4

# Places: values of one number are too few for a readout to tell contents apart.
_CHANNELS = 8
# With one entry for each place, two entries often follow the same place, and none another.
_ENTRIES_PER_PLACE = 1.5
# In short words, entries that hand on what they hold and lose it at the end are as good as a cycle.
_TOKENS_PER_PLACE = 4
_MOST_TOKENS = 64
# Without noise from the beginning, most trained networks lose long words (study larger-groups).
_PLACE_NOISE = 0.5


def exact(task: TaskSpec) -> RunConfig:
    """Return the settings that make a BD-LRU track an automaton or places exactly.

    One layer begins in a known state, and its input gates begin closed, so that tokens only mix
    what the blocks hold. Attempts are trained until one answers test words, usually of four times
    the training length, with sharp gates. Then the gates are sharpened while the learning rate
    falls, and the attempt is tested again. ``statemix certify`` sets the gates to 0 and 1, keeps
    the blocks that track, and proves the result.

    - The layer of a group, or of a task with an automaton of its own, has six blocks with learned
      initial states and an entry for each point or state. Half of the blocks, drawn anew for every
      word, are hidden from the readout while the gates are sharpened.
    - The layer of an automaton of the user has one block with column gates and two entries for each
      state, but at most 32, or 1.25 for each state if these are more. Noise in the gates makes the
      letters choose clearly. The last test is the proof itself, unless labels are flipped. Where
      fresh words have right labels at all letters, a second head names the states if answers do
      not, and an attempt that is refuted is repaired. With ``words="distinguishing"`` or labels at
      the last letters alone, tests are more and larger.
    - The layer of n places has one block of 1.5 n entries of eight values each, and noise in the
      gates from the beginning. Words have 4 n tokens, but at most 64, if the task does not give
      their length. The width is 8 n, but at least 128.

    Why this works is in ``docs/state_tracking.md``.
    """
    built = task.build()
    if max(built.heads.values()) < 2:
        raise RequestError(f"task must have two answers or more to learn, got one: {task.name}")
    if isinstance(built, HasPlaces):
        return _for_places(task, built.places().num_places)
    num_entries = _num_entries(task.name, built)
    # The automaton itself may teach where words are fresh and all labels are right.
    taught = (
        isinstance(built, AutomatonTask)
        and (built.train_size, built.labels, built.flipped) == (None, "all", 0)
        and built.words != "distinguishing"
        and task.options.get("states", True)
    )
    if taught and max(built.heads.values()) < num_entries:
        task = TaskSpec(task.name, **{**task.options, "states": True})
        built = task.build()
    search, attributes, last_only = _search(built), [_SHARPENING], False
    if isinstance(built, AutomatonTask | Traces):
        # Tests miss rare transitions: networks that answered them all were refuted.
        search = search.replace(confirm="proof")
        if taught:
            search = search.replace(repairs=_REPAIRS)
        last_only = isinstance(built, AutomatonTask) and built.labels == "last"
        noise = _MORE_NOISE if last_only or taught else _NOISE
        # Several blocks would share the states, and follow them only together.
        columns = {"gate": "column_softmax", **COLUMN_TRACKING}
        size = min(2 * num_entries, max(_MOST_ENTRIES, math.ceil(1.25 * num_entries)))
        layer = LayerSpec("bd_lru", num_blocks=1, block_size=size, **columns)
        attributes.append(AttributeSchedule(attribute="gate_noise", end=noise, finish=0.0))
        if last_only:
            always = {"length": built.length, "attributes": Assignments()}
            search = search.replace(**_LAST_ONLY, **always)
        elif isinstance(built, AutomatonTask) and built.words == "distinguishing":
            search = search.replace(**_DISTINGUISHING, length=built.length)
        if isinstance(built, Traces):
            search = search.replace(length=built.length)
        if isinstance(built, Traces) or built.flipped:
            num_answers, wrong = built.num_classes, built.flipped
            if wrong and wrong >= 1 - 1 / num_answers:
                raise RequestError(
                    f"flipped must be below {1 - 1 / num_answers:g} with {num_answers} answers, "
                    f"where labels begin to tell nothing, got {wrong:g}"
                )
            search = search.replace(size=max(search.size, _NOISY_SIZE))
            if isinstance(built, Traces):
                num_labels = built.num_labels("validation")
            else:
                num_labels = search.size * (1 if last_only else search.length or built.length)
            search = by_labels(search, wrong, num_answers, num_labels=num_labels)
    else:
        layer = LayerSpec("bd_lru", num_blocks=6, block_size=num_entries, **TRACKING)
        attributes.append(_HIDING)
    return RunConfig(
        task=task,
        model=ModelConfig(layers=(layer,)),
        batches=BatchConfig(size=128, packed=last_only),
        optimizer=OptimizerConfig(learning_rate=2e-3),
        search=search,
        **_durations(built, batch_size=128, num_steps=700, attributes=attributes),
    )


def _for_places(task: TaskSpec, num_places: int) -> RunConfig:
    length = min(_TOKENS_PER_PLACE * num_places, _MOST_TOKENS)
    task = TaskSpec(task.name, **{"length": length, **task.options})
    built = task.build()
    layer = LayerSpec(
        "bd_lru",
        num_blocks=1,
        block_size=math.ceil(_ENTRIES_PER_PLACE * num_places),
        value_channels=_CHANNELS,
        gate_noise=_PLACE_NOISE,
        **TRACKING,
    )
    return RunConfig(
        task=task,
        model=ModelConfig(layers=(layer,), hidden_size=max(128, _CHANNELS * num_places)),
        batches=BatchConfig(size=32),
        optimizer=OptimizerConfig(learning_rate=5e-3),
        search=_search(built).replace(every=50, tests=6),
        **_durations(built, batch_size=32, num_steps=300, attributes=[_SHARPENING]),
    )


def _search(built: Task) -> SearchConfig:
    return SearchConfig(
        attempts=12,
        length=4 * built.length,
        # Late attempts that track have passed this. Those that track a quotient of the group, and
        # the rest on short words alone, stay below.
        accept_last=0.75,
        # Networks that were proven had .998 at least, others .95 at most.
        confirm=0.99,
        attributes=Assignments(gate_temperature=_SHARP),
    )


def by_labels(
    search: SearchConfig, wrong: float, num_answers: int, *, num_labels: int
) -> SearchConfig:
    """Return tests that a right network passes, and that know nothing but labels.

    They follow tests with right labels; a share ``wrong`` are other answers, drawn uniformly.
    """

    def seen(right: float) -> float:
        return right * (1 - wrong) + (1 - right) * wrong / max(num_answers - 1, 1)

    deviation = math.sqrt(wrong * (1 - wrong) / num_labels)
    return search.replace(
        accept=seen(search.accept),
        accept_last=seen(search.accept_last),
        confirm=1 - wrong - _DEVIATIONS * deviation,
    )


def _durations(
    built: Task, *, batch_size: int, num_steps: int, attributes: Sequence[AttributeSchedule]
) -> dict[str, Any]:
    """Return how long attempts are sharpened, and when they are evaluated."""
    fresh = built.train_size is None
    steps_per_epoch = 1 if built.train_size is None else -(-built.train_size // batch_size)
    return {
        "schedules": ScheduleConfig(
            num_steps=num_steps if fresh else None,
            epochs=None if fresh else -(-num_steps // steps_per_epoch),
            warmup_steps=50,
            attributes=tuple(attributes),
        ),
        "evaluation": EvaluationConfig(every=_EVERY if fresh else -(-_EVERY // steps_per_epoch)),
    }


def _num_entries(name: str, task: Task) -> int:
    """Return the entries that a block needs to hold the state of an automaton."""
    if isinstance(task, Permutation):
        return task.group.degree
    if isinstance(task, Traces):
        num_states = task.num_states
    elif isinstance(task, HasAutomaton):
        num_states = _num_told_apart(task.automaton())
    else:
        kinds = HasAutomaton | HasPlaces | Traces
        having = ", ".join(known for known in TASKS if issubclass(TASKS[known], kinds))
        text = f"task must have a finite automaton, places or traces ({having}), got {name}"
        raise RequestError(text)
    if num_states > _MOST_STATES:
        raise RequestError(
            f"task must need at most {_MOST_STATES} states, each counted once for every answer "
            f"that leads into it, got {name}, which needs {num_states}"
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


RECIPES: dict[str, Callable[[TaskSpec], RunConfig]] = {"exact": exact}
"""Name -> configuration for a task."""
