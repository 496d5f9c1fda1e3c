"""Provenance names the code, versions and machine, or reports them as unknown."""

import importlib.metadata
import platform
import subprocess

import pytest
import torch

from statemix import ops, provenance


def test_versions_are_those_that_run(monkeypatch):
    monkeypatch.setattr(provenance, "_PACKAGES", ("torch", "statemix", "no-such-package"))
    described = provenance.describe()
    assert described["python"] == platform.python_version()
    versions = {"torch": torch.__version__, "statemix": importlib.metadata.version("statemix")}
    assert described["packages"] == versions | {"no-such-package": None}
    assert described["cpu"]
    assert described["cpu_count"] >= 1


def test_a_backend_that_cannot_run_has_no_detail():
    ops.BACKENDS.register(ops.Backend("abacus", unavailable=lambda: "no beads"))
    ops.BACKENDS.register(ops.Backend("slate", detail=lambda: "chalk"))
    try:
        described = provenance.describe()["backends"]
    finally:
        ops.BACKENDS.remove("abacus")
        ops.BACKENDS.remove("slate")
    assert list(described) == [*ops.BACKENDS, "abacus", "slate"]
    assert (described["abacus"], described["slate"]) == (None, "chalk")


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch):
    monkeypatch.delenv(provenance.COMMIT, raising=False)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of one commit that tracks a copy of the module."""

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    module = tmp_path / "src" / "provenance.py"
    module.parent.mkdir()
    module.write_text("")
    git("init")
    git("add", ".")
    git("commit", "--message", "first")
    monkeypatch.setattr(provenance, "__file__", str(module))
    return tmp_path, git("rev-parse", "HEAD")


def commit():
    described = provenance.describe()
    return described["commit"], described["tree_clean"]


def test_a_checkout_has_a_commit_and_results_do_not_make_it_dirty(checkout):
    folder, head = checkout
    assert commit() == (head, True)
    (folder / "laboratory" / "results").mkdir(parents=True)
    (folder / "laboratory" / "results" / "ops.jsonl").write_text("{}")
    assert commit() == (head, True)
    (folder / "src" / "provenance.py").write_text("changed")
    assert commit() == (head, False)


def test_an_installed_copy_inside_another_checkout_has_no_commit(checkout, monkeypatch):
    folder, _ = checkout
    (folder / ".venv").mkdir()
    (folder / ".venv" / "provenance.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(folder / ".venv" / "provenance.py"))
    assert commit() == (None, None)


def test_a_copy_has_the_commit_that_the_environment_names(checkout, monkeypatch):
    _, head = checkout
    monkeypatch.setenv(provenance.COMMIT, "1234567")
    # What the repository says is better.
    assert commit() == (head, True)
    monkeypatch.setenv("PATH", "")
    assert commit() == ("1234567", None)
    monkeypatch.setenv(provenance.COMMIT, "")
    assert commit() == (None, None)
