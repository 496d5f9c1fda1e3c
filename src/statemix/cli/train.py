"""``statemix train``: one model on one task, or a grid of such runs."""

import itertools
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statemix.cli.evaluate import print_scores
from statemix.cli.imports import import_named
from statemix.cli.options import registry, split_overrides, split_values, text_of, value_of
from statemix.cli.progress import shown
from statemix.errors import RequestError, RunsFailedError
from statemix.layers import LAYERS
from statemix.models import CHANNEL_MIXERS
from statemix.plain import Text, put
from statemix.registry import REQUIRED, Factories
from statemix.studies.grid import Axis, best_by_validation, grid
from statemix.studies.recipes import RECIPES
from statemix.studies.runner import Ended, run_all
from statemix.tasks import TASKS, TaskSpec
from statemix.training import (
    Outcome,
    RunConfig,
    accuracy,
    config_from_plain,
    load_outcome,
    train,
)
from statemix.training.devices import check_threads
from statemix.training.outcome import load_asked
from statemix.training.reading import read_tree
from statemix.training.run import CHECKPOINT_EVERY_S

_DESCRIPTION = """\
Train a model on a task. The folder receives the whole configuration, the environment, the \
metrics (during training) and the weights (last, best on test, best on validation).

A run may be interrupted at any moment. Repeat the command to resume it; the final weights are the \
same.

Examples:

statemix train --folder runs/s3 --task permutation group=S_3 train_size=250 \
--model.layers bd_lru num_blocks=64 block_size=3 --model.bos --schedules.epochs 100

statemix train --folder runs/s4 --from runs/s3 --task.group S_4 --model.layers.0.block_size 4

statemix train --folder runs/a5 --recipe exact --task permutation group=A_5

statemix train --folder runs/hybrid --config hybrid.toml --seed 1

statemix train --folder runs/grid --from runs/s3 --workers 2 \
--grid optimizer.learning_rate=1e-4,5e-4,1e-3 optimizer.weight_decay=0,.1

A configuration file is TOML or JSON; its tables mirror the dotted names of these options. \
Command-line options override the settings from --config, --from or --recipe. Dots also name a \
part of a task, a layer or another list entry: --task.group, --model.layers.1.block_size.

"""

# Fields whose parts depend on their values.
_OPEN = (
    "task",
    "model.layers",
    "model.channel_mixer",
    "optimizer.groups",
    "schedules.attributes",
    "search.attributes",
    "evaluation.attributes",
)


@dataclass(frozen=True)
class Train:
    """Train a model on a task."""

    folder: Path
    """Folder of the run. If it holds an unfinished run of the same request, that run is resumed."""

    run_config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)
    """The run."""

    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Configuration file, TOML or JSON."""

    from_run: Annotated[Path | None, tyro.conf.arg(name="from", metavar="RUN")] = None
    """Folder of a run to start from: its settings become the defaults."""

    recipe: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Settings made for a purpose and a task. exact: a BD-LRU that tracks the task's automaton
    without an error at any length (docs/state_tracking.md)."""

    grid: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME=VALUE,VALUE ...]")] = ()
    """Train with every combination of these values, each run in a subfolder, and select the best on
    the validation split."""

    workers: int | None = None
    """Number of processes that train runs of a grid in parallel (1 if not given; with --ray, as
    many as the cluster has GPUs, or processors if it has no GPU)."""

    ray: str | None = None
    """Train a grid on a Ray cluster: "auto" (the one that runs here), its address, or "local" (a
    new one on this machine). All machines must share the folder."""

    retry: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Retry runs of a grid that diverged or failed. Without it they are only reported."""

    extend: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Continue a run of fewer epochs or steps, finished or not; further steps follow the longer
    schedules, so a cosine rises again."""

    checkpoint_every_s: float = CHECKPOINT_EVERY_S
    """Seconds between checkpoints. Results do not depend on it."""

    def run(self) -> None:
        """Train, and print the scores.

        Raises:
            RequestError: if the configuration or the folder is invalid.
            FloatingPointError: if the loss is not finite.
            RunsFailedError: if a run of a grid failed, or none finished.
            KeyboardInterrupt: after Ctrl-C, with a checkpoint saved.
        """
        if not self.grid:
            for option in ("workers", "ray"):
                if getattr(self, option) is not None:
                    raise RequestError(f"--{option} needs --grid, got none")
            if self.retry:
                raise RequestError("--retry needs --grid, got none")
            with shown() as show:
                outcome = train(
                    self.run_config,
                    self.folder,
                    on_event=lambda event: show(self.folder.name, event),
                    checkpoint_every_s=self.checkpoint_every_s,
                    extend=self.extend,
                )
            _print_outcome(outcome)
            return
        if self.extend:
            raise RequestError("--extend needs a single run, got --grid")
        if self.workers is not None and self.ray in (None, "local"):
            check_threads("workers", self.workers)
        axes = [_axis(text) for text in self.grid]
        for axis in axes:
            if self.recipe is not None and axis.name.split(".")[0] == "task":
                raise RequestError(
                    f"grid must not change the task of a recipe, which is made for one, got "
                    f"{axis.name}"
                )
        jobs = grid(self.run_config, self.folder, axes)
        with shown() as show:
            ended = run_all(
                jobs,
                num_workers=self.workers,
                ray=self.ray,
                retry=("diverged", "failed") if self.retry else (),
                on_event=lambda job, event: show(job.name, event),
                on_end=_report_trouble,
                checkpoint_every_s=self.checkpoint_every_s,
            )
        outcomes = {row.job.name: load_outcome(row.job.folder) for row in ended if _done(row)}
        _print_grid(axes, ended, outcomes)
        if outcomes:
            best = best_by_validation(outcomes.values())
            print(f"best on validation: {best.folder.name}")
            _print_outcome(best)
        # A run that diverged is a result, as learning rates of a grid may be too high on purpose.
        failed = [row.job.name for row in ended if row.status in ("failed", "interrupted")]
        if failed or not outcomes:
            counts = Counter(row.status for row in ended)
            summary = ", ".join(f"{count} {status}" for status, count in counts.items())
            raise RunsFailedError(f"of {len(ended)} runs: {summary}")


def _axis(text: str) -> Axis:
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise RequestError(f"grid must have the form NAME=VALUE,VALUE..., got {text!r}")
    return Axis(name.replace("-", "_"), tuple(split_values(values)))


def _done(row: Ended) -> bool:
    return row.status == "done"


def _report_trouble(row: Ended) -> None:
    if row.status != "done":
        earlier = row.status in ("diverged", "failed") and not row.started
        advice = " (in an earlier call; use --retry to try again)" if earlier else ""
        print(f"{row.job.name}: {row.status}: {row.message}{advice}", file=sys.stderr)
        print(row.details, end="", file=sys.stderr)


def parse(arguments: Sequence[str]) -> Train:
    """Parse a command line; defaults come from the file or run that it names."""
    import_named(arguments)
    rest, overrides = split_overrides(arguments, _OPEN)
    return _parsed(rest, overrides, _base(rest, overrides))


def _parsed(arguments: Sequence[str], overrides: Mapping[str, str], base: RunConfig) -> Train:
    parsed: Train = tyro.cli(
        Train,
        prog="statemix train",
        description=_DESCRIPTION + _registries(),
        args=arguments,
        registry=registry(),
        default=Train(tyro.MISSING, base),
    )
    if not overrides:
        return parsed
    tree = parsed.run_config.completed().to_plain()
    for name, text in overrides.items():
        put(tree, name, Text(text, value_of(text)))
    return _replaced(parsed, config_from_plain(tree))


def _replaced(parsed: Train, config: RunConfig) -> Train:
    return Train(**{**vars(parsed), "run_config": config})


def _base(arguments: Sequence[str], overrides: Mapping[str, str]) -> RunConfig:
    """The configuration that the options override."""
    found = {flag: _value(flag, arguments) for flag in ("--config", "--from", "--recipe")}
    given = [flag for flag, value in found.items() if value is not None]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} must not be given together")
    file, source, recipe = found.values()
    if recipe is not None and not {"-h", "--help"} & set(arguments):
        if recipe not in RECIPES:
            raise RequestError(f"--recipe must be one of {list(RECIPES)}, got {recipe!r}")
        return RECIPES[recipe](_task(arguments, overrides))
    if file is not None:
        tree = read_tree(Path(file))
        try:
            return config_from_plain(tree)
        except RequestError as error:
            raise RequestError(f"{file}: {error}") from error
    return RunConfig() if source is None else load_asked(Path(source))


def _task(arguments: Sequence[str], overrides: Mapping[str, str]) -> TaskSpec:
    """The task that a command line names, whatever else it says."""
    kept, keeps = ["--folder", "any"], False
    for argument in arguments:
        if argument.startswith("--"):
            keeps = argument.partition("=")[0] in ("--task", "--imports")
        if keeps:
            kept.append(argument)
    parts = {name: text for name, text in overrides.items() if name.startswith("task.")}
    return _parsed(kept, parts, RunConfig()).run_config.task


def _value(flag: str, arguments: Sequence[str]) -> str | None:
    found = []
    for argument, value in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        if argument == flag and value.startswith("--"):
            raise RequestError(f"{flag} must have a value, got none")
        if argument == flag and value:
            found.append(value)
        if argument.startswith(f"{flag}="):
            found.append(argument.removeprefix(f"{flag}="))
    if len(found) > 1:
        raise RequestError(f"{flag} must be given once, got {', '.join(found)}")
    return found[0] if found else None


def _registries() -> str:
    entries: list[str] = []
    for title, factories in (
        ("Tasks, with their options:", TASKS),
        ("Layers, with their options:", LAYERS),
        ("Channel mixers, with their options:", CHANNEL_MIXERS),
    ):
        entries.append(title)
        entries += [_entry(factories, name) for name in factories]
    return "\n\n".join(entries)


def _entry(factories: Factories[Any], name: str) -> str:
    described = []
    for option, (annotation, default) in factories.options(name).items():
        if default is REQUIRED:
            described.append(f"{option} (required)")
        elif get_origin(annotation) is Literal:
            choices = [text_of(choice) for choice in get_args(annotation)]
            described.append(f"{option}={'|'.join(choices)}")
        else:
            described.append(f"{option}={text_of(default)}")
    return f"{name}: {', '.join(described) or 'none'}"


def _print_grid(axes: Sequence[Axis], ended: Sequence[Ended], outcomes: dict[str, Outcome]) -> None:
    """Print each run's validation and test accuracy at its best validation."""
    table = Table(box=SIMPLE_HEAD)
    for title in (*(axis.name for axis in axes), "status", "validation", "test"):
        table.add_column(title, justify="right")
    for row in ended:
        scores = ["", ""]
        if row.job.name in outcomes:
            best = outcomes[row.job.name].test_at_best_validation
            (test,) = best.test.values()
            scores = [f"{best.validation_accuracy:.4f}", f"{accuracy(test):.4f}"]
        values = [text_of(axis.value_in(row.job.config)) for axis in axes]
        table.add_row(*values, row.status, *scores)
    Console(markup=False, highlight=False).print(table)


def _print_outcome(outcome: Outcome) -> None:
    count = len(outcome.attempts)
    attempts = f" in {count} attempt{'s' if count > 1 else ''}" if count else ""
    if count and not outcome.attempts[-1].passed:
        attempts += ", none of which passed"
    print(
        f"{outcome.num_parameters:,} parameters, {outcome.last.step:,} steps{attempts}, "
        f"{outcome.time_s:.1f} s; stored in {outcome.folder}"
    )
    selections = {
        "last": outcome.last,
        "best validation": outcome.test_at_best_validation,
        "best test": outcome.best_test,
    }
    print_scores(
        (f"{name}, step {selection.step}", length, scores)
        for name, selection in selections.items()
        for length, scores in selection.test.items()
    )
