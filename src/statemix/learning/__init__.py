"""Learning machines from logs, some of whose labels are wrong."""

from statemix.learning.learner import (
    ATTEMPTS,
    FoundMachine,
    LearnedMachine,
    Options,
    finish,
    learn,
    search,
)
from statemix.learning.logs import Log, read_log

__all__ = [
    "ATTEMPTS",
    "FoundMachine",
    "LearnedMachine",
    "Log",
    "Options",
    "finish",
    "learn",
    "read_log",
    "search",
]
