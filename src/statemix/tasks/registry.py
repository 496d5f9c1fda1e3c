"""The tasks by name, and what every task offers."""

import inspect
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol, get_type_hints

import numpy as np
from numpy.typing import NDArray

from statemix.tasks.addressing import Split
from statemix.tasks.permutation import Permutation


class Task(Protocol):
    """Data with a law: labelled token sequences, each addressed by (seed, split, index, length).

    The first sentence of a task's docstring says what it asks; its constructor takes keyword
    options alone, each with a default.

    Attributes:
        name: its name in the registry.
        presets: published data sets, name -> options.
        length: tokens per training example.
        train_size: number of training examples; None means fresh ones without end.
        seed: chooses the examples.
        vocab_size: number of tokens.
        num_classes: number of targets.
        chance: token accuracy of guessing.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, object]]]
    length: int
    train_size: int | None
    seed: int

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def chance(self) -> float: ...

    def examples(
        self, split: Split, start: int, stop: int, length: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Make (tokens, targets), each (stop - start, length); a target of -100 is not scored."""
        ...

    def describe(self, index: int, split: Split = "train") -> str:
        """Write out one example for a reader."""
        ...


_TASKS: dict[str, type[Task]] = {
    Permutation.name: Permutation,
}


def names() -> tuple[str, ...]:
    """List the tasks."""
    return tuple(_TASKS)


def find(name: str) -> type[Task]:
    """Return the class of a task, for its docstring and its ``presets``.

    Raises:
        ValueError: if there is no task of that name.
    """
    if name not in _TASKS:
        raise ValueError(f"task must be one of {', '.join(_TASKS)}, got {name!r}")
    return _TASKS[name]


def options(name: str) -> dict[str, tuple[object, object]]:
    """Return the options of a task: option name -> (type annotation, default).

    Raises:
        ValueError: if there is no task of that name.

    Example:
        >>> options("permutation")["length"]
        (<class 'int'>, 16)
    """
    constructor = find(name).__init__
    hints = get_type_hints(constructor)
    return {
        parameter.name: (hints[parameter.name], parameter.default)
        for parameter in inspect.signature(constructor).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def build(name: str, /, **task_options: object) -> Task:
    """Make a task.

    Args:
        name: one of ``names()``.
        **task_options: see ``options(name)``.

    Raises:
        ValueError: if the task or an option is unknown, or a value is out of range.
        TypeError: if a value has the wrong type.

    Example:
        >>> build("permutation", group="S_4", train_size=3000).vocab_size
        24
    """
    constructor: Callable[..., Task] = find(name)
    known = options(name)
    for option in task_options:
        if option not in known:
            raise ValueError(
                f"options of task {name!r} must be among {', '.join(known)}, got {option!r}"
            )
    return constructor(**task_options)
