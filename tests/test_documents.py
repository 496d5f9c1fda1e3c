"""Every code block of the documents runs, and every link target exists."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from statemix.cli import main
from statemix.layers import LAYERS
from statemix.training import RunConfig, config_from_plain
from statemix.training.config import SCHEMA

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!#)([^)\s]+)\)")


def blocks(language):
    return [
        pytest.param(code, id=f"{path.name}-{number}")
        for path in DOCUMENTS
        for number, (kind, code) in enumerate(BLOCK.findall(path.read_text()))
        if kind == language
    ]


def commands_in_text():
    return [block for block in blocks("text") if block.values[0].startswith("statemix ")]


def test_every_block_has_a_language_that_is_tested():
    kinds = {kind for path in DOCUMENTS for kind, _ in BLOCK.findall(path.read_text())}
    assert kinds <= {"python", "console", "text", "toml"}


@pytest.fixture
def layers_restored():
    """Remove the layers that a block registers."""
    before = set(LAYERS)
    yield
    for name in set(LAYERS) - before:
        LAYERS.remove(name)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, tmp_path, layers_restored):
    exec(compile(code, "block", "exec"), {"folder": tmp_path / "run"})


@pytest.mark.parametrize("code", blocks("toml"))
def test_configuration_files_are_right(code):
    config = config_from_plain(tomllib.loads(code))
    assert config.resolved().asked()["model"]["layers"]


@pytest.mark.parametrize("code", blocks("console"))
def test_commands_exist(code, tmp_path, monkeypatch, capsys):
    """Statemix commands run; make targets are only resolved, and installs are skipped."""
    monkeypatch.chdir(tmp_path)
    for line in code.splitlines():
        program, *arguments = shlex.split(line)
        if program == "statemix":
            assert main.main(arguments) == 0
            printed = capsys.readouterr().out
        elif program == "make":
            command = ["make", "--dry-run", "--directory", str(ROOT), *arguments]
            printed = subprocess.check_output(command, text=True, timeout=120)
        else:
            assert program == "pip"
            continue
        assert printed, f"{line} must print something"


@pytest.mark.parametrize("code", commands_in_text())
def test_commands_that_would_take_long_are_understood(code, tmp_path, monkeypatch):
    """Parse their options, next to a stored run of the name that they use."""
    monkeypatch.chdir(tmp_path)
    Path("runs/s3").mkdir(parents=True)
    stored = {"schema": SCHEMA, "asked": RunConfig(seed=3).asked(), "resolved": {}}
    Path("runs/s3/config.json").write_text(json.dumps(stored))
    for line in code.replace("\\\n", " ").splitlines():
        _, name, *arguments = shlex.split(line)
        command = main.parse(name, arguments)
        # A benchmark is the class of its own name.
        assert type(command).__name__ == (
            arguments[0].capitalize() if name == "bench" else main.COMMANDS[name][0]
        )


def test_the_versions_are_those_of_the_project():
    readme = " ".join((ROOT / "README.md").read_text().split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = project["requires-python"].removeprefix(">=")
    (torch,) = [one for one in project["dependencies"] if one.startswith("torch>=")]
    stated = f"Python {least} or newer and PyTorch {torch.removeprefix('torch>=')} or newer"
    assert stated in readme

    prefix = "Programming Language :: Python :: 3."
    (python,) = [one for one in project["classifiers"] if one.startswith(prefix)]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    tested = f"Python {python.split()[-1]}, PyTorch {pins['torch']} and NumPy {pins['numpy']}"
    contributing = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    assert f"The tests run with {tested} (" in contributing


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_readme_tracks_parity_and_recalls_the_first_token(seed):
    """The block asserts both: parity of 8,192 bits and the first of 200 tokens."""
    readme = (ROOT / "README.md").read_text()
    (code,) = [code for kind, code in BLOCK.findall(readme) if "torch.manual_seed(0)" in code]
    exec(code.replace("manual_seed(0)", f"manual_seed({seed})"), {})


def test_what_layers_cost_is_what_was_measured():
    path = ROOT / "results" / "fixed_point" / "costs.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = {(row["model"], row["work"]): row for row in rows}
    table = re.findall(
        r"^\| (.+) \| ([\d,]+) \| (\d+) MB \| ([\d,]+) \| ([\d,]+) \|$",
        (ROOT / "docs" / "choosing.md").read_text(),
        re.MULTILINE,
    )
    assert len(table) == 8
    for model, training, memory, short, long in table:
        works = {"train": training, "answer": short, "answer long": long}
        for work, stated in works.items():
            measured = found[model, work]["tokens_per_s"]
            assert int(stated.replace(",", "")) == float(f"{measured:.2g}")
        assert int(memory) == round(found[model, "train"]["memory_bytes"] / 1e6)
