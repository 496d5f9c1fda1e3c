"""The recurrences as pure functions of tensors."""

from statemix.ops.checks import BackendUnavailableError
from statemix.ops.gates import GATES, normalize
from statemix.ops.recurrence import (
    BACKENDS,
    REALIZATIONS,
    bd_lru,
    block_scan,
    default_backend,
    h_lru,
    lag_scan,
)
from statemix.ops.steps import bd_lru_step, block_step, h_lru_step, lag_step

__all__ = [
    "BACKENDS",
    "GATES",
    "REALIZATIONS",
    "BackendUnavailableError",
    "bd_lru",
    "bd_lru_step",
    "block_scan",
    "block_step",
    "default_backend",
    "h_lru",
    "h_lru_step",
    "lag_scan",
    "lag_step",
    "normalize",
]
