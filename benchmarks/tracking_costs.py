"""What the models of ``statemix reproduce fp-a5 --size laptop`` cost, as rows of results.

    python benchmarks/tracking_costs.py OUTPUT.jsonl --runs reproduce/runs

A row has tokens per second and peak memory of a training step on words of the training length, with
initial weights; and of answering words of that and of eight times that length, with the weights of
the first seed that has been trained. Networks that iterate take more iterations once trained.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from statemix.training import RunConfig, load_model
from statemix.training.devices import build_fabric
from statemix.training.loop import Loop
from statemix.training.run import parts_of
from statemix.training.schedules import attributes_set
from statemix_lab.bench import harness as rows
from statemix_lab.bench.harness import Measurement, Provider, measure
from statemix_lab.studies.store import key
from statemix_lab.studies.study import find_study
from statemix_lab.studies.study_entries import StudyEntry

_LONGEST = 8


def main() -> None:
    """Measure every model of one group, and append a row for each model and kind of work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("reproduce/runs"))
    parser.add_argument("--group", default="A_5")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    process = rows.describe_process()
    chosen = [
        one
        for one in find_study("fp-a5").entries("paper", "laptop")
        if one.column.startswith(arguments.group)
    ]
    length = _config(chosen[0]).task.options["length"]
    works: dict[str, tuple[int, Callable[[StudyEntry], Callable[[], Any]]]] = {
        "train": (length, lambda one: _training(_config(one))),
        "answer": (length, partial(_answering, runs=arguments.runs, length=length)),
        "answer long": (
            _LONGEST * length,
            partial(_answering, runs=arguments.runs, length=_LONGEST * length),
        ),
    }
    for work, (tokens, prepare) in works.items():
        found = measure(
            [
                Provider(one.model, partial(prepare, one))
                for one in chosen
                if _runs(work, one, arguments.runs)
            ],
            relative_to=("LSTM",),
            rounds=arguments.rounds,
            budget_s=20.0,
            tolerance=0.0,
            seed=0,
        )
        batch = _config(chosen[0]).batches.size
        for one in found:
            row = _row(one, work, arguments.group, batch, tokens)
            rows.append_rows(arguments.output, [row], process)
            print(
                f"{work:12} {one.provider:26} {row['tokens_per_s']:10,.0f} tokens/s "
                f"{row['memory_bytes'] / 1e6:8.1f} MB"
            )


def _config(one: StudyEntry) -> RunConfig:
    """Return the run with the first seed."""
    return one.trials.runs[0][1]


def _row(one: Measurement, work: str, group: str, batch: int, tokens: int) -> dict[str, Any]:
    assert one.time_s is not None
    return {
        "benchmark": "tracking_costs",
        "model": one.provider,
        "work": work,
        "group": group,
        "batch_size": batch,
        "length": tokens,
        "time_s": one.time_s._asdict(),
        "tokens_per_s": batch * tokens / one.time_s.p50,
        "memory_bytes": one.memory_bytes,
        "ratios": {name: ratio._asdict() for name, ratio in one.ratios.items()},
        "rounds": one.rounds,
    }


def _runs(work: str, one: StudyEntry, runs: Path) -> bool:
    return work == "train" or (runs / key(_config(one))).exists()


def _training(config: RunConfig) -> Callable[[], Any]:
    config = config.replace(runtime=config.runtime.replace(device="cpu")).resolved()
    fabric = build_fabric("cpu", config.runtime.precision)
    loop = Loop(**parts_of(config, config.build_task(), Path()), fabric=fabric)
    return lambda: loop.train_step(loop.step)


def _answering(one: StudyEntry, *, runs: Path, length: int) -> Callable[[], Any]:
    config = _config(one)
    model = load_model(runs / key(config))
    tokens = torch.from_numpy(
        config.build_task().examples("test", 0, config.batches.size, length).tokens
    )

    @torch.no_grad()
    def call() -> Any:
        with attributes_set(model, config.evaluation.attributes):
            return model(tokens)

    return call


if __name__ == "__main__":
    main()
