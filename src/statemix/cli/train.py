"""``statemix train``: one model, one task, one folder."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statemix import layers, tasks
from statemix.cli.evaluate import print_scores
from statemix.cli.progress import shown
from statemix.cli.tasks import parse_options
from statemix.training import (
    Options,
    Outcome,
    RunConfig,
    best_by_validation,
    grid,
    load_config,
    train,
)
from statemix.training.rundir import CONFIG

_DESCRIPTION = """\
Train a model on a task, with progress, and keep everything in a folder: the whole configuration, \
the environment, the metrics as they come, and the weights (last, best on test, best on validation).

Interrupt it at any moment; the same command goes on and ends with the same weights.

Examples:

statemix train --folder runs/s3 --task-options group=S_3 train_size=250 --layer bd_lru \
--layer-options block_size=3 num_blocks=64 --bos --epochs 100

statemix train --folder runs/s3-lstm --from runs/s3 --layer lstm --layer-options

statemix train --folder runs/s3-grid --from runs/s3 --learning-rates 1e-4 5e-4 1e-3 \
--weight-decays 0 .1

"""


@dataclass(frozen=True)
class Train:
    """Train a model on a task."""

    folder: Path
    """Where the run is kept. An unfinished run of the same configuration there is resumed."""

    config: tyro.conf.OmitArgPrefixes[RunConfig] = field(default_factory=RunConfig)
    """The run."""

    from_run: Annotated[Path | None, tyro.conf.arg(name="from", metavar="RUN")] = None
    """Take the configuration of this run's folder; options given beside it replace its own."""

    learning_rates: tuple[float, ...] = ()
    """Train with each of these in place of --learning-rate, in a folder of its own within the
    folder, and choose by the validation split."""

    weight_decays: tuple[float, ...] = ()
    """Likewise in place of --weight-decay; with --learning-rates, every pair is trained."""

    def run(self) -> None:
        """Train, and print how the model scores.

        Raises:
            ValueError: if the configuration or the folder does not fit.
            FloatingPointError: if the loss is not finite.
            KeyboardInterrupt: after Ctrl-C, with a checkpoint saved.
        """
        if not (self.learning_rates or self.weight_decays):
            _print_outcome(_train(self.config, self.folder))
            return
        runs = grid(
            self.config,
            self.folder,
            learning_rates=self.learning_rates,
            weight_decays=self.weight_decays,
        )
        outcomes: dict[Path, Outcome] = {}
        for folder, config in runs.items():
            try:
                outcomes[folder] = _train(config, folder)
            except FloatingPointError as error:
                # The rates that a grid tries may be too high: that is an answer, too.
                print(f"{folder.name}: {error}", file=sys.stderr)
        _print_grid(runs, outcomes)
        if not outcomes:
            raise FloatingPointError("every run of the grid diverged")
        best = best_by_validation(outcomes.values())
        print(f"best on validation: {best.folder.name}")
        _print_outcome(best)


def _train(config: RunConfig, folder: Path) -> Outcome:
    with shown(folder.name) as show:
        return train(config, folder, on_event=show)


def parse(arguments: Sequence[str]) -> Train:
    """The command line as a :class:`Train`; a run named by ``--from`` gives the defaults."""
    default: dict[str, Any] = {}
    source = _source(arguments)
    repeated = None
    if source is not None:
        if not (source / CONFIG).is_file():
            raise ValueError(f"--from must be a run's folder, got {source} without {CONFIG}")
        repeated = load_config(source / CONFIG)
        default["default"] = Train(tyro.MISSING, repeated, source)
    parsed: Train = tyro.cli(
        Train,
        prog="statemix train",
        description=_DESCRIPTION + _registries(),
        args=arguments,
        registry=_registry(),
        **default,
    )
    if repeated is not None:
        _check_inherited_options(parsed.config, repeated)
    return parsed


def _check_inherited_options(config: RunConfig, repeated: RunConfig) -> None:
    """Another layer than that of the run in ``--from`` may not know that run's options."""
    if config.layer == repeated.layer or config.layer_options != repeated.layer_options:
        return
    try:
        layers.check_options(config.layer, config.layer_options)
    except ValueError as error:
        raise ValueError(
            f"--layer-options must be given with --layer {config.layer}, since those of --from are "
            f"for {repeated.layer}: {error}"
        ) from error


def _source(arguments: Sequence[str]) -> Path | None:
    for argument, value in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument == "--from" and value:
            return Path(value)
        if argument.startswith("--from="):
            return Path(argument.removeprefix("--from="))
    return None


def _registry() -> tyro.constructors.ConstructorRegistry:
    """Options of tasks and layers are written NAME=VALUE, as many as wanted."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def read_options(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
        if get_origin(info.type) is not get_origin(Options):
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*",
            metavar="[NAME=VALUE ...]",
            instance_from_str=parse_options,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda options: [
                f"{name}={str(value).lower() if value in (None, True, False) else value}"
                for name, value in options.items()
            ],
        )

    return registry


def _registries() -> str:
    lines = ["Tasks, with the options of --task-options:"]
    lines += [_entry(name, tasks.options(name)) for name in tasks.names()]
    lines += ["Layers, with the options of --layer-options:"]
    lines += [_entry(name, layers.options(name)) for name in layers.names()]
    return "\n\n".join(lines)


def _entry(name: str, options: dict[str, tuple[Any, Any]]) -> str:
    described = []
    for option, (annotation, default) in options.items():
        text = option
        if default is inspect.Parameter.empty:
            text += " (required)"
        elif get_origin(annotation) is Literal:
            choices = [str(choice).lower() if choice in (True, False) else str(choice)
                       for choice in get_args(annotation)]  # fmt: skip
            text += f"={'|'.join(choices)}"
        else:
            text += f"={str(default).lower() if default is None else default}"
        described.append(text)
    return f"{name}: {', '.join(described) or 'none'}"


def _print_grid(runs: Mapping[Path, RunConfig], outcomes: Mapping[Path, Outcome]) -> None:
    """Print each run's token accuracy where validation was best, on validation and on test."""
    table = Table(box=SIMPLE_HEAD)
    for title in ("learning rate", "weight decay", "validation", "test"):
        table.add_column(title, justify="right")
    for folder, config in runs.items():
        cells = ["diverged", ""]
        if folder in outcomes:
            best = outcomes[folder].test_at_best_validation
            scores = (best.validation, *best.test.values())
            cells = [f"{score.token_accuracy:.4f}" for score in scores]
        table.add_row(f"{config.learning_rate:g}", f"{config.weight_decay:g}", *cells)
    Console(markup=False, highlight=False).print(table)


def _print_outcome(outcome: Outcome) -> None:
    print(
        f"{outcome.num_parameters:,} parameters, {outcome.last.step:,} steps, "
        f"{outcome.time_s:.1f} s; kept in {outcome.folder}"
    )
    selections = {
        "last": outcome.last,
        "best validation": outcome.test_at_best_validation,
        "best test": outcome.best_test,
    }
    rows = [
        (f"{name}, step {selection.step}", length, scores)
        for name, selection in selections.items()
        for length, scores in selection.test.items()
    ]
    print_scores(rows)
