"""Backend "loop": a loop over time on whole batches, with hand-written adjoints.

The loop needs no compiler and runs on every device. Blocks are innermost in memory, so that each
step is a few elementwise passes over long rows. PyTorch normalises the gates outside the loop.
"""

from statemix.ops.backends import Backend

LOOP = Backend("loop", automatic=True, slow=True)
"""The backend's record. The operators add its kernels."""
