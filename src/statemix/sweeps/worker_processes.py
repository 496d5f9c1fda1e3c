"""Runs in worker processes of this machine, and what a worker says about its run."""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from statemix.errors import RequestError
from statemix.interrupts import IGNORED, handled
from statemix.sweeps.study_runs import Runnable, StudyRun
from statemix.training import Event, config_from_plain, train
from statemix.training.folder import FolderInUseError

# Time for an interrupted run to save a checkpoint; if it fails, the run resumes from an older one.
GRACE_S = 10.0

RunEnding = tuple[Literal["done", "diverged", "failed", "interrupted", "in use"], str, str]
"""Status, message and details of a run that has ended. "interrupted" also stops the worker.
"in use": another process trains the run."""

Work = tuple[Mapping[str, Any] | StudyRun, Path]
"""A run and its folder. A configuration is plain data: reading it imports the user's modules."""

Content = Event | RunEnding
"""An event of a run, or its ending."""


News = tuple[int, Content]
"""The number of a run, and what its worker says."""


def work_of(config: Runnable, folder: Path) -> Work:
    """Return what a process is sent to train a run."""
    return (config if isinstance(config, StudyRun) else config.to_plain()), folder


def train_job(
    work: Work, on_event: Callable[[Event], None], checkpoint_every_s: float | None
) -> RunEnding:
    """Train one run in this process; return its ending, whatever it is."""
    asked, folder = work
    try:
        if isinstance(asked, StudyRun):
            asked.train(folder, on_event, checkpoint_every_s)
        else:
            config = config_from_plain(asked)
            train(config, folder, on_event=on_event, checkpoint_every_s=checkpoint_every_s)
    except FloatingPointError as error:
        return "diverged", line(error), ""
    except KeyboardInterrupt:
        return "interrupted", "stopped before its end", ""
    except FolderInUseError as error:
        return "in use", line(error), ""
    except (RequestError, OSError) as error:
        return "failed", line(error), ""
    except Exception as error:  # noqa: BLE001  one failing run must not stop the others
        return "failed", line(error), traceback.format_exc()
    return "done", "", ""


def line(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def died(reason: str = "") -> RunEnding:
    """Return the ending of a run whose process has died, out of memory for instance."""
    return "failed", f"its process died{reason}", ""


class Processes:
    """Processes that each train one run after another."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._idle = list(connections)
        # Process -> number of the run that it trains.
        self._busy: dict[Connection, int] = {}

    def has_room(self) -> bool:
        """Return whether a process is idle."""
        return bool(self._idle)

    def start(self, number: int, work: Work) -> None:
        """Send a run to an idle process."""
        connection = self._idle.pop(0)
        self._busy[connection] = number
        # A process that has died is noticed when it is waited for.
        with suppress(ConnectionError):
            connection.send(work)

    def receive(self, timeout_s: float | None) -> Iterator[News]:
        """Wait for news of the busy processes."""
        for ready in wait(list(self._busy), timeout_s):
            assert isinstance(ready, Connection)
            job = self._busy[ready]
            try:
                content = ready.recv()
            except (EOFError, ConnectionError):
                del self._busy[ready]
                yield job, died()
                continue
            if not isinstance(content, Event):
                del self._busy[ready]
                self._idle.append(ready)
            yield job, content


@contextmanager
def processes(count: int, checkpoint_every_s: float | None) -> Iterator[Processes]:
    """Start processes, and end them on exit, runs under way with a checkpoint."""
    context = multiprocessing.get_context("spawn")
    connections: list[Connection] = []
    workers: list[BaseProcess] = []
    try:
        # Workers inherit ignored signals. Ctrl-C reaches the workers too, and must not end them
        # while they are still importing.
        with handled(IGNORED):
            for _ in range(count):
                ours, theirs = context.Pipe()
                worker: BaseProcess = context.Process(
                    target=_serve, args=(theirs, checkpoint_every_s), daemon=True
                )
                worker.start()
                theirs.close()
                connections.append(ours)
                workers.append(worker)
        yield Processes(connections)
    finally:
        for connection in connections:
            connection.close()
        deadline = time.monotonic() + GRACE_S
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                worker.kill()
                worker.join()


def _serve(connection: Connection, checkpoint_every_s: float | None) -> None:
    """Train one job after another until the connection is closed."""

    def send(content: Content) -> None:
        try:
            connection.send(content)
        except OSError as error:
            # The parent has closed the connection: end as after Ctrl-C, with a checkpoint.
            raise KeyboardInterrupt from error

    with suppress(KeyboardInterrupt, EOFError, ConnectionResetError):
        while True:
            send(train_job(connection.recv(), send, checkpoint_every_s))
