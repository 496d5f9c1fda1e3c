"""``statemix doctor`` describes this machine and explains why a backend is not used."""

import dataclasses
import json
import platform
import subprocess
import sys

import pytest
import torch

from statemix import ops
from statemix.cli import doctor
from statemix.cli.main import main
from statemix.ops.cpu import loader
from statemix.ops.triton import selfcheck


def run(capsys, *arguments):
    code = main(["doctor", *arguments])
    return code, capsys.readouterr().out


@pytest.fixture
def backend_without_beads():
    reason = "backend 'abacus' needs beads: buy some"
    ops.BACKENDS.register(ops.Backend("abacus", {"block": None}, unavailable=lambda: reason))
    yield reason
    ops.BACKENDS.remove("abacus")


def test_json_holds_versions_machine_and_who_serves_what(capsys, backend_without_beads):
    code, out = run(capsys, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["packages"]["torch"] == torch.__version__
    assert "triton" in found["packages"]
    assert found["python"] == platform.python_version()
    assert found["threads"] == torch.get_num_threads()
    assert found["devices"]["cpu"] == found["cpu"]
    rows = {(row["operator"], row["device"], row["dtype"]): row for row in found["operators"]}
    for (operator, device, dtype), row in rows.items():
        assert row["backend"] == ops.default_backend(device, operator, getattr(torch, dtype))
        assert row["others"].keys() == ops.BACKENDS.keys() - {row["backend"]}
        assert all(row["others"].values())
    assert rows["block", "cpu", "float32"]["others"]["abacus"] == backend_without_beads
    assert "no kernel of operator 'lag'" in rows["lag", "cpu", "float32"]["others"]["abacus"]


def test_it_needs_pytorch_and_numpy_alone():
    code = (
        "import sys\n"
        "for name in ('pydantic', 'annotated_types', 'rich', 'safetensors', 'lightning_fabric'):\n"
        "    sys.modules[name] = None\n"
        "from statemix.cli.main import main\n"
        "assert main(['doctor']) == main(['doctor', '--json']) == 0\n"
        "assert main(['doctor', '--jsn']) == 2"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("got --jsn; did you mean '--json'?\n")


def test_text_names_backends_and_reasons(capsys, monkeypatch, backend_without_beads):
    reason = "backend 'triton' needs Triton: pip install 'statemix[gpu]'"
    triton = dataclasses.replace(ops.BACKENDS["triton"], unavailable=lambda: reason)
    monkeypatch.setitem(ops.BACKENDS._entries, "triton", triton)
    code, out = run(capsys)
    assert code == 0
    assert f"- {backend_without_beads}\n" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["backend", "abacus", "unavailable"] in lines
    assert ["block", "cpu", "float32", ops.default_backend("cpu")] in lines
    # What cannot run here at all has that one reason.
    assert f"- {reason}\n" in out
    assert "backend 'triton' needs tensors" not in out


@pytest.mark.parametrize(
    ("program", "cxx", "words"), [("clang++", "", ""), ("launcher", "launcher 'my g++'", "my g++ ")]
)
def test_the_compiler_is_the_one_that_would_build_the_kernels(
    capsys, monkeypatch, tmp_path, program, cxx, words
):
    """All words are run: the version is that of the compiler, not that of its launcher."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", cxx)
    (tmp_path / program).write_text('#!/bin/sh\necho version of "$@"\n')
    (tmp_path / program).chmod(0o755)
    _, out = run(capsys, "--json")
    path = f"{tmp_path}/{cxx or program}"
    assert json.loads(out)["compiler"] == {"path": path, "version": f"version of {words}--version"}


@pytest.mark.parametrize(
    ("cxx", "cure"),
    [
        ("", "install g++ or clang++, then repeat `pip install .`"),
        ("'g++", 'correct or unset CXX="\'g++", then repeat `pip install .`'),
        ("true", "repeat `pip install -v .`: its output shows why the compiler failed"),
    ],
)
def test_missing_kernels_are_reported_with_the_cure(capsys, monkeypatch, tmp_path, cxx, cure):
    _, reason = loader.load(tmp_path / "kernels.so")
    monkeypatch.setattr(loader, "_reason", reason)
    monkeypatch.setenv("PATH", "/usr/bin" if cxx == "true" else str(tmp_path))
    monkeypatch.setenv("CXX", cxx)
    code, out = run(capsys)
    assert code == 0
    assert "The CPU kernels are missing" in out
    assert f"\nTo get them, {cure}" in out


@pytest.mark.kernels
def test_a_check_compares_all_kernels_with_the_reference(capsys):
    code, out = run(capsys, "--check")
    assert code == 0
    cases = (*selfcheck.complete_cases(), "selective scan")
    rows = [line for line in out.splitlines() if line.startswith("cpu     cpu     agrees ")]
    assert len(rows) > 50
    assert all(str(case) in row for case, row in zip(cases, rows, strict=True))
    assert "missing" not in out


@pytest.mark.kernels
@pytest.mark.parametrize("outcome", ["disagrees", "fails", "needs memory"])
def test_a_check_that_fails_is_the_exit_code(capsys, monkeypatch, outcome):
    def check(device, backend):
        yield selfcheck.CheckVerdict("block softmax m=2", "agrees", "")
        yield selfcheck.CheckVerdict("block softmax m=3", outcome, "because")

    monkeypatch.setattr(doctor, "check_kernels", check)
    code = main(["doctor", "--check", "--json"])
    captured = capsys.readouterr()
    last = json.loads(captured.out)["checks"][1]
    assert (last["backend"], last["outcome"], last["detail"]) == ("cpu", outcome, "because")
    if outcome == "needs memory":
        assert (code, captured.err) == (0, "")
    else:
        said = "statemix: 1 of 3 checks failed; please report this output\n"
        assert (code, captured.err) == (1, said)
