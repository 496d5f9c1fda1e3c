"""``statemix bench``: speed and memory against baselines, prices of layers."""

from collections.abc import Sequence
from typing import Any

from statemix.cli.parser import parse_part
from statemix_lab.cli.bench.bench_decode import Decode
from statemix_lab.cli.bench.bench_language import LanguageModels
from statemix_lab.cli.bench.bench_layers import Layers
from statemix_lab.cli.bench.bench_ops import Ops

BENCHMARKS: dict[str, type[Any]] = {
    "ops": Ops,
    "decode": Decode,
    "layers": Layers,
    "language": LanguageModels,
}


def parse(arguments: Sequence[str]) -> Any:
    """Parse a command line: the name of a benchmark, and its options."""
    return parse_part(BENCHMARKS, arguments, "statemix bench", "Measure speed and memory.")
