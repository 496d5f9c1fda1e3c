"""Build the CPU kernels if there is a C++ compiler; the package installs without one, too.

The library has a plain C interface and is loaded with ctypes. So the build needs no headers of
torch or Python, and one wheel per platform serves every version of both.
"""

import os
import platform
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("src/statemix/ops/cpu")
# STATEMIX_BASELINE_ONLY builds one copy instead of all, when build time matters more than speed.
X86 = platform.machine().lower() in {"x86_64", "amd64"} and not os.environ.get(
    "STATEMIX_BASELINE_ONLY"
)
# Name, register width in bytes and compiler flags of every copy of the kernels. The baselines, SSE2
# and NEON, have registers of 16 bytes.
INSTRUCTION_SETS = [("baseline", 16, [])]
if X86:
    INSTRUCTION_SETS += [
        ("avx2", 32, ["-mavx2", "-mfma"]),
        ("avx512", 64, ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]),
    ]
# A further copy for compilers that know the instructions.
BFLOAT16 = ("avx512_bf16", 64, [*INSTRUCTION_SETS[-1][2], "-mavx512bf16", "-DONLY_BFLOAT16"])


class BuildKernels(build_ext):
    """Compile the kernels once per instruction set and link them into one library.

    If the build fails, the package is installed without kernels, and a warning gives the reason.
    """

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extensions(self) -> None:
        # setuptools copies every extension in this list into the wheel, so its file must exist.
        self.extensions = [ext for ext in self.extensions if self._is_built(ext)]

    def _is_built(self, ext: Extension) -> bool:
        library = Path(self.get_ext_fullpath(ext.name))
        try:
            self._build(library)
            return True
        except subprocess.CalledProcessError as error:
            reason = f"{shlex.join(error.cmd)} failed:\n{error.stderr}"
        except OSError as error:
            reason = f"no C++ compiler could be run: {error}"
        self.warn(f"statemix will use its slower PyTorch path on the CPU: {reason}")
        # Do not install a library that was built from older sources.
        for older in (library, Path("src", self.get_ext_filename(ext.name))):
            older.unlink(missing_ok=True)
        return False

    def _build(self, library: Path) -> None:
        compiler = _compiler()
        objects = Path(self.build_temp)
        objects.mkdir(parents=True, exist_ok=True)
        library.parent.mkdir(parents=True, exist_ok=True)
        flags = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden"]
        openmp = _links([*compiler, "-fopenmp"], objects / "probe")
        if openmp:
            flags.append("-fopenmp")
        bfloat16 = X86 and _links([*compiler, "-mavx512bf16"], objects / "probe")
        copies = [BFLOAT16, *INSTRUCTION_SETS] if bfloat16 else INSTRUCTION_SETS

        def compile_source(source: str, name: str, extra: list[str]) -> str:
            target = str(objects / f"{name}.o")
            _run([*compiler, *flags, *extra, "-c", str(SOURCES / source), "-o", target])
            return target

        jobs = [
            (
                "kernels.cpp",
                name,
                [f"-DISA_NAMESPACE={name}", f"-DVECTOR_BYTES={width}", *extra],
            )
            for name, width, extra in reversed(copies)
        ]
        known = ["-DSTATEMIX_X86"] * X86 + ["-DSTATEMIX_AVX512_BF16"] * bfloat16
        jobs.append(("dispatch.cpp", "dispatch", known))
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            compiled = list(pool.map(lambda job: compile_source(*job), jobs))
        # Link under another name first: a running process must keep the library that it has loaded.
        partial = library.with_suffix(".partial")
        _run([*compiler, *flags, "-shared", *compiled, "-o", str(partial)])
        partial.replace(library)
        if not openmp:
            self.warn(f"{compiler[0]} does not support -fopenmp: the kernels will use one thread")


def _compiler() -> list[str]:
    """The command of the C++ compiler; CXX may hold several words, as in "ccache g++"."""
    command = shlex.split(os.environ.get("CXX", ""))
    found = shutil.which("g++") or shutil.which("clang++")
    if not command and found is None:
        raise FileNotFoundError("CXX is not set, and neither g++ nor clang++ is installed")
    return command or [str(found)]


def _links(command: list[str], target: Path) -> bool:
    """Whether an empty program can be compiled and linked."""
    command = [*command, "-x", "c++", "-", "-o", str(target)]
    done = subprocess.run(command, input="int main() {}", capture_output=True, text=True)
    return done.returncode == 0


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class PlatformWheel(bdist_wheel):
    """Tag the wheel only with the platform: the library does not depend on Python.

    A wheel without kernels is for any platform. pip shows the name of a wheel, but no warning of a
    build.
    """

    def get_tag(self) -> tuple[str, str, str]:
        built = self.get_finalized_command("build_ext").extensions
        return "py3", "none", super().get_tag()[2] if built else "any"


setup(
    ext_modules=[Extension("statemix.ops.cpu.kernels", sources=[])],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
