"""``statemix bench``: speed and memory against baselines."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from statemix.cli.bench.ops import Ops
from statemix.cli.bench.steps import Steps


@tyro.conf.configure(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
@dataclass(frozen=True)
class Bench:
    """Measure speed and memory."""

    benchmark: (
        Annotated[Ops, tyro.conf.subcommand("ops")]
        | Annotated[Steps, tyro.conf.subcommand("steps")]
    )
    """What to measure."""

    def run(self) -> None:
        """Run the chosen benchmark."""
        self.benchmark.run()
