"""Tasks: generators of labelled sequences, one file per family."""

from statemix.automaton import IGNORED
from statemix.tasks.task import Examples, HasTokenFeatures, Task, TaskSpec
from statemix.tasks.task_registry import TASKS, build

__all__ = ["IGNORED", "TASKS", "Examples", "HasTokenFeatures", "Task", "TaskSpec", "build"]
