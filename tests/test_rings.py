"""The three rings of the package, each in an environment with its declared packages alone."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from statemix.ops.cpu import loader

ROOT = Path(__file__).parents[1]
PROJECT, LABORATORY = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    for folder in (".", "laboratory")
)
SITE = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")

CORE = ("errors", "automaton", "memory", "registry", "ops", "layers", "models", "proofs")
TRAINING = ("tasks", "training", "sweeps")


def requirements(ring):
    """Return what is stated for a ring: "" is the core, others are extras or the laboratory."""
    if ring == "laboratory":
        return LABORATORY["dependencies"]
    return PROJECT["optional-dependencies"][ring] if ring else PROJECT["dependencies"]


def needed(ring):
    """Return the names of all distributions that pip installs for a ring, without statemix."""
    found = set()
    waiting = [(Requirement(text), "") for text in [*requirements(""), *requirements(ring)]]
    while waiting:
        requirement, extra = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        if name == "statemix":
            waiting += [
                (Requirement(text), "") for one in requirement.extras for text in requirements(one)
            ]
        elif name not in found or requirement.extras:
            found.add(name)
            waiting += [
                (Requirement(text), asked)
                for text in distribution(name).requires or []
                for asked in (requirement.extras or {""})
            ]
    return found


def shipped(name):
    """Return the entries of site-packages that belong to a distribution."""
    files = distribution(name).files or []
    return {
        Path(distribution(name).locate_file(one.parts[0])) for one in files if one.parts[0] != ".."
    }


# It "compiles" the kernels of this environment, which takes no minute.
COMPILER = """
import pathlib, shutil, sys
target = sys.argv[sys.argv.index("-o") + 1]
if "-shared" in sys.argv:
    shutil.copy({kernels!r}, target)
else:
    pathlib.Path(target).write_text("")
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Folders into which pip has installed wheels of statemix and of its laboratory."""
    targets = []
    compiler = tmp_path_factory.mktemp("compiler") / "compiler.py"
    compiler.write_text(COMPILER.format(kernels=str(loader.LIBRARY)))
    cxx = f"{sys.executable} {compiler}" if loader.LIBRARY.exists() else "none"
    for project in (ROOT, ROOT / "laboratory"):
        tree, target = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("installed")
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            if (project / name).exists():
                shutil.copy(project / name, tree)
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
        shutil.copytree(project / "src", tree / "src", ignore=ignored)
        pip = [sys.executable, "-m", "pip", "--quiet"]
        options = ["--no-deps", "--no-index", "--no-build-isolation"]
        build = [*pip, "wheel", *options, "--wheel-dir", tree, tree]
        subprocess.run(build, check=True, env=os.environ | {"CXX": cxx})
        (wheel,) = tree.glob("*.whl")
        subprocess.run([*pip, "install", *options[:2], "--target", target, wheel], check=True)
        targets.append(target)
    return targets


@pytest.fixture(scope="session")
def environment(installed, tmp_path_factory):
    """``environment(ring)`` makes an environment with a ring's packages; returns its Python."""
    made = {}

    def make(ring):
        if ring not in made:
            folder = tmp_path_factory.mktemp(f"environment-{ring or 'core'}")
            venv.create(folder, symlinks=True)
            library, laboratory = installed
            entries = {*library.iterdir()}.union(*map(shipped, needed(ring)))
            if ring == "laboratory":
                entries |= {*laboratory.iterdir()}
            for entry in entries:
                (folder / SITE / entry.name).symlink_to(entry)
            made[ring] = folder / "bin" / "python"
        return made[ring]

    return make


def run(python, *arguments, cwd=None):
    """Run a command of an environment, in which nothing else can be imported or executed."""
    variables = {"PATH": "", "HOME": os.environ.get("HOME", "")}
    variables |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore:statemix uses the slow backend"}
    command = [str(python), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=cwd)


@pytest.mark.slow
def test_the_examples_of_the_readme_run_from_a_wheel_without_a_compiler(environment, tmp_path):
    assert {Requirement(text).name for text in requirements("")} <= {
        "torch",
        "numpy",
        "safetensors",
    }
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert blocks
    for code in blocks:
        done = run(environment(""), "-c", code, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    backend = "from statemix import ops; print(ops.BACKENDS['cpu'].unavailable())"
    done = run(environment(""), "-c", backend, cwd=tmp_path)
    assert (done.stdout == "None\n") == loader.LIBRARY.exists(), done.stdout


@pytest.mark.slow
def test_the_core_examines_the_machine_and_explains_every_command(environment, tmp_path):
    for command in (["doctor"], ["doctor", "--json"], ["lm", "train", "--help"], ["train", "-h"]):
        done = run(environment(""), "-m", "statemix", *command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)


TRAIN = shlex.split(
    """
    --task permutation group=S_2 length=8 train_size=20 --model.hidden-size 8 --model.bos
    --model.layers bd_lru num_blocks=2 block_size=2 --batches.size 20 --schedules.epochs 1
    --evaluation.test-size 8 --evaluation.validation-size 8 --runtime.device cpu
    """
)


@pytest.mark.slow
def test_the_training_ring_trains_evaluates_and_certifies(environment, tmp_path):
    for command in (
        ["train", "--folder", "run", *TRAIN],
        ["train", "--folder", "grid", *TRAIN, "--grid", "seed=0,1"],
        ["evaluate", "run", "--lengths", "16"],
        ["certify", "run"],
        ["tasks"],
    ):
        done = run(environment("train"), "-m", "statemix", *command, cwd=tmp_path)
        # After one epoch, nothing is proven.
        assert done.returncode == (command[0] == "certify"), (command, done.stderr)
    assert (tmp_path / "run" / "certificate.json").exists()


@pytest.mark.slow
def test_the_laboratory_reports_from_an_installation(environment, tmp_path):
    for command in (["reproduce", "table4", "--dry-run"], ["report", "cells", "--help"]):
        done = run(environment("laboratory"), "-m", "statemix", *command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ring", "command", "extra"),
    [
        ("", "train", "'statemix[train]'"),
        ("train", "lm", "'statemix[lm]'"),
        ("train", "reproduce", "./laboratory"),
    ],
)
def test_a_command_without_its_packages_names_what_brings_them_in_one_line(
    environment, tmp_path, ring, command, extra
):
    done = run(environment(ring), "-m", "statemix", command, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"pip install {extra}" in done.stderr


# Kernels need Triton, which only some machines have, or are a library of their own.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
import torch
torch.compile  # what torch itself imports
before = set(sys.modules)
for name in sys.argv[1:]:
    module = importlib.import_module(f"statemix.{name}")
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
        if not found.name.endswith(".kernels") and ".kernels." not in found.name:
            importlib.import_module(found.name)
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


@pytest.mark.parametrize(
    ("ring", "outer", "modules"), [("", "train", CORE), ("train", "laboratory", TRAINING)]
)
def test_a_ring_imports_no_package_of_the_next(ring, outer, modules):
    code = [sys.executable, "-c", IMPORT_ALL, *modules]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    owners = packages_distributions()
    pulled = {
        re.sub(r"[-_.]+", "-", owner).lower()
        for name in json.loads(done.stdout)
        for owner in owners.get(name, [])
    }
    assert not pulled & (needed(outer) - needed(ring))


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import statemix", {"torch", "numpy"}),
        ("from statemix import BDLRU", {"triton", "torch._inductor", "torch._dynamo", "sympy"}),
        ("import statemix.memory as m; m.available_bytes()", {"torch"}),
    ],
)
def test_imports_are_as_light_as_they_can_be(code, unwanted):
    command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not unwanted & set(done.stdout.split())
