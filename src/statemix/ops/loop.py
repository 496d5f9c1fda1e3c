"""Backend "loop": a loop over time on whole batches, with adjoints by hand.

It needs no compiler and runs on every device. Blocks are innermost in memory, so that each step is
a few elementwise passes over long rows. Gates are normalised by PyTorch around it.
"""

from statemix.ops.backends import Backend

LOOP = Backend("loop", automatic=True, slow=True)
"""Its kernels are added by the operators."""
