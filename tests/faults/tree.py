"""A copy of the working tree to break."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = Path("src/statemix/ops/cpu")
# A fault may make a test run forever, which counts as noticed.
TIME_LIMIT_S = 900


class Tree:
    """A copy of the working tree to insert faults into."""

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
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def build(self) -> None:
        """Build the kernels for one instruction set."""
        self._checked([sys.executable, "setup.py", "-q", "build_ext", "--inplace"])

    def check_import(self) -> None:
        """Check that tests import this tree and its kernels, not an installed package."""
        code = "import statemix.ops.cpu as c; print(c.__file__, c.instruction_set())"
        found = self._checked([sys.executable, "-c", code]).split()
        expected = [str(self.folder / KERNELS / "__init__.py"), "baseline"]
        if found != expected:
            raise SystemExit(f"tests would import {found}, not {expected}")

    def first_red(self, tests: tuple[str, ...], *, interpreted: bool = False) -> str | None:
        """The first test that fails, or None if all pass; Triton's kernels may be interpreted."""
        options = ["-q", "-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:xdist"]
        try:
            result = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=self.folder,
                env=self.environment | ({"TRITON_INTERPRET": "1"} if interpreted else {}),
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "(time limit)"
        if result.returncode == 0:
            return None
        red = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", result.stdout, re.MULTILINE)
        if red is not None:
            return red[1]
        if result.returncode < 0:
            return f"(signal {-result.returncode})"
        raise SystemExit(f"pytest could not run:\n{result.stdout}{result.stderr}")

    def _checked(self, command: list[str]) -> str:
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
        return result.stdout
