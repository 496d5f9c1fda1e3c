"""The package installs with any compiler or none, and warns about missing kernels or OpenMP."""

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from statemix.cli import doctor
from statemix.ops.cpu import loader

ROOT = Path(__file__).parents[1]
LIBRARY = "statemix/ops/cpu/kernels.so"

# Writes a dummy output file and logs its arguments.
_COMPILER = """\
import pathlib, sys
if "-fopenmp" in sys.argv and {refuses_openmp}:
    sys.exit("unknown option -fopenmp")
target = sys.argv[sys.argv.index("-o") + 1]
pathlib.Path(target).write_text("compiled")
if not target.endswith("probe"):
    with open({log!r}, "a") as log:
        print(*sys.argv[1:], file=log)
"""


@pytest.fixture
def tree(tmp_path):
    """The sources without earlier build products, where no compiler is found."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=ignored)
    (tmp_path / "no programs").mkdir()
    return tree


def test_there_are_kernels_where_there_is_a_compiler_and_only_there():
    """Otherwise a broken build would turn the tests of the kernels into skips."""
    assert (loader.unavailable() is None) == (doctor.examine()["compiler"] is not None)


def setup(tree, *arguments, cxx=None):
    environment = os.environ | {"PATH": str(tree.parent / "no programs")}
    environment.pop("CXX", None)
    if cxx is not None:
        environment["CXX"] = cxx
    done = subprocess.run(
        [sys.executable, "setup.py", *arguments],
        capture_output=True,
        text=True,
        cwd=tree,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def compiler(tree, *, refuses_openmp=False):
    """A fake compiler as a command of two words, like "ccache g++", and the log of its calls."""
    program, log = tree.parent / "a compiler.py", tree.parent / "calls"
    program.write_text(_COMPILER.format(refuses_openmp=refuses_openmp, log=str(log)))
    return shlex.join([sys.executable, str(program)]), log


@pytest.fixture
def old_library(tree):
    """A library that an older build of other sources left in the tree."""
    library = tree / "src" / LIBRARY
    library.write_text("of other sources")
    return library


def library_in_wheel(tree):
    (wheel,) = tree.glob("dist/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return LIBRARY in archive.namelist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cxx", "reason"),
    [
        (None, "CXX is not set, and neither g++ nor clang++ is installed"),
        ("no-such-compiler -O1", "No such file or directory: 'no-such-compiler'"),
        (shlex.join([sys.executable, "-c", "raise SystemExit('broken')"]), "broken"),
        ("/bin/false", "/bin/false -std=c++17"),
    ],
)
def test_without_a_working_compiler_the_package_installs_without_kernels(
    tree, old_library, cxx, reason
):
    said = setup(tree, "build_ext", "--inplace", cxx=cxx)
    assert "statemix will use its slower PyTorch path on the CPU" in said
    assert reason in said
    assert not old_library.exists()


@pytest.mark.slow
def test_a_wheel_and_an_editable_install_without_kernels_name_none(tree, old_library):
    setup(tree, "bdist_wheel")
    assert not library_in_wheel(tree)
    (wheel,) = tree.glob("dist/*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    old_library.write_text("of other sources")
    setup(tree, "editable_wheel", "--dist-dir", "dist")
    assert not old_library.exists()


@pytest.mark.slow
@pytest.mark.parametrize("refuses_openmp", [False, True])
def test_openmp_is_used_where_the_compiler_takes_it(tree, refuses_openmp):
    cxx, log = compiler(tree, refuses_openmp=refuses_openmp)
    said = setup(tree, "bdist_wheel", cxx=cxx)
    assert library_in_wheel(tree)
    calls = log.read_text().splitlines()
    # The dispatcher, the kernels at least once, and the link.
    assert len(calls) >= 3
    assert all(("-fopenmp" in call) != refuses_openmp for call in calls)
    assert ("the kernels will use one thread" in said) == refuses_openmp
