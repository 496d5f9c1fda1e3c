"""Rows of results: one line of JSON per measurement, with everything needed to judge it."""

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch


def provenance() -> dict[str, Any]:
    """Where and how this process measures: commit, command, versions, device, threads, time."""
    commit, clean = _commit(Path(__file__))
    return {
        "commit": commit,
        "tree_clean": clean,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {
            "statemix": importlib.metadata.version("statemix"),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "device": {"type": "cpu", "name": _cpu_name(), "cores": os.cpu_count()},
        "threads": torch.get_num_threads(),
        "omp_proc_bind": os.environ.get("OMP_PROC_BIND"),
        "started_utc": _now(),
    }


def open_for_append(path: Path) -> None:
    """Create ``path`` if need be and make sure that rows can be appended, before measuring.

    Raises:
        ValueError: if they cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ValueError(
            f"output must be a file that can be written, got {str(path)!r} ({error.strerror})"
        ) from error


def append(path: Path, rows: Iterable[Mapping[str, Any]], provenance: Mapping[str, Any]) -> None:
    """Append rows, each with the clock time and ``provenance``; nothing is ever overwritten."""
    context = {"measured_utc": _now(), **provenance}
    text = "".join(json.dumps({**row, **context}, allow_nan=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _commit(file: Path) -> tuple[str | None, bool | None]:
    """The commit of the checkout that tracks ``file`` and whether its tree is clean.

    Results do not count as changes: a benchmark appends to them while it runs. Both are None for
    an installed package, even if it is installed inside the checkout of something else.
    """

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(file.parent), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", file.name) is None:
        return None, None
    changes = git("status", "--porcelain", "--", ":/", ":(top,exclude)results")
    return git("rev-parse", "HEAD"), changes == ""


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
