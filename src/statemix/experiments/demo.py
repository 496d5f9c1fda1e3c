"""The demo: which recurrence tracks a permutation group, and how far beyond its training words."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemix.experiments import published
from statemix.experiments.summary import Curve, Network, Published, Run, Setting, Summary
from statemix.experiments.workers import Job, train_all
from statemix.training import Event, Outcome, RunConfig, load_config, load_outcome


@dataclass(frozen=True)
class Suite:
    """Networks and seeds under one protocol.

    Attributes:
        networks: what stands in the place of the tested layer.
        seeds: of the initial weights, the order of batches, and all words.
        protocol: the configuration that all runs share.
        published: the paper's numbers to be shown beside.
    """

    networks: tuple[Network, ...]
    seeds: tuple[int, ...]
    protocol: RunConfig
    published: Published

    def jobs(self, folder: Path) -> list[Job]:
        """List the runs, every network with the first seed before any with the second."""
        return [
            Job(_name(network, seed), self._config(network, seed), folder / _name(network, seed))
            for seed in self.seeds
            for network in self.networks
        ]

    def _config(self, network: Network, seed: int) -> RunConfig:
        return dataclasses.replace(
            self.protocol, layer=network["model"], layer_options=network["options"], seed=seed
        )


def _name(network: Network, seed: int) -> str:
    size = "" if network["m"] is None else f"-m{network['m']}"
    return f"{network['model']}{size}-seed{seed}"


def bd_lru(num_blocks: int, block_size: int) -> Network:
    """A BD-LRU, named by its block size."""
    options: dict[str, bool | int | float | str | None] = {
        "num_blocks": num_blocks,
        "block_size": block_size,
    }
    return {"model": "bd_lru", "m": block_size, "options": options}


LSTM: Network = {"model": "lstm", "m": None, "options": {}}

_PROTOCOL = RunConfig(
    task="permutation",
    hidden_size=128,
    bos=True,
    learning_rate=1e-3,
    weight_decay=0.01,
    batch_size=128,
    schedule="cosine",
    min_learning_rate=1e-5,
    sharpen_to=8.0,
    sharpen_start=0.5,
    sharpen_end=0.9,
    eval_lengths=(64, 256, 1024, 4096, 16384),
    eval_tokens=131072,
    validation_size=64,
    device="cpu",
    # Equal results however many runs share the machine.
    num_threads=1,
)

SUITES = {
    "S_3": Suite(
        networks=(bd_lru(64, 3), bd_lru(64, 2), bd_lru(64, 1), LSTM),
        seeds=(0, 1, 2, 3, 4),
        protocol=dataclasses.replace(
            _PROTOCOL,
            task_options={"group": "S_3", "train_size": 250},
            epochs=100,
            eval_every=4,
        ),
        published=published.permutation("s3_250", "S_3 from 250 examples"),
    ),
    # All block sizes have 100 entries of state.
    "S_5": Suite(
        networks=(bd_lru(20, 5), bd_lru(100, 1), LSTM),
        seeds=(0, 1),
        protocol=dataclasses.replace(
            _PROTOCOL,
            task_options={"group": "S_5"},
            num_steps=3000,
            eval_every=100,
        ),
        published=published.permutation("s5_100k", "S_5 from 100,000 examples"),
    ),
}


def run(
    suite: Suite,
    folder: Path,
    *,
    num_workers: int,
    on_event: Callable[[Job, Event], None],
    fresh: bool = False,
) -> Summary:
    """Train what is not trained yet, and gather the results.

    Args:
        suite: the runs.
        folder: one folder per run is made in it; finished runs are reused, unfinished ones resumed.
        num_workers: runs side by side.
        on_event: told what happens in which run.
        fresh: remove this suite's runs first.

    Raises:
        ValueError: if the folder holds runs of another configuration.
        OSError: if the folder cannot be written.
        RuntimeError: if a run fails.
        KeyboardInterrupt: after Ctrl-C; the same call resumes.
    """
    jobs = suite.jobs(folder)
    if fresh:
        for job in jobs:
            shutil.rmtree(job.folder, ignore_errors=True)
    for job in jobs:
        _check_folder(job)
    train_all(jobs, num_workers, on_event)
    return gather(suite, jobs)


def gather(suite: Suite, jobs: Sequence[Job]) -> Summary:
    """Read the results of finished runs from their folders."""
    outcomes = [load_outcome(job.folder) for job in jobs]
    names = [(network["model"], network["m"]) for network in suite.networks] * len(suite.seeds)
    runs, curves = [], []
    for (model, m), job, outcome in zip(names, jobs, outcomes, strict=True):
        accuracy = {
            str(length): scores.token_accuracy for length, scores in outcome.last.test.items()
        }
        runs.append(Run(model=model, m=m, seed=job.config.seed, accuracy=accuracy))
        curves.append(_curve(model, m, job))
    environment = json.loads((jobs[0].folder / "environment.json").read_text(encoding="utf-8"))
    return {
        "runs": runs,
        "curves": curves,
        "setting": _setting(outcomes[0]),
        "networks": list(suite.networks),
        "protocol": _shared(outcomes),
        "published": suite.published,
        "environment": environment,
        "time_s": sum(outcome.time_s for outcome in outcomes),
    }


def _check_folder(job: Job) -> None:
    path = job.folder / "config.json"
    if path.exists() and load_config(path) != job.config.resolved():
        raise ValueError(
            f"{job.folder} must hold a run of the same configuration, got another one; "
            "--fresh (fresh=True) removes it"
        )


def _curve(model: str, m: int | None, job: Job) -> Curve:
    unit = "epoch" if job.config.num_steps is None else "step"
    length = str(job.config.build_task().length)
    positions, accuracies = [], []
    with (job.folder / "metrics.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row: dict[str, Any] = json.loads(line)
            positions.append(row[unit])
            accuracies.append(row["test"][length]["token_accuracy"])
    return Curve(model=model, m=m, seed=job.config.seed, position=positions, accuracy=accuracies)


def _setting(outcome: Outcome) -> Setting:
    config, task = outcome.config, outcome.config.build_task()
    in_epochs = config.epochs is not None
    duration = (config.epochs if in_epochs else config.num_steps) or 0
    return {
        "group": str(config.task_options["group"]),
        "train_size": task.train_size,
        "train_length": task.length,
        "chance": task.chance,
        "unit": "epoch" if in_epochs else "step",
        "duration": duration,
        "sharpen": (
            config.sharpen_start * duration,
            config.sharpen_end * duration,
            config.sharpen_to,
        ),
        "test_words": {
            str(length): scores.num_sequences for length, scores in outcome.last.test.items()
        },
    }


def _shared(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The fields of the configuration in which all runs agree."""
    configs = [dataclasses.asdict(outcome.config) for outcome in outcomes]
    return {
        name: value
        for name, value in configs[0].items()
        if all(config[name] == value for config in configs)
    }
