"""The demo: how well networks track a permutation group on words longer than those of training."""

from collections.abc import Callable
from functools import cache

from statemix.layers import LAYERS, LayerSpec
from statemix.sweeps.recipes import exact
from statemix.tasks import TaskSpec
from statemix.training import (
    AttributeSchedule,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
)
from statemix_lab.bench.compared_layers import layer_label
from statemix_lab.studies.exactness.exact_studies import CertifiedStudy
from statemix_lab.studies.higher_order.paper_tables import published_table
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import ON_ONE_CORE, Number, StudyEntry, Trials

_SHARPENED = AttributeSchedule(
    attribute="gate_temperature", end=0.125, begin=0.5, finish=0.9, curve="reciprocal"
)
LEGEND = """\
Columns are lengths of test words; each number is the mean accuracy over seeds, with the range in
parentheses. Networks train on words of 16, after a learned start token, and their gates sharpen in
the second half; the BD-LRU of A_5 and S_5 follows the recipe "exact". proven: right after every
word of every length, with gates of 0 and 1. The paper uses neither a start token nor sharpened
gates, and reports the best of several runs. The other networks are not tuned."""


def _measured(task: TaskSpec, every: int) -> RunConfig:
    """Return the task, the evaluation and the threads of all runs."""
    lengths = (64, 256, 1024, 4096, 16384)
    evaluation = EvaluationConfig(every=every, validation_size=64, lengths=lengths, tokens=131072)
    return RunConfig(task=task, evaluation=evaluation, runtime=ON_ONE_CORE)


def _network(measured: RunConfig, layer: LayerSpec, *, duration: int) -> RunConfig:
    """Configure the protocol of the demo; layers without a gate temperature are not sharpened."""
    sharpens = "gate_temperature" in LAYERS[layer.name].schedulable
    fresh = "train_size" not in measured.task.options
    return measured.replace(
        model=ModelConfig(layers=(layer,), hidden_size=128, bos=True),
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.01),
        schedules=ScheduleConfig(
            learning_rate="cosine",
            min_learning_rate=1e-5,
            attributes=(_SHARPENED,) if sharpens else (),
            num_steps=duration if fresh else None,
            epochs=None if fresh else duration,
        ),
    )


def _entries(
    group: str, configs: list[RunConfig], seeds: range, column: str = ""
) -> tuple[StudyEntry, ...]:
    known = published_table("table4_permutation")
    entries = []
    for config in configs:
        layers, length = config.model.layers, config.build_task().length
        label = layer_label(layers[0].name, layers[0].options)
        number = known.get(label, {}).get(column)
        published = {} if number is None else {length: Number(number)}
        trials = Trials.seeded(config, seeds)
        entries.append(StudyEntry(group, label, trials, published=published, layers=layers))
    return tuple(entries)


def _bd_lru(num_blocks: int, block_size: int) -> LayerSpec:
    return LayerSpec("bd_lru", num_blocks=num_blocks, block_size=block_size)


def _s_3() -> tuple[StudyEntry, ...]:
    measured = _measured(TaskSpec("permutation", group="S_3", train_size=250), every=4)
    layers = [_bd_lru(64, 3), _bd_lru(64, 2), _bd_lru(64, 1), LayerSpec("lstm")]
    configs = [_network(measured, layer, duration=100) for layer in layers]
    return _entries("S_3", configs, range(5), "s3_250")


def _fresh(group: str, duration: int, column: str = "") -> tuple[StudyEntry, ...]:
    measured = _measured(TaskSpec("permutation", group=group), every=100)
    peers = [_bd_lru(100, 1), LayerSpec("lstm")]
    configs = [_network(measured, layer, duration=duration) for layer in peers]
    recipe = exact(measured.task).replace(evaluation=measured.evaluation, runtime=measured.runtime)
    return _entries(group, [recipe, *configs], range(2), column)


def _study(group: str, make: Callable[[], tuple[StudyEntry, ...]]) -> Study:
    entries = cache(lambda *_: make())
    title = f"tracking {group} on longer words"
    return CertifiedStudy(f"demo-{group}", title, entries, legend=LEGEND)


STUDIES = (
    _study("S_3", _s_3),
    _study("S_5", lambda: _fresh("S_5", 3000, "s5_100k")),
    _study("A_5", lambda: _fresh("A_5", 2000)),
)
"""The demo on each group, as ``statemix demo --group`` runs it."""
