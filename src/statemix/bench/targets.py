"""Speed targets of the operators on a CPU, forward and backward together, and verdicts on them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from statemix.bench.harness import Measurement
from statemix.bench.ops import COMPILED, OURS, PAPER, Case, Recurrence
from statemix.bench.roofline import COPY

# Smaller cases (21 MB of float32 in each of three passes) fit into caches. Arithmetic then limits
# them, so comparing them with a copy is meaningless.
_LEAST_MOVED_ENTRIES = 2**24


@dataclass(frozen=True)
class Target:
    """A bound on the time of the provider ``over`` divided by that of ``under``."""

    over: str
    under: str
    bound: Literal["at most", "at least"]
    limit: float
    block_sizes: tuple[int, ...]
    recurrences: tuple[Recurrence, ...] = ("bd_lru", "h_lru")


FIRST_VERSION = (
    Target(OURS, COPY, "at most", 2.0, block_sizes=(1, 2, 3, 4, 5, 6)),
    Target(OURS, COPY, "at most", 3.0, block_sizes=(8,)),
    Target(OURS, COPY, "at most", 4.0, block_sizes=(16,)),
    Target(COMPILED, OURS, "at least", 10.0, block_sizes=(4, 5), recurrences=("bd_lru",)),
    Target(PAPER, OURS, "at least", 100.0, block_sizes=(16,), recurrences=("h_lru",)),
)


@dataclass(frozen=True)
class Verdict:
    """A target and the measured median of the ratios within rounds."""

    case: Case
    target: Target
    measured: float

    @property
    def reached(self) -> bool:
        """Whether the target is met."""
        if self.target.bound == "at most":
            return self.measured <= self.target.limit
        return self.measured >= self.target.limit


def verdicts(
    outcomes: Sequence[tuple[Case, Sequence[Measurement]]], targets: Sequence[Target]
) -> Iterator[Verdict]:
    """Yield a verdict for every target and every measurement that it applies to."""
    for case, measurements in outcomes:
        if case.direction == "forward" or case.moved_entries < _LEAST_MOVED_ENTRIES:
            continue
        for target in targets:
            if case.recurrence not in target.recurrences:
                continue
            for one in measurements:
                if (
                    one.provider == target.over
                    and case.block_size in target.block_sizes
                    and target.under in one.ratios
                ):
                    yield Verdict(case, target, one.ratios[target.under].p50)
