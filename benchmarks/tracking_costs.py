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
from statemix_lab.bench.harness import Provider, append_rows, describe_process, measure
from statemix_lab.studies.store import key
from statemix_lab.studies.study import find_study
from statemix_lab.studies.study_entries import StudyEntry


def main() -> None:
    """Measure every model of one group, and append a row for each model and kind of work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("reproduce/runs"))
    parser.add_argument("--group", default="A_5")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    process = describe_process()
    entries = [
        entry
        for entry in find_study("fp-a5").entries("paper", "laptop")
        if entry.column.startswith(arguments.group)
    ]
    config = _config(entries[0])
    length, batch = config.task.options["length"], config.batches.size
    for work, tokens in (("train", length), ("answer", length), ("answer long", 8 * length)):
        providers = []
        for entry in entries:
            run = arguments.runs / key(_config(entry))
            if work == "train":
                prepare = partial(_training, _config(entry))
            elif run.exists():
                prepare = partial(_answering, _config(entry), run, tokens)
            else:
                continue
            providers.append(Provider(entry.model, prepare))
        for measured in measure(
            providers,
            relative_to=("LSTM",),
            rounds=arguments.rounds,
            budget_s=20.0,
            tolerance=0.0,
            seed=0,
        ):
            assert measured.time_s is not None
            row = {
                "benchmark": "tracking_costs",
                "model": measured.provider,
                "work": work,
                "group": arguments.group,
                "batch_size": batch,
                "length": tokens,
                "time_s": measured.time_s._asdict(),
                "tokens_per_s": batch * tokens / measured.time_s.p50,
                "memory_bytes": measured.memory_bytes,
                "ratios": measured.to_row()["ratios"],
                "rounds": measured.rounds,
            }
            append_rows(arguments.output, [row], process)
            print(
                f"{work:12} {measured.provider:26} {row['tokens_per_s']:10,.0f} tokens/s "
                f"{measured.memory_bytes / 1e6:8.1f} MB"
            )


def _config(entry: StudyEntry) -> RunConfig:
    """Return the run with the first seed."""
    return entry.trials.runs[0][1]


def _training(config: RunConfig) -> Callable[[], Any]:
    config = config.replace(runtime=config.runtime.replace(device="cpu")).resolved()
    fabric = build_fabric("cpu", config.runtime.precision)
    loop = Loop(**parts_of(config, config.build_task(), Path()), fabric=fabric)
    return lambda: loop.train_step(loop.step)


def _answering(config: RunConfig, run: Path, length: int) -> Callable[[], Any]:
    model = load_model(run)
    examples = config.build_task().examples("test", 0, config.batches.size, length)
    tokens = torch.from_numpy(examples.tokens)

    @torch.no_grad()
    def call() -> Any:
        with attributes_set(model, config.evaluation.attributes):
            return model(tokens)

    return call


if __name__ == "__main__":
    main()
