"""The examples do what they say. The loop of the README, with three seeds, is in test_documents."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["track_parity.py", "recall_first.py"])
def test_an_example_learns_its_task(name):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right: 1.0000\n"
