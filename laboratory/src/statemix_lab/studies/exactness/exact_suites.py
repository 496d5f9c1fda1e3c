"""The entries of the studies of exactness: groups, other automata, and one change at a time."""

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from statemix.layers import LayerSpec
from statemix.sweeps.recipes import exact
from statemix.tasks import TASKS, TaskSpec
from statemix.tasks.automata.known_languages import TOMITA
from statemix.training import (
    EvaluationConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    ParameterGroup,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
)
from statemix_lab.studies.study_entries import ProtocolName, SizeName, StudyEntry, Trial, Trials


def with_layer(config: RunConfig, **options: Any) -> RunConfig:
    """Change options of the only layer."""
    (layer,) = config.model.layers
    changed = LayerSpec(layer.name, **{**layer.options, **options})
    return config.replace(model=config.model.replace(layers=(changed,)))


def at_rate(config: RunConfig, rate: float) -> RunConfig:
    """Change the learning rate, and allow slower attempts more steps, also between tests."""
    slower = max(config.optimizer.learning_rate / rate, 1.0)
    search = config.search.replace(
        max_steps=round(slower * config.search.max_steps),
        every=round(slower * config.search.every),
    )
    return config.replace(optimizer=OptimizerConfig(learning_rate=rate), search=search)


def opened(config: RunConfig) -> RunConfig:
    """Return the control: a start token writes the first state, as input gates begin open.

    No blocks are hidden from its readout.
    """
    layer = with_layer(
        config, num_blocks=20, initial_state="zero", initial_std=0.0, input_gate_bias=0.0
    )
    schedules = layer.schedules.replace(
        attributes=tuple(
            one for one in layer.schedules.attributes if one.attribute != "block_dropout"
        )
    )
    return at_rate(layer.replace(model=layer.model.replace(bos=True), schedules=schedules), 1e-3)


def from_matrices(config: RunConfig) -> RunConfig:
    """Let the embedding of a permutation start as its matrix."""
    return config.replace(model=config.model.replace(embedding_init="features"))


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
    "BD-LRU, recipe exact, embeddings start as matrices": _Way(
        lambda task: from_matrices(exact(task)), tuple(range(20)), ("A_5", "S_5")
    ),
    "BD-LRU, start token, open gates": _Way(
        lambda task: opened(exact(task)), tuple(range(10)), ("A_5", "S_5")
    ),
}


def _measured(config: RunConfig, lengths: tuple[int, ...] = _LENGTHS) -> RunConfig:
    size = config.build_task().train_size
    evaluation = EvaluationConfig(
        every=_EVERY if size is None else -(-_EVERY // -(-size // config.batches.size)),
        lengths=lengths,
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


# States of random automata, and lengths of absorbing patterns.
_RANDOM, _PATTERNS = (8, 12, 16), tuple(range(3, 13))
# Words of 15 letters do not determine the automata of patterns of more than 8; words of twice the
# length of the pattern do. Runs on such words take minutes, so there are fewer seeds.
_DETERMINED, _SHORT_WORDS = 8, 15
_COMPARED_PATTERNS = ("pattern of 6", "pattern of 7")
# Seeds whose twelve attempts fail have as many again.
_ATTEMPTS = 24
_FAILED = {"pattern of 7": (18,), "pattern of 8": (3, 9, 15)}
# Languages have the words that the recipe chooses, also for other networks.
_TELLING = "distinguishing"
_LETTERS = 2
# Columns are normalised in memory: tests of a million tokens would take gigabytes.
_AUTOMATON_LENGTHS = (64, 1024, 4096)


def _random(num_states: int, seed: int) -> TaskSpec:
    return TaskSpec(
        "random_automaton", num_states=num_states, num_letters=_LETTERS, table_seed=seed
    )


def _pattern(length: int, seed: int) -> TaskSpec:
    """Return the words that contain a pattern, which the seed decides."""
    bits = random.Random(1000 * length + seed)
    pattern = "".join(bits.choice("01") for _ in range(length))
    return TaskSpec(
        "regex",
        pattern=f"(0|1)*{pattern}(0|1)*",
        alphabet="01",
        length=_SHORT_WORDS if length <= _DETERMINED else 2 * length,
        words=_TELLING,
    )


def _language(name: str, seed: int) -> TaskSpec:
    del seed
    return TaskSpec("regex", preset=name, words=_TELLING)


def _on_covering_words(task: TaskSpec) -> RunConfig:
    """Return the recipe on the words that a task has by default, for comparison."""
    options = {name: value for name, value in task.options.items() if name != "words"}
    config = exact(TaskSpec(task.name, **options, words="covering"))
    return config.replace(task=TaskSpec(task.name, **options))


def _with_more_attempts(task: TaskSpec) -> RunConfig:
    config = exact(task)
    return config.replace(search=config.search.replace(attempts=_ATTEMPTS))


def _each_its_own(
    configured: Callable[[TaskSpec], RunConfig],
    task: Callable[[int], TaskSpec],
    seeds: Iterable[int],
) -> Trials:
    """Return a single setting, whose seeds have tasks of their own."""

    def runs() -> tuple[RunConfig, ...]:
        return tuple(
            _measured(configured(task(seed)), _AUTOMATON_LENGTHS).replace(seed=seed)
            for seed in seeds
        )

    return Trials(lambda: [Trial("", runs())])


def automaton_entries(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return an entry for each kind of automaton and network; there is one protocol and size."""
    del protocol, size
    kinds: dict[str, tuple[Callable[[int], TaskSpec], int]] = {
        **{f"random, {n} states": (partial(_random, n), 20) for n in _RANDOM},
        **{name: (partial(_language, name), 10) for name in TOMITA},
        **{
            f"pattern of {k}": (partial(_pattern, k), 20 if k <= _DETERMINED else 3)
            for k in _PATTERNS
        },
    }
    ways: tuple[tuple[str, Callable[[TaskSpec], RunConfig], Mapping[str, Iterable[int]]], ...] = (
        ("BD-LRU, recipe exact", exact, {name: range(most) for name, (_, most) in kinds.items()}),
        (
            "BD-LRU, recipe exact, covering words",
            _on_covering_words,
            dict.fromkeys(_COMPARED_PATTERNS, range(20)),
        ),
        (f"BD-LRU, recipe exact, {_ATTEMPTS} attempts", _with_more_attempts, _FAILED),
        ("LSTM", _lstm, dict.fromkeys(kinds, range(3))),
    )
    return tuple(
        StudyEntry(column, model, _each_its_own(configured, task, seeds[column]))
        for column, (task, _) in kinds.items()
        for model, configured, seeds in ways
        if column in seeds
    )


_LARGER_GROUPS = ("S_6", "S_8", "S_10", "PSL(2,7)")
_PLACE_LENGTHS = (64, 1024, 16_384)
# Others than those of the recipe.
_CHANGE_SEEDS = range(100, 105)


def larger_group_entries(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return an entry for each group and network; there is one protocol and one size."""
    del protocol, size
    recipes = {name: exact(_generated(name)) for name in _LARGER_GROUPS}
    conditions = [
        *((name, "BD-LRU, recipe exact", recipe, range(10)) for name, recipe in recipes.items()),
        *(("S_10", model, one, _CHANGE_SEEDS) for model, one in _place_changes("S_10").items()),
        # On the words of the recipe.
        *((name, "LSTM", _lstm(recipe.task), range(3)) for name, recipe in recipes.items()),
    ]
    return tuple(
        StudyEntry(column, model, Trials.seeded(_measured(config, _PLACE_LENGTHS), tuple(seeds)))
        for column, model, config, seeds in conditions
    )


def _generated(name: str, **options: Any) -> TaskSpec:
    return TaskSpec("arrangement", preset=name, **options)


def _place_changes(name: str) -> dict[str, RunConfig]:
    """Return a single attempt of the recipe, and attempts with one change each."""
    usual, short = (
        config.replace(search=config.search.replace(attempts=1, confirm=None))
        for config in (exact(_generated(name)), exact(_generated(name, length=16)))
    )
    num_places = _generated(name).build().num_classes
    return {
        "BD-LRU, one attempt": usual,
        "BD-LRU, one attempt, an entry for each place": with_layer(usual, block_size=num_places),
        "BD-LRU, one attempt, words of 16": short,
        "BD-LRU, one attempt, no noise": with_layer(usual, gate_noise=0.0),
        "BD-LRU, one attempt, 8 blocks of one channel": with_layer(
            usual, num_blocks=8, value_channels=1
        ),
    }


_GROUPS = ("A_5", "S_5")
# Others than those of exact-groups, so that no change is chosen by the seeds that prove it.
_SEEDS = tuple(range(100, 110))
# What changes are compared with, and the change that helps most.
_USUAL, _FEATURES = "as in the recipe", "embeddings start as permutation matrices"
_MORE_SEEDS = tuple(range(100, 140))
# The schedules, which are not of interest, as short as a forecast of the time allows.
_STEPS = 20
_FROZEN = ParameterGroup(parameters="embedding.*", learning_rate_factor=0.0, weight_decay=0.0)


def _attempt(group: str) -> RunConfig:
    """Return a single attempt of the recipe."""
    config = exact(TaskSpec("permutation", group=group))
    return config.replace(
        search=config.search.replace(attempts=1, confirm=None),
        schedules=ScheduleConfig(
            num_steps=_STEPS, learning_rate="constant", warmup_steps=config.schedules.warmup_steps
        ),
        evaluation=EvaluationConfig(every=250, test_size=64, validation_size=64),
        runtime=RuntimeConfig(device="cpu", num_threads=1),
    )


def _objective(config: RunConfig, **fields: float) -> RunConfig:
    return config.replace(objective=ObjectiveConfig(**fields))


def _repeated(config: RunConfig, size: int) -> RunConfig:
    task = TaskSpec(config.task.name, **{**config.task.options, "train_size": size})
    schedules = config.schedules.replace(num_steps=None, epochs=1)
    every = -(-250 // -(-size // config.batches.size))
    return config.replace(
        task=task,
        schedules=schedules,
        evaluation=config.evaluation.replace(every=every),
    )


def _other_words(config: RunConfig) -> RunConfig:
    """Keep the initial weights, which the seed of the run decides, and change the words."""
    return config.replace(task=TaskSpec(config.task.name, **{**config.task.options, "seed": 1}))


def _frozen(config: RunConfig, hidden_size: int) -> RunConfig:
    return config.replace(
        model=config.model.replace(hidden_size=hidden_size),
        optimizer=config.optimizer.replace(groups=(_FROZEN,)),
    )


def _changes(config: RunConfig) -> dict[str, RunConfig]:
    return {
        _USUAL: config,
        "start token, open gates, 20 blocks, rate 1e-3": opened(config),
        "embedding frozen": _frozen(config, 128),
        "embedding frozen, width 256": _frozen(config, 256),
        "20 blocks": with_layer(config, num_blocks=20),
        "gate noise 0.5": with_layer(config, gate_noise=0.5),
        "learning rate 1e-3": at_rate(config, 1e-3),
        "learning rate 4e-3": at_rate(config, 4e-3),
        "positions weighted by t": _objective(config, position_power=1.0),
        "positions weighted by 1/t": _objective(config, position_power=-1.0),
        "20,000 words, repeated": _repeated(config, 20_000),
        "penalty 0.02 from the exit": _objective(config, permutation_penalty=0.02),
        "temperature 1/2": with_layer(config, gate_temperature=0.5),
        "10 blocks": with_layer(config, num_blocks=10),
        "gate noise 0.25": with_layer(config, gate_noise=0.25),
        "learning rate 5e-4": at_rate(config, 5e-4),
        "64 blocks": with_layer(config, num_blocks=64),
        # Both groups also permute 6 and 10 objects, and A_5 permutes the 12 vertices of an
        # icosahedron, which represents further irreducible parts.
        "blocks of 6": with_layer(config, block_size=6),
        "blocks of 10": with_layer(config, block_size=10),
        "blocks of 12": with_layer(config, block_size=12),
        "one block of 8 entries, 8 channels, noise 1": at_rate(
            with_layer(config, num_blocks=1, block_size=8, value_channels=8, gate_noise=1.0), 5e-3
        ),
        "6 tests": config.replace(search=config.search.replace(tests=6)),
        "other words": _other_words(config),
        _FEATURES: from_matrices(config),
    }


def factorial_entries(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return an entry for each change and group; there is one protocol and one size."""
    del protocol, size
    changed = {group: _changes(_attempt(group)) for group in _GROUPS}
    return tuple(
        StudyEntry(
            group,
            change,
            Trials.seeded(
                changed[group][change], _MORE_SEEDS if change in (_USUAL, _FEATURES) else _SEEDS
            ),
        )
        for change in changed[_GROUPS[0]]
        for group in _GROUPS
    )
