"""Recurrences over the last m states: h_t = sum_i a_{i,t} h_{t-i} + b_t."""

from statemix.ops.lag import lag_kernels  # noqa: F401  adds the kernels to their backends
from statemix.ops.lag.lag_operators import REALIZATIONS, h_lru, h_lru_step, lag_scan, lag_step

__all__ = ["REALIZATIONS", "h_lru", "h_lru_step", "lag_scan", "lag_step"]
