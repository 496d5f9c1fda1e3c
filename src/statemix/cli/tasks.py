"""``statemix tasks``: the names of the tasks, or the options and examples of one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_origin

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statemix.cli.options import options_of, text_of
from statemix.cli.parser import Argument
from statemix.errors import RequestError
from statemix.registry import REQUIRED
from statemix.tasks import TASKS, Task, TaskSpec
from statemix.tasks.addressing import Split
from statemix.training.settings import built, read_spec

# Nobody reads more examples than this on a terminal.
_MOST = 10_000
_MOST_TOKENS = 100_000


@dataclass(frozen=True)
class Tasks:
    """List the tasks, or show the options, data sets and examples of one task.

    Without a name, the names of all tasks are printed. With a name, the task's options with their
    values, its data sets with the accuracy of guessing, and examples of it. The option preset=NAME
    stands for the options of a data set:

    statemix tasks permutation group=S_4 length=8 --count 3
    """

    task: Annotated[tuple[str, ...], Argument("[TASK [OPTION=VALUE ...]]", positional=True)] = ()
    """Task to show, with its options."""

    split: Split = "train"
    """Split of the examples."""

    start: int = 0
    """Index of the first example. Earlier examples are not generated."""

    count: int = 2
    """Number of examples."""

    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own tasks."""

    def run(self) -> None:
        """Print the list or the examples.

        Raises:
            RequestError: if the task, an option or a value is unknown or out of range.
        """
        if not 1 <= self.count <= _MOST:
            raise RequestError(f"count must be in 1..{_MOST}, got {self.count}")
        console = Console(markup=False, highlight=False, soft_wrap=True)
        if not self.task:
            _print_names(console)
            return
        name, *options = self.task
        if not options:
            TASKS.find(name)
            if _required(name):
                _print_overview(console, name)
                return
        task = self._task(name, options)
        examples = self._examples(task)
        if options:
            _print_heading(console, name)
        else:
            _print_overview(console, name)
            console.print()
        for line in (*_facts(task), *(line for text in examples for line in ("", text))):
            console.print(line)

    def _task(self, name: str, options: Sequence[str]) -> Task:
        """Build the task, if its examples can be read on a terminal."""
        spec = read_spec(TaskSpec, {"name": name, **options_of(options)})
        task: Task = built(f"task {name}", spec.build)
        if task.length > _MOST_TOKENS:
            raise RequestError(
                f"length must be at most {_MOST_TOKENS:,} where examples are shown, got "
                f"{task.length:,}"
            )
        if self.count * task.length > _MOST_TOKENS:
            raise RequestError(
                f"count must be at most {_MOST_TOKENS // task.length} at length "
                f"{task.length:,}, got {self.count}"
            )
        return task

    def _examples(self, task: Task) -> list[str]:
        """Make all examples before any output: a request beyond the split must fail first."""
        numbers = range(self.start, self.start + self.count)
        return [built("start", task.describe, number, self.split) for number in numbers]


def _print_names(console: Console) -> None:
    for name in TASKS:
        console.print(f"{name:<{max(map(len, TASKS))}}  {_summary(name)}")
    console.print()
    console.print("`statemix tasks NAME` shows the options, data sets and examples of a task.")


def _summary(name: str) -> str:
    return (TASKS[name].__doc__ or "").partition("\n")[0]


def _print_overview(console: Console, name: str) -> None:
    _print_heading(console, name)
    console.print(_summary(name))
    options = [
        (option, _accepted(annotation), "(required)" if default is REQUIRED else text_of(default))
        for option, (annotation, default) in TASKS.options(name).items()
    ]
    replaced: Mapping[str, str] = getattr(TASKS[name], "replaced", {})
    options += [(option, "str", f"(in place of {other})") for option, other in replaced.items()]
    _print_table(console, ("option", "values", "default"), options)
    data_sets = []
    for title, chosen in _data_sets(name):
        if not _required(name) <= chosen.keys():
            continue
        task: Task = TASKS.build(name, **chosen)
        data_sets.append(
            (
                title,
                " ".join(f"{option}={_line(value)}" for option, value in chosen.items()),
                str(task.vocab_size),
                _train_size(task),
                _chance(task),
            )
        )
    header = ("data set", "options", "tokens", "training", "chance")
    if data_sets:
        _print_table(console, header, data_sets)


def _required(name: str) -> set[str]:
    """Return the options without a default."""
    return {o for o, (_, default) in TASKS.options(name).items() if default is REQUIRED}


def _data_sets(name: str) -> Sequence[tuple[str, Mapping[str, object]]]:
    """One data set for each choice of each option, then the published ones; else the defaults."""
    choices = [
        ("", {option: choice})
        for option, (annotation, _) in TASKS.options(name).items()
        if get_origin(annotation) is Literal
        for choice in get_args(annotation)
    ]
    return [*choices, *TASKS[name].presets.items()] or [("defaults", {})]


def _line(value: object) -> str:
    """Return a value as text; of several lines, only the first."""
    first, *others = str(value).split("\n")
    return f"{first} ..." if others else first


def _accepted(annotation: object) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(str(choice) for choice in get_args(annotation))
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _train_size(task: Task) -> str:
    return "fresh" if task.train_size is None else f"{task.train_size:,}"


def _chance(task: Task) -> str:
    if len(task.chance) == 1:
        (chance,) = task.chance.values()
        return f"{chance:.4f}"
    return ", ".join(f"{head} {chance:.4f}" for head, chance in task.chance.items())


def _facts(task: Task) -> Iterator[str]:
    yield (
        f"{task.vocab_size} tokens, length {task.length:,}, training examples: {_train_size(task)}"
    )
    for head, classes in task.heads.items():
        yield f"{head}: {classes} classes, accuracy of guessing {task.chance[head]:.4f}"


def _print_heading(console: Console, text: str) -> None:
    console.print(text, style="bold")


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
