"""The suites of fixed points by name."""

from statemix.experiments.fixed_point.budget import BUDGET
from statemix.experiments.fixed_point.copying import COPYING
from statemix.experiments.fixed_point.stories import STORIES
from statemix.experiments.fixed_point.tracking import TRACKING

SUITES = {suite.name: suite for suite in (TRACKING, BUDGET, COPYING, STORIES)}
"""Name -> suite."""
