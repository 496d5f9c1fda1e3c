"""Run pytest in one child process per copy of the tree; note the first red test, and what ran."""

import json
import os
import queue
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tree import Tree

OPTIONS = (
    "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist",
    # transformers imports a plugin of pytest.
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
MEMORY_LIMIT_BYTES = 6 * 2**30


@dataclass
class Work:
    """What a child does: run ``files`` and record the lines that each test executes; or judge.

    To judge, it runs the tests of ``seconds``, the quickest first, until one fails. Tests that are
    not ``known``, such as those that a mutant renames, count, too. ``prepare`` changes the tree
    before and ``tidy`` restores it behind the child.
    """

    files: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)
    known: tuple[str, ...] = ()
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


def run_all(works: Iterable[Work], trees: list[Tree]) -> Iterator[tuple[Work, Result]]:
    """Do the work in one child per tree at a time; yield the results in order."""
    free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    running: set[int] = set()
    for tree in trees:
        free.put(tree)

    def do(work: Work) -> tuple[Work, Result]:
        tree = free.get()
        work.prepare(tree)
        try:
            return work, _run(tree, work, running)
        finally:
            work.tidy(tree)
            free.put(tree)

    pool = ThreadPoolExecutor(len(trees))
    try:
        yield from pool.map(do, works)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for pid in tuple(running):
            _kill_group(pid)


def _run(tree: Tree, work: Work, running: set[int]) -> Result:
    # Without files, pytest would run all.
    if not work.files:
        return Result(None, 0.0)
    told = tree.folder.with_suffix(".json")
    asked = {name: getattr(work, name) for name in ("files", "seconds", "known", "record")}
    told.write_text(json.dumps(asked))
    begun, output = time.monotonic(), ""
    with subprocess.Popen(
        [sys.executable, __file__, str(told), str(tree.folder)],
        cwd=tree.folder, env=tree.environment, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as child:  # fmt: skip
        running.add(child.pid)
        try:
            output, _ = child.communicate(timeout=work.limit_s)
        except subprocess.TimeoutExpired:
            return Result("(time limit)", time.monotonic() - begun)
        finally:
            _kill_group(child.pid)
            running.discard(child.pid)
    seconds, answer = time.monotonic() - begun, json.loads(told.read_text())
    if "tests" not in answer:
        red = f"(exit code {child.returncode} outside of a test)"
        return Result(red, seconds, output=output)
    return Result(answer["red"], seconds, answer["tests"], output)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class Observer:
    """A pytest plugin: choose tests, note the first that fails, record what each executes."""

    def __init__(self, asked: dict[str, Any], folder: Path) -> None:
        self.asked, self.folder = asked, folder
        self.red: str | None = None
        self.tests: dict[str, Any] = {}
        self.coverage = None
        if asked["record"]:
            import coverage

            source = [str(folder / "src" / "statemix")]
            self.coverage = coverage.Coverage(data_file=None, config_file=False, source=source)
            self.coverage.start()

    def pytest_collection_modifyitems(self, items):
        if not self.asked["record"]:
            seconds, known = self.asked["seconds"], {*self.asked["known"]}
            items[:] = [one for one in items if one.nodeid in seconds or one.nodeid not in known]
            items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))

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
            file = str(Path(measured).relative_to(self.folder))
            for line, tests in data.contexts_by_lineno(measured).items():
                for nodeid in tests:
                    test = self.tests.setdefault(nodeid, {"seconds": 0.0})
                    test.setdefault("lines", {}).setdefault(file, []).append(line)
        return self.tests


def _child(told: Path, folder: Path) -> None:
    import pytest

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    # Its own folder is that of this script.
    sys.path[0] = str(folder)
    asked = json.loads(told.read_text())
    observer = Observer(asked, folder)
    options = [*OPTIONS, *([] if asked["record"] else ["-x"])]
    try:
        # Before pytest does: alone, it imports the modules of a package in an order that fails.
        import statemix.training
    except Exception as error:  # noqa: BLE001 - a mutant can raise anything
        observer.red = f"(import: {type(error).__name__})"
    else:
        assert folder in Path(statemix.training.__file__).parents
        code = pytest.main([*options, *asked["files"]], plugins=[observer])
        if observer.red is None and code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            observer.red = f"(exit code {int(code)} of pytest)"
    told.write_text(json.dumps({"red": observer.red, "tests": observer.recorded()}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _child(Path(sys.argv[1]), Path(sys.argv[2]))
