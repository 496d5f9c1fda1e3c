"""Say what ``benchmarks/gpu.sh`` needs and this machine lacks; exit status 1 if so.

All that is missing is named at once, with the command that fetches the wheels where there is a
network.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

# Modules that ``statemix bench`` and the tests of the kernels import, by the packages they are in.
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "safetensors": "safetensors",
    "rich": "rich",
    "tyro": "tyro",
    "docstring_parser": "docstring-parser",
    "typeguard": "typeguard",
    "typing_extensions": "typing-extensions",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "typing_inspection": "typing-inspection",
    "annotated_types": "annotated-types",
    "filelock": "filelock",
    "triton": "triton",
    "pytest": "pytest",
    "pluggy": "pluggy",
    "iniconfig": "iniconfig",
    "packaging": "packaging",
    "pygments": "pygments",
    "hypothesis": "hypothesis",
    "sortedcontainers": "sortedcontainers",
}
# Without these it measures less: tests run one after another, and without kernels of peers.
USED = {
    "xdist": "pytest-xdist",
    "execnet": "execnet",
    "fla": "fla-core",
    "einops": "einops",
}


def main() -> int:
    """Print what is missing."""
    missing, useful = list(lacking(NEEDED)), list(lacking(USED))
    if missing:
        print(f"benchmarks/gpu.sh needs packages that are not installed: {' '.join(missing)}")
    if useful:
        print(f"benchmarks/gpu.sh runs less without: {' '.join(useful)}")
    if missing or useful:
        print(_cure([*missing, *useful]))
    tools = list(_lacking_tools())
    for tool in tools:
        print(f"benchmarks/gpu.sh needs {tool}, which Triton compiles its launchers with")
    if missing or tools:
        return 1
    import torch

    if not torch.cuda.is_available():
        print("benchmarks/gpu.sh needs a GPU that PyTorch can use")
        return 1
    return 0


def lacking(modules: Iterable[str]) -> Iterator[str]:
    """Yield the packages of the modules that cannot be found."""
    return ((NEEDED | USED)[module] for module in modules if find_spec(module) is None)


def _cure(packages: Iterable[str]) -> str:
    """Return the words that say how to bring the packages."""
    major, minor = sys.version_info[:2]
    return (
        "Fetch them where there is a network, in the versions that fit each other:\n"
        f"  pip download --no-deps --only-binary :all: --python-version {major}.{minor} "
        f"-c constraints.txt -d wheels {' '.join(packages)}\n"
        "then bring the folder and run WHEELS=wheels benchmarks/gpu.sh"
    )


def _lacking_tools() -> Iterator[str]:
    """Yield what is missing to compile a C extension."""
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang")))):
        yield "a C compiler (gcc, clang or the one that CC names)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        yield f"the headers of Python ({header})"


if __name__ == "__main__":
    sys.exit(main())
