"""Provenance of a result: commit, versions, machine."""

import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from statemix.ops import backends

COMMIT = "STATEMIX_COMMIT"
"""Environment variable that names the commit of a copy without its repository."""

_PACKAGES = (
    "statemix",
    "torch",
    "numpy",
    "safetensors",
    "lightning-fabric",
    # Their kernels serve on GPUs.
    "triton",
    "flash-linear-attention",
    "fla-core",
)


def describe() -> dict[str, Any]:
    """Describe the code, packages and machine that every result depends on.

    Returns:
        ``commit`` and ``tree_clean`` of the checkout (both None for an installed package; for a
        copy without its repository, ``commit`` is the variable :data:`COMMIT`, if it is set);
        ``python``, ``packages``, ``platform``, ``cpu``, ``cpu_count`` and ``backends``, with None
        for packages that are not installed and backends that cannot run here.
    """
    commit, clean = _commit(Path(__file__))
    return {
        "commit": commit,
        "tree_clean": clean,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "backends": backends.details(),
    }


def _commit(file: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout that tracks ``file``, and whether its tree is clean.

    Changes in ``laboratory/results`` are ignored: a benchmark appends to it while it runs.
    """

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(file.parent), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # No checkout tracks an installed package, even one inside the checkout of another project.
    if git("ls-files", "--error-unmatch", file.name) is None:
        return os.environ.get(COMMIT) or None, None
    changes = git("status", "--porcelain", "--", ":/", ":(top,exclude)laboratory/results")
    return git("rev-parse", "HEAD"), changes == ""


def version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
