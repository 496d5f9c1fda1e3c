"""The table of bugs of other libraries fits the code; ``make known-bugs`` plants them."""

import tomllib
from pathlib import Path

import pytest

from statemix.lm.conformity import CHECKS

ROOT = Path(__file__).resolve().parents[2]
BUGS = tomllib.loads((ROOT / "tests/mutation/known_bugs.toml").read_text())["bug"]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug["symptom"])
def test_a_bug_can_be_planted(bug):
    text = (ROOT / bug["file"]).read_text()
    assert text.count(bug["before"]) == 1
    assert bug["before"] != bug["after"]
    file, name = bug["test"].split("::")
    assert ("check" in bug) != ("outside" in bug)
    assert bug.get("check", "greedy") in CHECKS
    assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
