"""``statemix tasks``: the names of the tasks, or the options and examples of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_origin

from rich.console import Console

from statemix.cli.options import options_of, text_of
from statemix.cli.parser import Argument
from statemix.errors import RequestError
from statemix.registry import REQUIRED
from statemix.tasks import TASKS, Task, TaskSpec
from statemix.tasks.addressing import Split
from statemix.training.settings import built, read_spec

# Nobody reads more examples than this on a terminal.
_MOST, _MOST_TOKENS = 10_000, 100_000


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
        """Print the list or the examples."""
        if not 1 <= self.count <= _MOST:
            raise RequestError(f"count must be in 1..{_MOST}, got {self.count}")
        console = Console(markup=False, highlight=False, soft_wrap=True)
        if not self.task:
            for name in TASKS:
                console.print(f"{name:<{max(map(len, TASKS))}}  {_summary(name)}")
            console.print(
                "\n`statemix tasks NAME` shows the options, data sets and examples of a task."
            )
            return
        name, *options = self.task
        if not options:
            TASKS.find(name)
            if _required(name):
                _print_overview(console, name)
                return
        task = self._task(name, options)
        # All examples are made before any output: a request beyond the split must fail first.
        numbers = range(self.start, self.start + self.count)
        examples = [built("start", task.describe, number, self.split) for number in numbers]
        if options:
            console.print(name, style="bold")
        else:
            _print_overview(console, name)
            console.print()
        console.print(
            f"{task.vocab_size} tokens, length {task.length:,}, "
            f"training examples: {_train_size(task)}"
        )
        for head, classes in task.heads.items():
            chance = task.chance[head]
            console.print(f"{head}: {classes} classes, accuracy of guessing {chance:.4f}")
        for text in examples:
            console.print(f"\n{text}")

    def _task(self, name: str, options: Sequence[str]) -> Task:
        """Build the task, if its examples can be read on a terminal."""
        spec = read_spec(TaskSpec, {"name": name, **options_of(options)})
        task: Task = built(f"task {name}", spec.build)
        length = f"{task.length:,}"
        if task.length > _MOST_TOKENS:
            most = f"{_MOST_TOKENS:,} where examples are shown"
            raise RequestError(f"length must be at most {most}, got {length}")
        if self.count * task.length > _MOST_TOKENS:
            most = f"{_MOST_TOKENS // task.length} at length {length}"
            raise RequestError(f"count must be at most {most}, got {self.count}")
        return task


def _summary(name: str) -> str:
    return (TASKS[name].__doc__ or "").partition("\n")[0]


def _print_overview(console: Console, name: str) -> None:
    console.print(name, style="bold")
    console.print(_summary(name))
    options, choices = [], []
    for option, (annotation, default) in TASKS.options(name).items():
        accepted = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        if get_origin(annotation) is Literal:
            accepted = ", ".join(map(str, get_args(annotation)))
            choices += [("", {option: choice}) for choice in get_args(annotation)]
        default = "(required)" if default is REQUIRED else text_of(default)
        options.append((option, accepted, default))
    replaced: Mapping[str, str] = getattr(TASKS[name], "replaced", {})
    options += [(option, "str", f"(in place of {other})") for option, other in replaced.items()]
    _print_table(console, ("option", "values", "default"), options)
    # One data set for each choice of each option, then the published ones; else the defaults.
    data_sets = []
    for title, chosen in [*choices, *TASKS[name].presets.items()] or [("defaults", {})]:
        if _required(name) <= chosen.keys():
            task: Task = TASKS.build(name, **chosen)
            given = " ".join(f"{option}={_line(value)}" for option, value in chosen.items())
            heads = [("" if len(task.chance) == 1 else f"{head} ") for head in task.chance]
            each = zip(heads, task.chance.values(), strict=True)
            chance = ", ".join(f"{head}{value:.4f}" for head, value in each)
            data_sets.append((title, given, str(task.vocab_size), _train_size(task), chance))
    header = ("data set", "options", "tokens", "training", "chance")
    if data_sets:
        _print_table(console, header, data_sets)


def _required(name: str) -> set[str]:
    """Return the options without a default."""
    return {o for o, (_, default) in TASKS.options(name).items() if default is REQUIRED}


def _line(value: object) -> str:
    """Return a value as text; of several lines, only the first."""
    first, *others = str(value).split("\n")
    return f"{first} ..." if others else first


def _train_size(task: Task) -> str:
    return "fresh" if task.train_size is None else f"{task.train_size:,}"


def _print_table(
    console: Console, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]
) -> None:
    console.print()
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.print(("  " + "  ".join(cells)).rstrip())
