"""``benchmarks/gpu.sh`` without a GPU: a stand-in for Python records the commands of the script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from statemix_lab.cli.bench import parse

ROOT = Path(__file__).parents[3]

STAND_IN = """\
#!{python}
import json, sys
with open({log!r}, "a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
sys.exit({failing!r} in sys.argv)
"""


@pytest.fixture
def execute(tmp_path):
    """Return a function that runs the script and returns its process and the recorded commands."""

    def run(part, failing="nothing"):
        log = tmp_path / "log"
        python = STAND_IN.format(python=sys.executable, log=str(log), failing=failing)
        for name, text in (("python", python), ("nvidia-smi", "#!/bin/sh\n")):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        done = subprocess.run(
            [ROOT / "benchmarks" / "gpu.sh", part, tmp_path / "rows"],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "PYTHON": str(tmp_path / "python"),
                "STATEMIX_COMMIT": "1234567890",
            },
        )
        return done, [json.loads(line) for line in log.read_text().splitlines()]

    return run


def test_every_command_is_one_that_the_library_understands(execute, tmp_path):
    done, calls = execute("all")
    assert done.returncode == 0, done.stdout
    assert done.stdout.rstrip().endswith(f"rows are in {tmp_path}/rows/gpu-1234567.jsonl")
    assert (tmp_path / "rows" / "gpu-1234567.log").exists()
    benchmarks = [call[3:] for call in calls if call[:3] == ["-m", "statemix", "bench"]]
    tested = [name for call in calls if call[1] == "pytest" for name in call if "/" in name]
    assert {"ops", "layers", "decode", "language"} == {arguments[0] for arguments in benchmarks}
    assert tested
    for arguments in benchmarks:
        asked = parse(arguments)
        assert asked.device == "cuda"
        assert asked.output == tmp_path / "rows" / "gpu-1234567.jsonl"
    assert all((ROOT / name).exists() for name in tested)


def test_a_command_that_fails_does_not_stop_the_others(execute):
    _, every = execute("check")
    done, calls = execute("check", "doctor")
    assert done.returncode == 1
    assert "== doctor: exit status 1\n" in done.stdout
    assert calls[len(every) :] == every
    nameless = subprocess.run([ROOT / "benchmarks" / "gpu.sh"], capture_output=True, text=True)
    assert (nameless.returncode, nameless.stdout) == (2, "")
    assert "usage: benchmarks/gpu.sh check|layers" in nameless.stderr
