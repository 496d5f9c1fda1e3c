"""``statemix bench``: speed and memory against baselines, prices of layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from statemix.cli.bench.bench_decode import Decode
from statemix.cli.bench.bench_layers import Layers
from statemix.cli.bench.bench_ops import Ops
from statemix.cli.imports import import_named
from statemix.cli.options import registry


@tyro.conf.configure(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
@dataclass(frozen=True)
class Bench:
    """Measure speed and memory."""

    benchmark: (
        Annotated[Ops, tyro.conf.subcommand("ops")]
        | Annotated[Decode, tyro.conf.subcommand("decode")]
        | Annotated[Layers, tyro.conf.subcommand("layers")]
    )
    """What to measure."""

    def run(self) -> None:
        """Run the chosen benchmark."""
        self.benchmark.run()


def parse(arguments: Sequence[str]) -> Bench:
    """Parse a command line, after importing the modules that it names."""
    import_named(arguments)
    return tyro.cli(Bench, prog="statemix bench", args=arguments, registry=registry())
