"""Plant the bugs of ``known_bugs.toml`` one by one, and check that their tests turn red.

The check of ``statemix conform`` that a bug names must fail, too. The exit code is 1 if a test or a
check fails without a bug, or passes with its bug.

    python tests/mutation/known_bugs.py [TEXT ...]

TEXT chooses the bugs whose symptom contains it.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tree import Tree, say

MODEL = "tests/mutation/conform.json"
BUGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["bug"]


def main(words: list[str]) -> int:
    """Check the chosen bugs, and print a line for each."""
    chosen = [bug for bug in BUGS if all(word in bug["symptom"] for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="statemix-bugs-") as folder:
        tree = Tree(Path(folder))
        checks = sorted({bug["check"] for bug in chosen if "check" in bug})
        tests = sorted({bug["test"] for bug in chosen})
        if not _passes(tree, tests) or (checks and not _conforms(tree, checks)):
            raise SystemExit("a test or check fails without a bug")
        for bug in chosen:
            path = tree.folder / bug["file"]
            text = path.read_text()
            path.write_text(text.replace(bug["before"], bug["after"], 1))
            is_caught = not _passes(tree, [bug["test"]])
            is_found = "outside" in bug or not _conforms(tree, [bug["check"]])
            path.write_text(text)
            missed += not (is_caught and is_found)
            say(f"{'caught' if is_caught else 'MISSED'}  {bug['symptom']}  <- {bug['test']}")
            if "check" in bug:
                say(f"{'caught' if is_found else 'MISSED'}  by statemix conform, {bug['check']}")
    say(f"{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0


def _passes(tree: Tree, tests: list[str]) -> bool:
    return _is_green(tree, "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)


def _conforms(tree: Tree, checks: list[str]) -> bool:
    return _is_green(tree, "statemix", "conform", MODEL, "--only", *checks)


def _is_green(tree: Tree, *module: str) -> bool:
    command = [sys.executable, "-m", *module]
    done = subprocess.run(
        command, cwd=tree.folder, env=tree.environment, capture_output=True, text=True, check=False
    )
    # Anything but red or green tests is a fault of the table.
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
