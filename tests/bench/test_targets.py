"""Only outcomes that a target applies to give a verdict."""

import pytest

from statemix.bench.harness import Measurement, Spread
from statemix.bench.ops import COMPILED, OURS, PAPER, Case
from statemix.bench.roofline import COPY
from statemix.bench.targets import FIRST_VERSION, verdicts


def outcome(recurrence, size, over, under, ratio, *, direction="forward_backward", length=2048):
    case = Case(recurrence, direction, 8, length, 128, size)
    ratios = {under: Spread(ratio / 2, ratio, ratio * 2)}
    return case, [Measurement(over, "", "measured", ratios=ratios)]


@pytest.mark.parametrize(
    ("recurrence", "size", "over", "under", "good", "bad"),
    [
        ("bd_lru", 1, OURS, COPY, 2.0, 2.01),
        ("h_lru", 6, OURS, COPY, 2.0, 2.01),
        ("bd_lru", 8, OURS, COPY, 3.0, 3.01),
        ("h_lru", 16, OURS, COPY, 4.0, 4.01),
        ("bd_lru", 4, COMPILED, OURS, 10.0, 9.99),
        ("h_lru", 16, PAPER, OURS, 100.0, 99.9),
    ],
)
def test_limit_itself_counts_as_reached(recurrence, size, over, under, good, bad):
    for ratio, reached in ((good, True), (bad, False)):
        found = list(verdicts([outcome(recurrence, size, over, under, ratio)], FIRST_VERSION))
        assert [(v.measured, v.reached) for v in found] == [(ratio, reached)]


@pytest.mark.parametrize(
    "silent",
    [
        outcome("bd_lru", 4, OURS, COPY, 1.0, direction="forward"),
        outcome("bd_lru", 4, OURS, COPY, 1.0, length=16),
        outcome("bd_lru", 4, PAPER, OURS, 100.0),
        outcome("h_lru", 4, COMPILED, OURS, 100.0),
        outcome("bd_lru", 7, OURS, COPY, 1.0),
        (Case("bd_lru", "forward_backward", 8, 2048, 128, 4), [Measurement(OURS, "", "wrong")]),
    ],
)
def test_outcome_without_a_target_is_ignored(silent):
    assert not list(verdicts([silent], FIRST_VERSION))
