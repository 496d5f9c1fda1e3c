"""Cases in forked children with limits on time and memory: a hang or a crash ends only one case."""

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from cases import FINDING, Row, judged

# Address space of a child; larger requests must be refused, not tried.
ADDRESSES = 6 * 2**30
# Memory that no case needs, by far.
MEMORY = 5 * 2**30
_PAGE = os.sysconf("SC_PAGE_SIZE")
_POLL_S = 0.05


def batch(
    kind: ModuleType, seed: int, indices: range, folder: Path, prepared: Path, until: float
) -> Iterator[Row]:
    """Run the cases of a range one after another, until a time or until one ends the process."""

    def work(send: Callable[[str], None]) -> None:
        for index in indices:
            if index > indices.start and time.monotonic() >= until:
                return
            send(json.dumps(index))
            here = folder / str(index)
            send(json.dumps(asdict(judged(kind, seed, index, here, prepared))))
            shutil.rmtree(here, ignore_errors=True)

    current, began = indices.start, time.monotonic()
    child = _Child(work, folder)
    try:
        while True:
            message = child.receive()
            if message == "":
                code = child.join()
                if code:
                    yield Row(current, FINDING, f"the process ended: {_ending(code)}")
                return
            if message is not None:
                found = json.loads(message)
                if isinstance(found, int):
                    current, began = found, time.monotonic()
                else:
                    yield Row(**found)
            elif time.monotonic() - began > kind.LIMIT_S:
                yield Row(current, FINDING, f"no end after {kind.LIMIT_S} s")
                return
            elif child.memory() > MEMORY:
                yield Row(current, FINDING, f"more than {MEMORY >> 30} GB of memory in use")
                return
    finally:
        child.kill()


def call(function: Callable[[], None], folder: Path) -> None:
    """Run a function in a child, so that this process keeps no threads and can still fork.

    Raises:
        SystemExit: if the child fails.
    """
    child = _Child(lambda _: function(), folder)
    while child.receive() != "":
        pass
    code = child.join()
    if code:
        raise SystemExit(f"the fuzzer could not prepare: {_ending(code)}; see {folder / 'output'}")


class _Child:
    """A forked process in a group of its own that sends lines of text."""

    def __init__(self, work: Callable[[Callable[[str], None]], None], folder: Path) -> None:
        read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(read)
            _serve(work, write, folder)
        os.close(write)
        self._read = read
        self._lines: list[str] = []
        self._rest = ""
        self._code: int | None = None

    def receive(self) -> str | None:
        """The next line; None if there is none yet, and "" after the end of the process."""
        if not self._lines and select.select([self._read], [], [], _POLL_S)[0]:
            content = os.read(self._read, 2**16).decode()
            if not content:
                return ""
            *self._lines, self._rest = (self._rest + content).split("\n")
        return self._lines.pop(0) if self._lines else None

    def memory(self) -> int:
        """Bytes of memory in use."""
        try:
            return int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def join(self) -> int:
        """Wait for the end and return the exit code, or the negative number of a signal."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._code

    def kill(self) -> None:
        """End the process and all that it started."""
        os.close(self._read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self.join()


def _serve(work: Callable[[Callable[[str], None]], None], write: int, folder: Path) -> None:
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        warnings.simplefilter("ignore")
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDONLY) if number == 0 else output, number)

        def send(text: str) -> None:
            os.write(write, (text + "\n").encode())

        work(send)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def _ending(code: int) -> str:
    return f"exit code {code}" if code > 0 else signal.Signals(-code).name
