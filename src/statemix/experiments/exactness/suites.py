"""The suites of exactness by name."""

from statemix.experiments.exactness.factorial import FACTORIAL
from statemix.experiments.exactness.groups import GROUPS

SUITES = {suite.name: suite for suite in (GROUPS, FACTORIAL)}
"""Name -> suite."""
