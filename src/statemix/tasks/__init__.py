"""Tasks: generators of labelled sequences, one file per family."""

from statemix.automaton import IGNORED
from statemix.tasks.registry import TASKS, build
from statemix.tasks.task import Examples, Task, TaskSpec

__all__ = ["IGNORED", "TASKS", "Examples", "Task", "TaskSpec", "build"]
