"""Recurrences over dense blocks: h_t = A_t h_{t-1} + b_t."""

from statemix.ops.associative import ASSOCIATIVE
from statemix.ops.backends import Kernel
from statemix.ops.block import associative, loop, reference
from statemix.ops.block.functions import bd_lru, block_scan
from statemix.ops.block.steps import bd_lru_step, block_step
from statemix.ops.loop import LOOP
from statemix.ops.reference import REFERENCE

__all__ = ["bd_lru", "bd_lru_step", "block_scan", "block_step"]

REFERENCE.add("block", Kernel(reference.scan))
ASSOCIATIVE.add("block", Kernel(associative.scan))
LOOP.add("block", Kernel(loop.forward, loop.backward))
