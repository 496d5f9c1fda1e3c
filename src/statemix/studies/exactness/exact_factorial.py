"""The study exact-factorial: what raises the chance of a single attempt, one change at a time."""

from statemix.studies.exactness.recipe_changes import at_rate, opened, with_layer
from statemix.studies.recipes import exact
from statemix.studies.study_entries import ProtocolName, SizeName, StudyEntry, Trials
from statemix.tasks import TaskSpec
from statemix.training import (
    EvaluationConfig,
    ObjectiveConfig,
    ParameterGroup,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
)

_GROUPS = ("A_5", "S_5")
# Others than those of exact-groups, so that no change is chosen by the seeds that prove it.
_SEEDS = tuple(range(100, 110))
# What changes are compared with, and whose own chance is of interest.
_USUAL = "as in the recipe"
_USUAL_SEEDS = tuple(range(100, 140))
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
        "6 tests": config.replace(search=config.search.replace(tests=6)),
        "other words": _other_words(config),
    }


def factorial_entries(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return an entry for each change and group; there is one protocol and one size."""
    del protocol, size
    changed = {group: _changes(_attempt(group)) for group in _GROUPS}
    return tuple(
        StudyEntry(
            group,
            change,
            Trials.seeded(changed[group][change], _USUAL_SEEDS if change == _USUAL else _SEEDS),
        )
        for change in changed[_GROUPS[0]]
        for group in _GROUPS
    )
