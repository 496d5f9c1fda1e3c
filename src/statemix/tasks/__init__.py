"""Data with laws: generators of labelled sequences, one file per family."""

from statemix.tasks.registry import Task, build, find, names, options

__all__ = ["Task", "build", "find", "names", "options"]
