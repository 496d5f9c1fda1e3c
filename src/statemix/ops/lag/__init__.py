"""Recurrences over the last m states: h_t = sum_i a_{i,t} h_{t-i} + b_t."""

from statemix.ops.associative import ASSOCIATIVE
from statemix.ops.backends import Kernel
from statemix.ops.lag import associative, loop, reference
from statemix.ops.lag.functions import REALIZATIONS, h_lru, lag_scan
from statemix.ops.lag.steps import h_lru_step, lag_step
from statemix.ops.loop import LOOP
from statemix.ops.reference import REFERENCE

__all__ = ["REALIZATIONS", "h_lru", "h_lru_step", "lag_scan", "lag_step"]

REFERENCE.add("lag", Kernel(reference.scan))
ASSOCIATIVE.add("lag", Kernel(associative.scan))
LOOP.add("lag", Kernel(loop.forward, loop.backward))
