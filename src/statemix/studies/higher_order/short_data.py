"""Shorter sequences of two tasks, which models learn within the epochs of a laptop.

Of the 64 tokens of the paper's compression, and the 16 of 64 of its copying, no model learns much
there (results/LOG.md).
"""

from statemix.studies.higher_order.protocols import Column, Data
from statemix.tasks import TaskSpec

SHORT_COPYING = Column(
    "copying of 6",
    (
        Data(
            "copying 6 of 32 tokens",
            TaskSpec(
                "selective_copying", vocab_size=16, length=32, num_copied=6, train_size=20_000
            ),
            {"laptop": 6, "workstation": 40, "paper": 200},
            metric="mad_accuracy",
        ),
    ),
)
"""Copy 6 of 32 tokens."""

SHORT_COMPRESSION = Column(
    "compression of 16",
    (
        Data(
            "compression of 16 tokens",
            TaskSpec("compression", vocab_size=16, length=16, train_size=20_000),
            {"laptop": 15, "workstation": 60, "paper": 200},
            backbone="autoencoder",
            metric="mad_accuracy",
        ),
    ),
)
"""Rebuild 16 tokens from one vector."""
