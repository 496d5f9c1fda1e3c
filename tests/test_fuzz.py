"""The fuzzer finds planted defects, and its lines repeat them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A process of its own: this one may have threads, and so must not fork.
PLANTED = """
import sys
sys.path.insert(0, {folder!r})
import run
{plant}
run.say = lambda line: (said.append(line), print(line, flush=True))
said = []
assert run.main({arguments!r}) == {code}
# On a busy machine any case may end too late.
for first in [line for line in said if "  # " in line and "no end after" not in line][:1]:
    print("again")
    assert run.main(first.partition("  # ")[0].split()[2:]) == 1
"""

PLANT = """
import time
from statemix.cli import evaluate, tasks, train
def raising(self):
    raise KeyError("planted")
def leaving(self):
    self.folder.mkdir(parents=True)
    raise train.RequestError("--folder planted")
def hanging(self):
    time.sleep(99)
evaluate.Evaluate.run, train.Train.run, tasks.Tasks.run = raising, leaving, hanging
run.commands.LIMIT_S = 3.0
run.commands.prepare = lambda folder: (folder / "run").mkdir()
run.commands._file = lambda r, folder, prepared: folder / "missing.toml"
"""


def test_planted_defects_are_found_and_repeated(tmp_path):
    """The fuzzer runs with planted defects, and then the first line that it printed."""
    output = tmp_path / "fuzz.jsonl"
    arguments = ["--only", "commands", "--seed", "5", "--count", "50"]
    arguments += ["--output", str(output)]
    folder = str(ROOT / "tests" / "fuzz")
    text = PLANTED.format(folder=folder, plant=PLANT, arguments=arguments, code=1)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    # Each batch has a folder of its own.
    printed = re.sub(r"/\S*statemix-fuzz-\w+/\w+-batch-\d+", "", done.stdout)
    first, again = printed.split("again\n")
    findings = [text for text in first.splitlines() if text.startswith("python tests/fuzz")]
    for words in ("KeyError: 'planted'", "left files behind", "no end after 3.0 s"):
        assert any(words in text for text in findings), (words, findings)
    repeated = next(text for text in findings if "no end after" not in text)
    assert repeated in again
    row = json.loads(output.read_text())
    assert (row["seed"], row["kinds"]["commands"]["findings"]) == (5, len(findings))
    assert row["kinds"]["commands"]["cases"] == 50
    assert "commit" in row
