"""``statemix tasks``: what there is to learn, and examples of it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_origin

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statemix import tasks
from statemix.tasks.addressing import Split


@dataclass(frozen=True)
class Tasks:
    """Show the tasks with their options and data sets, or examples of one task.

    Without a name, every task is listed with the values its options take, the data sets of the
    paper, the accuracy of guessing, and an example. With a name, examples are written out:

    statemix tasks permutation --task-options group=S_4 length=8 --count 3
    """

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[TASK]")] = None
    """Task of which to show examples."""

    task_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[OPTION=VALUE ...]")] = ()
    """Options of the task, as listed without a name."""

    split: Split = "train"
    """Split that the examples are from."""

    start: int = 0
    """Index of the first example. Any index can be asked for; nothing before it is made."""

    count: int = 2
    """Number of examples."""

    def run(self) -> None:
        """Print the answer.

        Raises:
            ValueError: if the task, an option or a value is unknown or out of range.
            TypeError: if the value of an option has the wrong type.
        """
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")
        console = Console(markup=False, highlight=False, soft_wrap=True)
        if self.name is not None:
            task = tasks.build(self.name, **parse_options(self.task_options))
            examples = self._examples(task, self.count)
            _print_heading(console, self.name)
            console.print(_facts(task))
            _print_examples(console, examples)
            return
        if self.task_options:
            raise ValueError("task must be named if task-options are given, got none")
        all_examples = {name: self._examples(tasks.build(name), 1) for name in tasks.names()}
        for name, examples in all_examples.items():
            _print_overview(console, name)
            _print_examples(console, examples)

    def _examples(self, task: tasks.Task, count: int) -> list[str]:
        """All are made before anything is printed: a request beyond the split shows its error."""
        return [task.describe(i, self.split) for i in range(self.start, self.start + count)]


def parse_options(assignments: Sequence[str]) -> dict[str, object]:
    """Read options as typed on a command line.

    Args:
        assignments: "option=value" each. A value that is JSON (a number, null) is read as such;
            "none", "true" and "false" are what they say, however they are spelt ("True"); any other
            is a string.

    Raises:
        ValueError: if one is not of this form, or an option comes twice.

    Example:
        >>> parse_options(["group=S_3", "length=16", "train_size=none", "selective=True"])
        {'group': 'S_3', 'length': 16, 'train_size': None, 'selective': True}
    """
    options: dict[str, object] = {}
    for assignment in assignments:
        option, equals, value = assignment.partition("=")
        if not (option and equals and value):
            raise ValueError(f"an option must have the form option=value, got {assignment!r}")
        if option in options:
            raise ValueError(f"option {option!r} must be given once, got {assignment!r} as well")
        try:
            word = value.lower()
            options[option] = _WORDS[word] if word in _WORDS else json.loads(value)
        except json.JSONDecodeError:
            options[option] = value
    return options


_WORDS = {"none": None, "true": True, "false": False}


def _print_overview(console: Console, name: str) -> None:
    _print_heading(console, name)
    summary = (tasks.find(name).__doc__ or "").partition("\n")[0]
    console.print(summary)
    options = [
        (option, _accepted(annotation), str(default))
        for option, (annotation, default) in tasks.options(name).items()
    ]
    _print_table(console, ("option", "values", "default"), options)
    data_sets = []
    for title, chosen in _data_sets(name):
        task = tasks.build(name, **chosen)
        data_sets.append(
            (
                title,
                " ".join(f"{option}={value}" for option, value in chosen.items()),
                str(task.vocab_size),
                _train_size(task),
                f"{task.chance:.4f}",
            )
        )
    header = ("data set", "options", "tokens", "training", "chance")
    _print_table(console, header, data_sets)


def _data_sets(name: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every value of every option that is a choice, then the published data sets."""
    for option, (annotation, _) in tasks.options(name).items():
        if get_origin(annotation) is Literal:
            for choice in get_args(annotation):
                yield "", {option: choice}
    yield from tasks.find(name).presets.items()


def _accepted(annotation: object) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(str(choice) for choice in get_args(annotation))
    return (
        getattr(annotation, "__name__", str(annotation)) if annotation is int else str(annotation)
    )


def _train_size(task: tasks.Task) -> str:
    return "fresh" if task.train_size is None else f"{task.train_size:,}"


def _facts(task: tasks.Task) -> str:
    return (
        f"{task.vocab_size} tokens, {task.num_classes} classes, length {task.length:,}, "
        f"training examples: {_train_size(task)}, seed {task.seed}, "
        f"accuracy of guessing {task.chance:.4f}"
    )


def _print_heading(console: Console, text: str) -> None:
    console.print(text, style="bold")


def _print_examples(console: Console, examples: Sequence[str]) -> None:
    for text in examples:
        console.print()
        console.print(text)


def _print_table(
    console: Console, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]
) -> None:
    if console.is_terminal:
        table = Table(*header, box=SIMPLE_HEAD)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    console.print()
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.print(("  " + "  ".join(cells)).rstrip())
