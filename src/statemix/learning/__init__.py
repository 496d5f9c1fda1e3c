"""Learning machines from logs, some of whose labels are wrong."""

from statemix.learning.learner import (
    ATTEMPTS,
    Attempt,
    LearnedMachine,
    Options,
    finish,
    learn,
    search,
)
from statemix.learning.logs import Log, read_log

__all__ = [
    "ATTEMPTS",
    "Attempt",
    "LearnedMachine",
    "Log",
    "Options",
    "finish",
    "learn",
    "read_log",
    "search",
]
