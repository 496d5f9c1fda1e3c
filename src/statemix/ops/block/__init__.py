"""Recurrences over dense blocks: h_t = A_t h_{t-1} + b_t."""

from statemix.ops.block import block_kernels  # noqa: F401  adds the kernels to their backends
from statemix.ops.block.block_operators import bd_lru, bd_lru_step, block_scan, block_step

__all__ = ["bd_lru", "bd_lru_step", "block_scan", "block_step"]
