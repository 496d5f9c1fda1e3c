"""Cases in forked children with limits on time and memory: a hang or a crash ends only one case."""

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from cases import FINDING, Row, judged

# Address space of a child; larger requests must be refused, not tried.
ADDRESSES = 6 * 2**30
# Memory that no case needs, by far.
MEMORY = 5 * 2**30
_PAGE = os.sysconf("SC_PAGE_SIZE")
_POLL_S = 0.05
_FORK = multiprocessing.get_context("fork")


def batch(
    kind: ModuleType, seed: int, indices: range, folder: Path, prepared: Path, until: float
) -> Iterator[Row]:
    """Run the cases of a range one after another, until a time or until one ends the process."""
    ours, theirs = _FORK.Pipe(duplex=False)

    def work() -> None:
        for index in indices:
            if index > indices.start and time.monotonic() >= until:
                return
            theirs.send(index)
            theirs.send(judged(kind, seed, index, folder / str(index), prepared))
            shutil.rmtree(folder / str(index), ignore_errors=True)

    child = _started(work, folder, theirs)
    current, began = indices.start, time.monotonic()
    try:
        while True:
            if ours.poll(_POLL_S):
                try:
                    message = ours.recv()
                except EOFError:
                    child.join()
                    if child.exitcode:
                        yield Row(current, FINDING, f"the process ended: {_ending(child)}")
                    return
                if isinstance(message, Row):
                    yield message
                else:
                    current, began = message, time.monotonic()
            elif time.monotonic() - began > kind.LIMIT_S:
                yield Row(current, FINDING, f"no end after {kind.LIMIT_S} s")
                return
            elif _memory(child) > MEMORY:
                yield Row(current, FINDING, f"more than {MEMORY >> 30} GB of memory in use")
                return
    finally:
        # With all that it started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.join()
        ours.close()


def call(function: Callable[[], None], folder: Path) -> None:
    """Run a function in a child, so that this process keeps no threads and can still fork."""
    child = _started(function, folder)
    child.join()
    if child.exitcode:
        raise SystemExit(f"the fuzzer could not prepare: {_ending(child)}; see {folder / 'output'}")


def _started(work: Callable[[], None], folder: Path, theirs: Connection | None = None) -> Any:
    """A forked process in a group of its own, whose output goes to a file in its folder."""

    def serve() -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        warnings.simplefilter("ignore")
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        work()

    child = _FORK.Process(target=serve)
    child.start()
    if theirs is not None:
        theirs.close()
    return child


def _memory(child: Any) -> int:
    """Bytes of memory in use."""
    try:
        return int(Path(f"/proc/{child.pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _ending(child: Any) -> str:
    code = child.exitcode
    return f"exit code {code}" if code > 0 else signal.Signals(-code).name
