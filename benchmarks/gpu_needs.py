"""Say in one line what ``benchmarks/gpu.sh`` needs and this machine lacks; exit status 1 if so."""

import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec

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
    "hypothesis": "hypothesis",
}


def main() -> int:
    """Print what is missing."""
    missing = list(lacking(NEEDED))
    if missing:
        print(f"benchmarks/gpu.sh needs packages that are not installed: {' '.join(missing)}")
        return 1
    import torch

    if not torch.cuda.is_available():
        print("benchmarks/gpu.sh needs a GPU that PyTorch can use")
        return 1
    return 0


def lacking(modules: Iterable[str]) -> Iterator[str]:
    """Yield the packages of the modules that cannot be found."""
    return (NEEDED[module] for module in modules if find_spec(module) is None)


if __name__ == "__main__":
    sys.exit(main())
