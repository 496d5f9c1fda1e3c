"""The suites of exactness by name."""

from statemix.studies.exactness.exact_factorial import FACTORIAL
from statemix.studies.exactness.exact_groups import GROUPS

SUITES = {suite.name: suite for suite in (GROUPS, FACTORIAL)}
"""Name -> suite."""
