"""Run pytest in children of a process that has already imported what takes long to import.

The process itself never imports statemix: each child imports it from the copy of the tree that it
runs in.
"""

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import coverage
import filelock  # noqa: F401 - for the children, as are the others marked so
import lightning_fabric  # noqa: F401
import matplotlib as mpl  # noqa: F401
import numpy as np  # noqa: F401
import pydantic  # noqa: F401
import pytest
import rich  # noqa: F401
import safetensors.torch  # noqa: F401
import torch._dynamo  # noqa: F401
import transformers.modeling_utils  # noqa: F401
from tree import ROOT, Tree

OPTIONS = (
    "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist",
    # transformers imports a plugin of pytest.
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
MEMORY_LIMIT_BYTES = 6 * 2**30
JUDGE_FAILED = 70  # exit code of a child that raised outside of imports and tests
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Work:
    """What one child does: run ``files``, their tests in the order of ``rank`` (None: not at all).

    ``prepare`` changes the tree before and ``tidy`` restores it behind the child.
    """

    files: tuple[str, ...]
    rank: Callable[[str], float | None] = lambda _: 0.0
    stop_at_first: bool = True
    record: bool = False
    limit_s: float = 900.0
    prepare: Callable[[Tree], object] = lambda _: None
    tidy: Callable[[Tree], object] = lambda _: None
    tag: Any = None


@dataclass
class Result:
    """What came of it: the first red test or None, seconds, and what was recorded."""

    red: str | None
    seconds: float
    tests: dict[str, Any] = field(default_factory=dict)
    output: str = ""


class Observer:
    """A pytest plugin: choose tests, note the first that fails, record what each executes."""

    def __init__(self, tree: Tree, work: Work) -> None:
        self.tree, self.work = tree, work
        self.red: str | None = None
        self.tests: dict[str, Any] = {}
        self.coverage = None
        if work.record:
            source = [str(tree.folder / "src" / "statemix")]
            self.coverage = coverage.Coverage(data_file=None, config_file=False, source=source)
            self.coverage.start()

    def pytest_collection_modifyitems(self, items):
        ranks = {item: self.work.rank(item.nodeid) for item in items}
        items[:] = [item for item in items if ranks[item] is not None]
        items.sort(key=ranks.__getitem__)

    def pytest_collectreport(self, report):
        if report.failed:
            self.red = self.red or f"{report.nodeid} (collection)"

    def pytest_runtest_logstart(self, nodeid):
        if self.coverage is not None:
            self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        test = self.tests.setdefault(report.nodeid, {"seconds": 0.0})
        test["seconds"] += report.duration
        if report.failed:
            self.red = self.red or report.nodeid

    def pytest_runtest_logfinish(self):
        if self.coverage is not None:
            self.coverage.switch_context("")

    def recorded(self) -> dict[str, Any]:
        """Per test its seconds and the lines it executed; under "" those executed at import."""
        if self.coverage is None:
            return self.tests
        self.coverage.stop()
        data = self.coverage.get_data()
        for measured in data.measured_files():
            file = str(Path(measured).relative_to(self.tree.folder))
            for line, tests in data.contexts_by_lineno(measured).items():
                for nodeid in tests:
                    test = self.tests.setdefault(nodeid, {"seconds": 0.0})
                    test.setdefault("lines", {}).setdefault(file, []).append(line)
        return self.tests


@dataclass
class Child:
    """A running child."""

    pid: int
    tree: Tree
    work: Work
    started: float
    reading: int
    output: bytearray = field(default_factory=bytearray)

    def verdict(self) -> Result | None:
        """The result, or None while it runs; a child over its limits is killed."""
        self._read()
        seconds = time.monotonic() - self.started
        done, status = os.waitpid(self.pid, os.WNOHANG)
        red = None
        if not done:
            if seconds > self.work.limit_s:
                red = "(time limit)"
            elif _resident_bytes(self.pid) > MEMORY_LIMIT_BYTES:
                red = "(memory limit)"
            else:
                return None
        _kill_group(self.pid)
        if not done:
            os.waitpid(self.pid, 0)
        self.work.tidy(self.tree)
        self._read()
        os.close(self.reading)
        output = self.output.decode(errors="replace")
        if red is not None:
            return Result(red, seconds, output=output)
        if os.WIFSIGNALED(status):
            return Result(f"(signal {os.WTERMSIG(status)})", seconds, output=output)
        try:
            written = json.loads(_answer(self.tree).read_text())
        except FileNotFoundError:
            code = os.waitstatus_to_exitcode(status)
            if code == JUDGE_FAILED:
                raise SystemExit(
                    f"the process that runs the tests failed itself:\n{output}"
                ) from None
            return Result(f"(exit code {code} outside of a test)", seconds, output=output)
        if written["stopped"] is not None:
            raise SystemExit(written["stopped"])
        return Result(written["red"], seconds, written["tests"], output)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while piece := os.read(self.reading, 2**16):
                self.output += piece


def run_all(works: Iterable[Work], trees: list[Tree]) -> Iterator[tuple[Work, Result]]:
    """Do the work in one child per tree at a time; yield the results as they come."""
    waiting = iter(works)
    free, running = list(trees), []
    try:
        while True:
            while free and (work := next(waiting, None)) is not None:
                running.append(_start(free.pop(), work))
            if not running:
                return
            for child in list(running):
                if (result := child.verdict()) is not None:
                    running.remove(child)
                    free.append(child.tree)
                    yield child.work, result
            time.sleep(0.02)
    finally:
        for child in running:
            _kill_group(child.pid)


def _start(tree: Tree, work: Work) -> Child:
    work.prepare(tree)
    _answer(tree).unlink(missing_ok=True)
    # A pipe, because a test limits how much its process may write to files.
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        try:
            _child(tree, work, writing)
        except BaseException:  # noqa: BLE001 - the child must not return into its parent's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(JUDGE_FAILED)
    os.close(writing)
    return Child(pid, tree, work, time.monotonic(), reading)


def _child(tree: Tree, work: Work, writing: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(tree.environment)
    os.chdir(tree.folder)
    ours = (str(ROOT), str(Path(__file__).parent))
    source = str(tree.folder / "src")
    sys.path[:] = [source, *(path for path in sys.path if not path.startswith(ours))]
    sys.dont_write_bytecode = True
    # Processes that a test spawns would import this script again.
    sys.modules["__main__"] = ModuleType("__main__")
    observer = Observer(tree, work)
    stopped = None
    try:
        # Before pytest does: alone, it imports the modules of a package in an order that fails.
        _import_from(tree)
    except SystemExit as wrong:
        stopped = str(wrong)
    except Exception as error:  # noqa: BLE001 - a mutant can raise anything
        observer.red = f"(import: {type(error).__name__})"
    if work.files and observer.red is None and stopped is None:  # Without files, pytest runs all.
        options = [*OPTIONS, *(["-x"] if work.stop_at_first else [])]
        code = pytest.main([*options, *work.files], plugins=[observer])
        if observer.red is None and code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            observer.red = f"(exit code {int(code)} of pytest)"
    answer = {"red": observer.red, "tests": observer.recorded(), "stopped": stopped}
    _answer(tree).write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


def _import_from(tree: Tree) -> None:
    """Import what the tests are about, and check that it comes from the copy."""
    found = Path(importlib.import_module("statemix.training").__file__)
    if tree.folder not in found.parents:
        raise SystemExit(f"tests would import {found}, not the copy in {tree.folder}")


def _answer(tree: Tree) -> Path:
    return tree.folder.with_suffix(".json")


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
