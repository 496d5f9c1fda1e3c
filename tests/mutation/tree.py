"""A copy of the working tree to mutate."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = "src/statemix/ops/cpu/kernels.so"


def say(line: str) -> None:
    """Print a line and flush it."""
    print(line, flush=True)  # noqa: T201 - the output of a script


class Tree:
    """A copy of the working tree and the environment of the tests that run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # No bytecode: Python would reuse it after an edit of equal length within the same second.
        self.environment = os.environ | {
            "PYTHONPATH": str(folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "STATEMIX_BASELINE_ONLY": "1",
            "OMP_NUM_THREADS": "1",
        }
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in (*filter(None, listed.stdout.split("\0")), KERNELS):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
