"""``statemix train``: one model on one task, or a grid of such runs."""

import csv
import dataclasses
import io
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statemix.cli.evaluate import print_scores
from statemix.cli.options import bare, read_words, split_values, takes_many, text_of
from statemix.cli.parser import (
    Argument,
    Groups,
    Option,
    normal,
    options_of_class,
    read_fields,
    show_help,
    split_flags,
)
from statemix.errors import RequestError, RunsFailedError, suggestion
from statemix.files import write_file
from statemix.layers import LAYERS
from statemix.models import CHANNEL_MIXERS
from statemix.registry import REQUIRED, Registry
from statemix.sweeps.grid import Axis, best_by_validation, grid
from statemix.sweeps.recipes import RECIPES
from statemix.sweeps.runner import Ended, run_all
from statemix.tasks import TASKS
from statemix.training import Outcome, RunConfig, accuracy, config_from_plain, load_outcome, train
from statemix.training.devices import check_threads
from statemix.training.folder import WRITING_S, lock_folder, read_status
from statemix.training.outcome import load_asked
from statemix.training.progress import shown
from statemix.training.settings import Settings, import_modules, put, read_tree

# Table of all grids of a folder, beside the folders of their runs.
GRID = "grid.csv"
_RESULTS = ("status", "validation", "test", "folder")

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


@dataclass(frozen=True)
class Train:
    """Train a model on a task."""

    resumes: ClassVar[bool] = True

    folder: Path
    """Folder of the run. If it holds an unfinished run of the same request, that run is resumed."""

    config: Annotated[Path | None, Argument("FILE")] = None
    """Configuration file, TOML or JSON."""

    from_run: Annotated[Path | None, Argument("RUN", name="from")] = None
    """Folder of a run to start from: its settings become the defaults."""

    recipe: Annotated[str | None, Argument("NAME")] = None
    """Settings made for a purpose and a task. exact: a BD-LRU that tracks the task's automaton
    without an error at any length (docs/state_tracking.md)."""

    grid: Annotated[tuple[str, ...], Argument("[NAME=VALUE,VALUE ...]")] = ()
    """Train with every combination of these values, each run in a subfolder, and select the best on
    the validation split. grid.csv receives the table."""

    workers: int | None = None
    """Number of processes that train runs of a grid in parallel (1 if not given)."""

    retry: bool = False
    """Retry runs of a grid that diverged or failed. Without it they are only reported."""

    extend: bool = False
    """Continue a run of fewer epochs, steps or attempts, finished or not; further steps follow the
    longer schedules, so a cosine rises again."""

    checkpoint_every_s: float | None = None
    """Seconds between checkpoints (10 if not given, or more where checkpoints would take more than
    2% of the time). Results do not depend on it."""

    run_config: RunConfig = field(default_factory=RunConfig)
    """The run."""

    def run(self) -> None:
        """Train, and print the scores."""
        if self.grid:
            self._train_grid()
            return
        if self.workers is not None or self.retry:
            flag = "--retry" if self.retry else "--workers"
            raise RequestError(f"{flag} needs --grid, got none")
        with shown() as show:
            outcome = train(
                self.run_config,
                self.folder,
                on_event=lambda event: show(self.folder.name, event),
                checkpoint_every_s=self.checkpoint_every_s,
                extend=self.extend,
            )
        _print_outcome(outcome)

    def _train_grid(self) -> None:
        if self.extend:
            raise RequestError("--extend needs a single run, got --grid")
        if self.workers is not None:
            check_threads("workers", self.workers)
        axes = []
        for text in self.grid:
            name, equals, values = text.partition("=")
            if not (name and equals and values):
                raise RequestError(f"grid must have the form NAME=VALUE,VALUE..., got {text!r}")
            if self.recipe is not None and _is_of_task(name):
                raise RequestError(f"grid must not change the task of a recipe, got {name}")
            axes.append(Axis(name.replace("-", "_"), tuple(split_values(values))))
        jobs = grid(self.run_config, self.folder, axes)
        # A folder that cannot be written would fail every run.
        with lock_folder(self.folder, patience_s=WRITING_S):
            pass
        with shown() as show:
            ended = run_all(
                jobs,
                num_workers=self.workers,
                retry=("diverged", "failed") if self.retry else (),
                on_event=lambda job, event: show(job.name, event),
                on_end=_report_trouble,
                checkpoint_every_s=self.checkpoint_every_s,
            )
        outcomes = {
            row.job.name: load_outcome(row.job.folder) for row in ended if row.status == "done"
        }
        _print_grid(axes, ended, outcomes, self.folder)
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


def _report_trouble(row: Ended) -> None:
    if row.status != "done":
        earlier = row.status in ("diverged", "failed") and not row.started
        advice = " (in an earlier call; use --retry to try again)" if earlier else ""
        print(f"{row.job.name}: {row.status}: {row.message}{advice}", file=sys.stderr)
        print(row.details, end="", file=sys.stderr)


def parse(arguments: Sequence[str]) -> Train:
    """Parse a command line: options of the command, and settings of the run in any order."""
    own = [option for option in options_of_class(Train) if option.field != "run_config"]
    settings = {option.field: option for option in _settings_of(RunConfig)}
    flags = {normal(option.flag) for option in own}
    groups: Groups = []
    assignments: Groups = []
    for flag, words in split_flags(arguments):
        name = normal(flag)
        annotation = settings[name].annotation if name in settings else None
        # Words after the value of a flag may be settings in the form NAME=VALUE.
        first = 1 if flag and bare(annotation) is not bool else 0
        dotted = annotation is not None and takes_many(annotation)
        after = [] if name == "grid" else words[first:]
        assigned = [word for word in after if _is_setting(word, dotted=dotted)]
        words = [word for word in words if word not in assigned]
        if not flag or name in flags or name == "help":
            groups.append((flag, words))
        else:
            assignments.append((name, words))
        parts = (word.partition("=") for word in assigned)
        assignments += [(normal(setting), [value]) for setting, _, value in parts]
    given = dict(assignments)
    for name, count in Counter(name for name, _ in assignments).items():
        if count > 1:
            raise RequestError(f"{name} must be given once")
    import_modules(given.get("imports", ()))
    if ("--help", []) in groups:
        show_help("statemix train", _DESCRIPTION, [*own, *settings.values()], _registries())
    if unknown := [name for name in given if name.split(".")[0] not in RunConfig.model_fields]:
        known = [*(option.flag for option in own), *(f"--{name}" for name in settings)]
        flag = f"--{unknown[0].replace('_', '-')}"
        message = f"option must be one that `statemix train --help` lists, got {flag}"
        raise RequestError(message + suggestion(flag, known))
    command = Train(**read_fields(own, groups))
    tree = _base(command, given, settings).to_plain()
    if command.recipe is not None:
        # The recipe has read them, and may have added options.
        given = {name: words for name, words in given.items() if not _is_of_task(name)}
    return dataclasses.replace(command, run_config=_changed(tree, given, settings))


def _is_setting(word: str, *, dotted: bool) -> bool:
    """Return whether a word is a setting of the run in the form NAME=VALUE."""
    name, equals, _ = word.partition("=")
    head, dot, _ = name.partition(".")
    return bool(equals and (dot or not dotted) and normal(head) in RunConfig.model_fields)


def _settings_of(kind: type[Settings], path: str = "") -> Iterator[Option]:
    for name, info in kind.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            yield from _settings_of(annotation, f"{path}{name}.")
        else:
            yield Option(f"{path}{name}", annotation, info.default, info.description or "")


def _changed(
    tree: dict[str, Any], given: Mapping[str, list[str]], settings: Mapping[str, Option]
) -> RunConfig:
    """Return the configuration of plain tables with the settings of a command line."""
    # Whole fields come first, then their parts.
    for name, words in sorted(given.items(), key=lambda setting: setting[0].count(".")):
        head, dot, last = name.rpartition(".")
        positive = f"{head}{dot}{last.removeprefix('no_')}"
        if not words and positive in settings and bare(settings[positive].annotation) is bool:
            put(tree, positive, positive == name)
        else:
            annotation = settings[name].annotation if name in settings else Any
            put(tree, name, read_words(annotation, words, name))
    return config_from_plain(tree)


def _base(
    command: Train, given: Mapping[str, list[str]], settings: Mapping[str, Option]
) -> RunConfig:
    """Return the configuration that the settings of the command line override."""
    sources = {"--config": command.config, "--from": command.from_run, "--recipe": command.recipe}
    chosen = [flag for flag, value in sources.items() if value is not None]
    if len(chosen) > 1:
        raise RequestError(f"{' and '.join(chosen)} must not be given together")
    if command.from_run is not None:
        return load_asked(command.from_run)
    if command.recipe is not None:
        if command.recipe not in RECIPES:
            raise RequestError(f"--recipe must be one of {list(RECIPES)}, got {command.recipe!r}")
        task = {name: words for name, words in given.items() if _is_of_task(name)}
        return RECIPES[command.recipe](_changed(RunConfig().to_plain(), task, settings).task)
    if command.config is not None:
        tree = read_tree(command.config)
        try:
            return config_from_plain(tree)
        except RequestError as error:
            raise RequestError(f"{command.config}: {error}") from error
    return RunConfig()


def _is_of_task(setting: str) -> bool:
    return setting.split(".")[0] == "task"


def _registries() -> str:
    titles: dict[str, Registry[Any]]
    titles = {"Tasks": TASKS, "Layers": LAYERS, "Channel mixers": CHANNEL_MIXERS}
    entries: list[str] = []
    for title, factories in titles.items():
        entries.append(f"{title}, with their options:")
        for name in factories:
            described = []
            for option, (annotation, default) in factories.options(name).items():
                if default is REQUIRED:
                    described.append(f"{option} (required)")
                elif get_origin(annotation) is Literal:
                    choices = [text_of(choice) for choice in get_args(annotation)]
                    described.append(f"{option}={'|'.join(choices)}")
                else:
                    described.append(f"{option}={text_of(default)}")
            entries.append(f"{name}: {', '.join(described) or 'none'}")
    return "\n\n".join(entries)


def _print_grid(
    axes: Sequence[Axis], ended: Sequence[Ended], outcomes: dict[str, Outcome], folder: Path
) -> None:
    """Print each run's validation and test accuracy at its best validation, and store them."""
    table = Table(box=SIMPLE_HEAD)
    titles = [*(axis.name for axis in axes), *_RESULTS]
    for title in titles[:-1]:
        table.add_column(title, justify="right")
    stored = []
    for row in ended:
        scores: list[float] = []
        if row.job.name in outcomes:
            best = outcomes[row.job.name].test_at_best_validation
            (test,) = best.test.values()
            scores = [best.validation_accuracy, accuracy(test)]
        values = [text_of(axis.value_in(row.job.config)) for axis in axes]
        table.add_row(*values, row.status, *(f"{score:.4f}" for score in scores))
        cells = (*values, row.status, *(scores or ("", "")), row.job.folder.name)
        # The folder may hold a finished run of another request, whose row stays.
        kept = read_status(row.job.folder)
        if row.status == "done" or kept is None or kept.status != "done":
            stored.append(dict(zip(titles, cells, strict=True)))
    Console(markup=False, highlight=False).print(table)
    _store_grid(folder / GRID, stored)
    print(f"stored in {folder / GRID}")


def _store_grid(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table of a grid, after the rows of earlier grids whose runs still exist."""
    known, table = {row["folder"] for row in rows}, io.StringIO()
    with lock_folder(path.parent, patience_s=WRITING_S):
        text = path.read_text("utf-8", "replace") if path.exists() else ""
        kept = [
            row
            for row in csv.DictReader(io.StringIO(text))
            if (name := row.get("folder")) and name not in known and (path.parent / name).is_dir()
        ]
        names = dict.fromkeys(name for row in (*rows, *kept) for name in row if name)
        columns = sorted(names, key=_RESULTS.__contains__)
        writer = csv.DictWriter(table, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows([*kept, *rows])
        write_file(path, table.getvalue().encode())


def _print_outcome(outcome: Outcome) -> None:
    count = len(outcome.attempts)
    attempts = f" in {count} attempt{'s' if count > 1 else ''}" if count else ""
    failed = count > 0 and not outcome.attempts[-1].passed
    if failed:
        attempts += ", none of which passed"
    print(
        f"{outcome.num_parameters:,} parameters, {outcome.last.step:,} steps{attempts}, "
        f"{outcome.time_s:.1f} s; stored in {outcome.folder}"
    )
    if failed:
        print(f"for more attempts, repeat with --extend --search.attempts {2 * count}")
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
