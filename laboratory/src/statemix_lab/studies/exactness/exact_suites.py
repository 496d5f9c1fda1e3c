"""The entries of the studies of exactness: groups, other automata, and one change at a time."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from statemix.layers import LayerSpec
from statemix.sweeps.recipes import exact
from statemix.tasks import TASKS, TaskSpec
from statemix.tasks.automata.known_languages import CONTROLLERS, TOMITA
from statemix.training import EvaluationConfig, ModelConfig, RunConfig, ScheduleConfig
from statemix_lab.studies.study_entries import ON_ONE_CORE, StudyEntry, Trial, Trials, with_settings

RECIPE = "BD-LRU, recipe exact"
ANSWERS_ALONE = f"{RECIPE}, taught by answers alone"
"""The recipe without the head that names states, and without repairs."""


def with_layer(config: RunConfig, **options: Any) -> RunConfig:
    """Change options of the only layer."""
    settings = {f"model.layers.0.{name}": value for name, value in options.items()}
    return with_settings(config, settings)


def at_rate(config: RunConfig, rate: float) -> RunConfig:
    """Change the learning rate, and allow slower attempts more steps, also between tests."""
    slower = max(config.optimizer.learning_rate / rate, 1.0)
    settings = {
        "optimizer.learning_rate": rate,
        "search.max_steps": round(slower * config.search.max_steps),
        "search.every": round(slower * config.search.every),
    }
    return with_settings(config, settings)


def opened(config: RunConfig) -> RunConfig:
    """Return the control: a start token writes the first state, as input gates begin open."""
    layer = {"num_blocks": 20, "initial_state": "zero", "initial_std": 0.0, "input_gate_bias": 0.0}
    schedules = config.schedules
    kept = [one for one in schedules.attributes if one.attribute != "block_dropout"]
    changed = config.replace(
        model=config.model.replace(bos=True), schedules=schedules.replace(attributes=tuple(kept))
    )
    return at_rate(with_layer(changed, **layer), 1e-3)


def from_matrices(config: RunConfig) -> RunConfig:
    """Let the embedding of a permutation start as its matrix."""
    return with_settings(config, {"model.embedding_init": "features"})


def _single_attempt(config: RunConfig) -> RunConfig:
    return with_settings(config, {"search.attempts": 1, "search.confirm": None})


_LENGTHS = (64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)
# Steps between evaluations.
_EVERY = 250
# About as many steps as the recipe needs with its restarts.
_PEER_STEPS = 2500
_TASKS = {
    "S_3 from 250 words": TaskSpec("permutation", **TASKS["permutation"].presets["S3-250"]),
    **{name: TaskSpec("permutation", group=name) for name in ("S_3", "S_4", "A_5", "S_5")},
}


def _lstm(task: TaskSpec) -> RunConfig:
    """Return a peer that has no gates to sharpen."""
    size = task.build().train_size
    if size is None:
        schedules = ScheduleConfig(num_steps=_PEER_STEPS)
    else:
        schedules = ScheduleConfig(num_steps=None, epochs=-(-_PEER_STEPS // -(-size // 128)))
    model = ModelConfig(layers=(LayerSpec("lstm"),))
    return RunConfig(task=task, model=model, schedules=schedules)


# A way to learn groups: name, configuration of a task, seeds, and groups that are learned so.
_WAYS: tuple[tuple[str, Callable[[TaskSpec], RunConfig], range, Iterable[str]], ...] = (
    (RECIPE, exact, range(20), _TASKS),
    ("LSTM", _lstm, range(3), _TASKS),
    (
        "BD-LRU, recipe exact, embeddings start as matrices",
        lambda task: from_matrices(exact(task)),
        range(20),
        ("A_5", "S_5"),
    ),
    (
        "BD-LRU, start token, open gates",
        lambda task: opened(exact(task)),
        range(10),
        ("A_5", "S_5"),
    ),
)


def _measured(config: RunConfig, lengths: tuple[int, ...] = _LENGTHS) -> RunConfig:
    size = config.build_task().train_size
    every = _EVERY if size is None else -(-_EVERY // -(-size // config.batches.size))
    evaluation = EvaluationConfig(every=every, lengths=lengths, validation_size=256)
    return config.replace(evaluation=evaluation, runtime=ON_ONE_CORE)


def group_entries(*_: str) -> tuple[StudyEntry, ...]:
    """Return an entry for each way of training and group."""
    return tuple(
        StudyEntry(column, model, Trials.seeded(_measured(configured(_TASKS[column])), seeds))
        for model, configured, seeds, columns in _WAYS
        for column in columns
    )


# States of random automata, and lengths of absorbing patterns.
_RANDOM, _PATTERNS = (8, 12, 16), tuple(range(3, 13))
# Words of 15 letters do not determine the automata of patterns of more than 8; words of twice the
# length of the pattern do. Runs on such words take minutes, so there are fewer seeds.
_DETERMINED, _SHORT_WORDS = 8, 15
# Seeds whose twelve attempts fail have as many again.
_ATTEMPTS = 24
_FAILED = {"pattern of 7": (18,), "pattern of 8": (3, 9, 15)}
# Texts whose automata have at most 16 states.
_SMALL_TEXTS = ("iso-date", "decimal-number", "clock-time")
# Automata that took many attempts to learn from answers alone.
_HARD = ("random, 16 states", "pattern of 8")
# Columns are normalised in memory: tests of a million tokens would take gigabytes.
_AUTOMATON_LENGTHS = (64, 1024, 4096)


def _random(num_states: int, seed: int) -> TaskSpec:
    return TaskSpec("random_automaton", num_states=num_states, num_letters=2, table_seed=seed)


def _pattern(length: int, seed: int) -> TaskSpec:
    """Return the words that contain a pattern, which the seed decides."""
    bits = random.Random(1000 * length + seed)
    pattern = "".join(bits.choice("01") for _ in range(length))
    return TaskSpec(
        "regex",
        pattern=f"(0|1)*{pattern}(0|1)*",
        alphabet="01",
        length=_SHORT_WORDS if length <= _DETERMINED else 2 * length,
        # The words that the recipe chooses, also for other networks.
        words="distinguishing",
    )


def _language(name: str, _: int) -> TaskSpec:
    return TaskSpec("regex", preset=name, words="distinguishing")


def _controller(name: str, _: int) -> TaskSpec:
    return TaskSpec("automaton", preset=name, words="distinguishing")


def _taught(task: TaskSpec) -> RunConfig:
    """Return the recipe on a task without the words that stand in for its states."""
    options = dict(task.options)
    if options.get("words") == "distinguishing":
        del options["words"]
    return exact(TaskSpec(task.name, **options))


def by_answers(task: TaskSpec) -> RunConfig:
    """Return the recipe without what the automaton teaches."""
    return exact(TaskSpec(task.name, **task.options, states=False)).replace(task=task)


def _on_covering_words(task: TaskSpec) -> RunConfig:
    """Return the same on the words that a task has by default."""
    options = {name: value for name, value in task.options.items() if name != "words"}
    config = by_answers(TaskSpec(task.name, **options, words="covering"))
    return config.replace(task=TaskSpec(task.name, **options))


def _each_its_own(
    configured: Callable[[TaskSpec], RunConfig],
    task: Callable[[int], TaskSpec],
    seeds: Iterable[int],
) -> Iterable[Trial]:
    """Yield a single setting, whose seeds have tasks of their own."""
    configs = {seed: _measured(configured(task(seed)), _AUTOMATON_LENGTHS) for seed in seeds}
    yield Trial("", tuple(config.replace(seed=seed) for seed, config in configs.items()))


def automaton_entries(*_: str) -> tuple[StudyEntry, ...]:
    """Return an entry for each kind of automaton and network."""
    kinds: dict[str, tuple[Callable[[int], TaskSpec], int]] = {
        **{f"random, {n} states": (partial(_random, n), 20) for n in _RANDOM},
        **{name: (partial(_language, name), 10) for name in TOMITA},
        **{
            f"pattern of {k}": (partial(_pattern, k), 20 if k <= _DETERMINED else 3)
            for k in _PATTERNS
        },
    }
    named: dict[str, Callable[[int], TaskSpec]] = {
        **{name: partial(_language, name) for name in ("D_5", *_SMALL_TEXTS)},
        **{name: partial(_controller, name) for name in CONTROLLERS},
    }
    compared = dict.fromkeys(("pattern of 6", "pattern of 7"), range(20))
    ways: dict[str, tuple[Callable[[TaskSpec], RunConfig], Any]] = {
        RECIPE: (_taught, dict.fromkeys([*named, "tomita-5", "tomita-7", *_HARD], range(3))),
        ANSWERS_ALONE: (by_answers, {name: range(most) for name, (_, most) in kinds.items()}),
        f"{ANSWERS_ALONE}, covering words": (_on_covering_words, compared),
        f"{ANSWERS_ALONE}, {_ATTEMPTS} attempts": (
            lambda task: with_settings(by_answers(task), {"search.attempts": _ATTEMPTS}),
            _FAILED,
        ),
        "LSTM": (_lstm, dict.fromkeys(kinds, range(3))),
    }
    tasks = {name: task for name, (task, _) in kinds.items()} | named
    return tuple(
        StudyEntry(column, model, Trials(partial(_each_its_own, configured, task, seeds[column])))
        for column, task in tasks.items()
        for model, (configured, seeds) in ways.items()
        if column in seeds
    )


def larger_group_entries(*_: str) -> tuple[StudyEntry, ...]:
    """Return an entry for each group and network."""
    recipes = {name: exact(_generated(name)) for name in ("S_6", "S_8", "S_10", "PSL(2,7)")}
    # Seeds of changes are others than those of the recipe.
    changes = range(100, 105)
    conditions = [
        *((name, RECIPE, recipe, range(10)) for name, recipe in recipes.items()),
        *(("S_10", model, config, changes) for model, config in _place_changes("S_10").items()),
        # On the words of the recipe.
        *((name, "LSTM", _lstm(recipe.task), range(3)) for name, recipe in recipes.items()),
    ]
    return tuple(
        StudyEntry(column, model, Trials.seeded(_measured(config, (64, 1024, 16_384)), seeds))
        for column, model, config, seeds in conditions
    )


def _generated(name: str, **options: Any) -> TaskSpec:
    return TaskSpec("arrangement", preset=name, **options)


def _place_changes(name: str) -> dict[str, RunConfig]:
    """Return a single attempt of the recipe, and attempts with one change each."""
    usual = _single_attempt(exact(_generated(name)))
    num_places = _generated(name).build().num_classes
    changes = {
        "": usual,
        ", an entry for each place": with_layer(usual, block_size=num_places),
        ", words of 16": _single_attempt(exact(_generated(name, length=16))),
        ", no noise": with_layer(usual, gate_noise=0.0),
        ", 8 blocks of one channel": with_layer(usual, num_blocks=8, value_channels=1),
    }
    return {f"BD-LRU, one attempt{change}": config for change, config in changes.items()}


# Others than those of exact-groups, so that no change is chosen by the seeds that prove it.
_SEEDS, _MORE_SEEDS = range(100, 110), range(100, 140)
# What changes are compared with, and the change that helps most.
_USUAL, _FEATURES = "as in the recipe", "embeddings start as permutation matrices"
# The schedules, which are not of interest, as short as a forecast of the time allows.
_STEPS = 20
_FROZEN = [{"parameters": "embedding.*", "learning_rate_factor": 0.0, "weight_decay": 0.0}]


def _attempt(group: str) -> RunConfig:
    """Return a single attempt of the recipe."""
    config = _single_attempt(exact(TaskSpec("permutation", group=group)))
    warmup = config.schedules.warmup_steps
    return config.replace(
        schedules=ScheduleConfig(num_steps=_STEPS, learning_rate="constant", warmup_steps=warmup),
        evaluation=EvaluationConfig(every=_EVERY, test_size=64, validation_size=64),
        runtime=ON_ONE_CORE,
    )


def _changes(config: RunConfig) -> dict[str, RunConfig]:
    layer, settings = partial(with_layer, config), partial(with_settings, config)
    wide = layer(num_blocks=1, block_size=8, value_channels=8, gate_noise=1.0)
    repeated = {"task.train_size": 20_000, "schedules.num_steps": None, "schedules.epochs": 1}
    return {
        _USUAL: config,
        "start token, open gates, 20 blocks, rate 1e-3": opened(config),
        "embedding frozen": settings({"optimizer.groups": _FROZEN}),
        "embedding frozen, width 256": settings(
            {"model.hidden_size": 256, "optimizer.groups": _FROZEN}
        ),
        "20 blocks": layer(num_blocks=20),
        "gate noise 0.5": layer(gate_noise=0.5),
        "learning rate 1e-3": at_rate(config, 1e-3),
        "learning rate 4e-3": at_rate(config, 4e-3),
        "positions weighted by t": settings({"objective.position_power": 1.0}),
        "positions weighted by 1/t": settings({"objective.position_power": -1.0}),
        # Epochs between evaluations, of 157 steps each.
        "20,000 words, repeated": settings({**repeated, "evaluation.every": 2}),
        "penalty 0.02 from the exit": settings({"objective.permutation_penalty": 0.02}),
        "temperature 1/2": layer(gate_temperature=0.5),
        "10 blocks": layer(num_blocks=10),
        "gate noise 0.25": layer(gate_noise=0.25),
        "learning rate 5e-4": at_rate(config, 5e-4),
        "64 blocks": layer(num_blocks=64),
        # Both groups also permute 6 and 10 objects, and A_5 permutes the 12 vertices of an
        # icosahedron, which represents further irreducible parts.
        **{f"blocks of {size}": layer(block_size=size) for size in (6, 10, 12)},
        "one block of 8 entries, 8 channels, noise 1": at_rate(wide, 5e-3),
        "6 tests": settings({"search.tests": 6}),
        # The seed of the run decides the initial weights, which stay.
        "other words": settings({"task.seed": 1}),
        _FEATURES: from_matrices(config),
    }


def factorial_entries(*_: str) -> tuple[StudyEntry, ...]:
    """Return an entry for each change and group."""
    changed = {group: _changes(_attempt(group)) for group in ("A_5", "S_5")}
    seeds = {_USUAL: _MORE_SEEDS, _FEATURES: _MORE_SEEDS}
    return tuple(
        StudyEntry(group, change, Trials.seeded(config, seeds.get(change, _SEEDS)))
        for change in changed["A_5"]
        for group, config in ((group, of_group[change]) for group, of_group in changed.items())
    )
