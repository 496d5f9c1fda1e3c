"""The demo: how well recurrences track a permutation group, also beyond the training length."""

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from statemix import provenance
from statemix.layers import LayerSpec
from statemix.studies import results
from statemix.studies.higher_order import dubinin as published
from statemix.studies.higher_order.dubinin import Published
from statemix.studies.recipes import MAX_PAIRS, RECIPES
from statemix.studies.results import Row
from statemix.studies.runner import Ended, Ending, Job, run_all
from statemix.studies.suite import Network, Suite, check_folders
from statemix.tasks import TaskSpec
from statemix.training import (
    AttributeSchedule,
    EvaluationConfig,
    Event,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
    load_outcome,
)
from statemix.training.certificates import certify_run
from statemix.training.devices import sequences_at


@dataclass(frozen=True)
class DemoSuite(Suite):
    """A suite on one permutation group.

    Attributes:
        published: numbers of the paper, for comparison; None if it has none.
    """

    published: Published | None


class Sharpening(TypedDict):
    """Schedule of the gate temperature: it falls to ``end`` between two epochs or steps."""

    begin: float
    finish: float
    end: float
    # Networks without a gate temperature.
    without: list[str]


class Setting(TypedDict):
    """The task and the length of training."""

    group: str
    # Null: fresh words in every batch.
    train_size: int | None
    train_length: int
    # The main label of each position, and the accuracy of guessing it.
    head: str
    chance: float
    unit: Literal["epoch", "step"]
    duration: int
    # Null: the gates keep their temperature.
    sharpening: Sharpening | None
    # Word length, as text, to the number of test words.
    test_words: dict[str, int]
    # Network, by its label, to the recipe by which it is trained instead.
    recipes: dict[str, str]


class DemoRow(Row):
    """A run, and whether its network is right on words of every length."""

    # As ``Certificate.to_plain``; None without a result.
    certificate: dict[str, Any] | None
    # Whether each attempt from new weights has passed; None without a search or a result.
    attempts: list[bool] | None


class Summary(TypedDict):
    """The data of the figures, the table and the page, as plain data."""

    runs: list[DemoRow]
    setting: Setting
    # The configuration of all runs but those by a recipe, without network and seed, as nested
    # tables.
    protocol: dict[str, Any]
    published: Published | None
    environment: dict[str, Any]
    time_s: float


def bd_lru(num_blocks: int, block_size: int) -> Network:
    """Return a network of one BD-LRU."""
    return Network((LayerSpec("bd_lru", num_blocks=num_blocks, block_size=block_size),))


LSTM = Network((LayerSpec("lstm"),))


def _by_recipe(recipe: str, task: TaskSpec) -> Network:
    return Network(RECIPES[recipe](task).model.layers, recipe=recipe)


def _task(group: str) -> TaskSpec:
    """Return the task of a group on fresh words."""
    return TaskSpec("permutation", group=group)


_PROTOCOL = RunConfig(
    model=ModelConfig(hidden_size=128, bos=True),
    optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.01),
    schedules=ScheduleConfig(
        learning_rate="cosine",
        min_learning_rate=1e-5,
        attributes=(
            AttributeSchedule(
                attribute="gate_temperature",
                end=0.125,
                begin=0.5,
                finish=0.9,
                curve="reciprocal",
            ),
        ),
    ),
    evaluation=EvaluationConfig(
        validation_size=64, lengths=(64, 256, 1024, 4096, 16384), tokens=131072
    ),
    # One thread: results do not depend on how many runs share the machine.
    runtime=RuntimeConfig(device="cpu", num_threads=1),
)


def _protocol(
    task: TaskSpec, *, every: int, epochs: int | None = None, num_steps: int | None = None
) -> RunConfig:
    return _PROTOCOL.replace(
        task=task,
        schedules=_PROTOCOL.schedules.replace(epochs=epochs, num_steps=num_steps),
        evaluation=_PROTOCOL.evaluation.replace(every=every),
    )


SUITES = {
    "S_3": DemoSuite(
        networks=(bd_lru(64, 3), bd_lru(64, 2), bd_lru(64, 1), LSTM),
        seeds=(0, 1, 2, 3, 4),
        protocol=_protocol(
            TaskSpec("permutation", group="S_3", train_size=250), epochs=100, every=4
        ),
        published=published.permutation("s3_250", "S_3 from 250 examples"),
    ),
    "S_5": DemoSuite(
        networks=(_by_recipe("exact", _task("S_5")), bd_lru(100, 1), LSTM),
        seeds=(0, 1),
        protocol=_protocol(_task("S_5"), num_steps=3000, every=100),
        published=published.permutation("s5_100k", "S_5 from 100,000 examples"),
    ),
    "A_5": DemoSuite(
        networks=(_by_recipe("exact", _task("A_5")), bd_lru(100, 1), LSTM),
        seeds=(0, 1),
        protocol=_protocol(_task("A_5"), num_steps=2000, every=100),
        published=None,
    ),
}


def run(
    suite: DemoSuite,
    folder: Path,
    *,
    num_workers: int,
    fresh: bool = False,
    retry: Collection[Ending] = (),
    on_event: Callable[[Job, Event], None] | None = None,
    on_end: Callable[[Ended], None] | None = None,
) -> Summary:
    """Train the runs that are not finished, and gather the results of all runs.

    Args:
        suite: suite of the runs.
        folder: parent of the run folders; finished runs are reused, unfinished ones resumed.
        num_workers: number of parallel runs.
        fresh: remove this suite's runs first.
        retry: as in :func:`run_all`.
        on_event: as in :func:`run_all`.
        on_end: as in :func:`run_all`.

    Raises:
        RequestError: if a run folder holds a run of another configuration or of an older version.
            Nothing is trained then.
        KeyboardInterrupt: after Ctrl-C; the same call resumes.
    """
    jobs = suite.jobs(folder)
    if not fresh:
        check_folders(jobs)
    ended = run_all(
        jobs,
        num_workers=num_workers,
        fresh=fresh,
        retry=retry,
        on_event=on_event,
        on_end=on_end,
    )
    rows: list[DemoRow] = [
        _certified(row, job.folder)
        for row, job in zip(results.rows(suite, folder, ended), jobs, strict=True)
    ]
    return summarize(suite, rows, results.environment(jobs))


def _certified(row: Row, folder: Path) -> DemoRow:
    """Return the row of a run with its certificate and its number of attempts."""
    if row["status"] != "done":
        return {**row, "certificate": None, "attempts": None}
    attempts = [attempt.passed for attempt in load_outcome(folder).attempts] or None
    found, _ = certify_run(folder, max_pairs=MAX_PAIRS)
    return {**row, "certificate": found.to_plain(), "attempts": attempts}


def summarize(
    suite: DemoSuite, rows: list[DemoRow], environment: dict[str, Any] | None = None
) -> Summary:
    """Combine the rows of a suite with its setting and the paper's numbers.

    Args:
        suite: the suite.
        rows: rows of the suite.
        environment: software and machine of the runs; None means the present ones.
    """
    config = suite.protocol.resolved()
    protocol = config.to_plain()
    del protocol["seed"], protocol["model"]["layers"]
    return {
        "runs": rows,
        "setting": _setting(suite, config),
        "protocol": protocol,
        "published": copy.deepcopy(suite.published),
        "environment": provenance.describe() if environment is None else environment,
        "time_s": sum(row["time_s"] or 0.0 for row in rows),
    }


def _setting(suite: DemoSuite, config: RunConfig) -> Setting:
    task, evaluation = config.build_task(), config.evaluation
    epochs, num_steps = config.schedules.epochs, config.schedules.num_steps
    duration = epochs or num_steps or 0
    head = next(iter(task.heads))
    words = {task.length: evaluation.test_size} | {
        length: sequences_at(length, at_most=evaluation.test_size, tokens=evaluation.tokens)
        for length in evaluation.lengths
        if length != task.length
    }
    return {
        "group": task.title,
        "train_size": task.train_size,
        "train_length": task.length,
        "head": head,
        "chance": task.chance[head],
        "unit": "step" if epochs is None else "epoch",
        "duration": duration,
        "sharpening": _sharpening(suite, duration),
        "test_words": {str(length): words[length] for length in sorted(words)},
        "recipes": {one.label: one.recipe for one in suite.networks if one.recipe},
    }


def _sharpening(suite: DemoSuite, duration: int) -> Sharpening | None:
    for schedule in suite.protocol.schedules.attributes:
        if schedule.attribute == "gate_temperature":
            return {
                "begin": schedule.begin * duration,
                "finish": schedule.finish * duration,
                "end": schedule.end,
                "without": [
                    network.label
                    for network in suite.networks
                    if not network.recipe and schedule.attribute not in network.schedulable
                ],
            }
    return None
