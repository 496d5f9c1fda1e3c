"""Build the CPU kernels where a C++ compiler is at hand; without one the package installs as well.

The library has a plain C interface (ctypes loads it), so that neither torch nor Python headers are
needed here and one wheel per platform serves every version of Python and torch.
"""

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("src/statemix/ops/cpu")
# STATEMIX_BASELINE_ONLY builds one copy instead of three, for experiments that need no speed.
X86 = platform.machine().lower() in {"x86_64", "amd64"} and not os.environ.get(
    "STATEMIX_BASELINE_ONLY"
)
# Name, register width in bytes and compiler flags of every copy of the kernels. Two registers of
# 16 bytes would serve no better on the baseline: SSE2 and NEON have 16.
INSTRUCTION_SETS = [("baseline", 16, [])]
if X86:
    INSTRUCTION_SETS += [
        ("avx2", 32, ["-mavx2", "-mfma"]),
        ("avx512", 64, ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]),
    ]


class BuildKernels(build_ext):
    """Compile the kernels once per instruction set and link them into one library."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            self.warn("no C++ compiler found: statemix will use its slower PyTorch path on the CPU")
            return
        flags = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden"]
        if sys.platform == "linux":
            flags.append("-fopenmp")
        objects = Path(self.build_temp)
        objects.mkdir(parents=True, exist_ok=True)
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)

        def compile_source(source: str, name: str, extra: list[str]) -> str:
            target = str(objects / f"{name}.o")
            subprocess.run(
                [compiler, *flags, *extra, "-c", str(SOURCES / source), "-o", target], check=True
            )
            return target

        jobs = [
            (
                "kernels.cpp",
                name,
                [f"-DISA_NAMESPACE={name}", f"-DVECTOR_BYTES={width}", *extra],
            )
            for name, width, extra in reversed(INSTRUCTION_SETS)
        ]
        jobs.append(("dispatch.cpp", "dispatch", ["-DSTATEMIX_X86"] if X86 else []))
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            compiled = list(pool.map(lambda job: compile_source(*job), jobs))
        # Linked under another name first: a running process keeps the library that it has loaded.
        partial = library.with_suffix(".partial")
        subprocess.run([compiler, *flags, "-shared", *compiled, "-o", str(partial)], check=True)
        partial.replace(library)


class PlatformWheel(bdist_wheel):
    """Tag the wheel for the platform alone: the library knows nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("statemix.ops.cpu.kernels", sources=[])],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
