"""The tasks by name. To add one, write a file beside this one and a line in ``TASKS``."""

from statemix.registry import Factories
from statemix.tasks.permutation import Permutation
from statemix.tasks.task import Task

TASKS: Factories[type[Task]] = Factories(
    "task",
    [
        Permutation,
    ],
)


def build(name: str, /, **options: object) -> Task:
    """Construct a task by name.

    Args:
        name: a name in ``TASKS``.
        **options: the task's options, as ``TASKS.options(name)`` lists them.

    Raises:
        SettingError: if there is no task of that name, or an option is unknown or of another type.
        ValueError: if a value is out of range.

    Example:
        >>> build("permutation", group="S_4", train_size=3000).vocab_size
        24
    """
    task: Task = TASKS.build(name, **options)
    return task
