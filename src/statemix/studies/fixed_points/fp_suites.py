"""The suites of fixed points by name."""

from statemix.studies.fixed_points.fp_budget import BUDGET
from statemix.studies.fixed_points.fp_copy import COPYING
from statemix.studies.fixed_points.fp_stories import STORIES
from statemix.studies.fixed_points.fp_tracking import TRACKING

SUITES = {suite.name: suite for suite in (TRACKING, BUDGET, COPYING, STORIES)}
"""Name -> suite."""
