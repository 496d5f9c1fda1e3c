"""Worker processes of this machine that train runs."""

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from statemix.interrupts import SIGNALS, can_be_handled
from statemix.studies.worker import Content, Death, Message, Work, train_job
from statemix.training import Event

# Time for an interrupted run to save a checkpoint; if it fails, the run resumes from an older one.
GRACE_S = 10.0


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

    def receive(self, timeout_s: float | None) -> Iterator[Message | Death]:
        """Wait for news of the busy processes."""
        for ready in wait(list(self._busy), timeout_s):
            assert isinstance(ready, Connection)
            job = self._busy[ready]
            try:
                content = ready.recv()
            except (EOFError, ConnectionError):
                del self._busy[ready]
                yield Death(job)
                continue
            if not isinstance(content, Event):
                del self._busy[ready]
                self._idle.append(ready)
            yield Message(job, content)


@contextmanager
def processes(count: int, checkpoint_every_s: float) -> Iterator[Processes]:
    """Start processes, and end them on exit, runs under way with a checkpoint.

    Args:
        count: number of processes.
        checkpoint_every_s: as in :func:`statemix.training.train`.
    """
    with _connected(count, checkpoint_every_s) as connections:
        yield Processes(connections)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    if not can_be_handled():
        yield
        return
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _connected(count: int, checkpoint_every_s: float) -> Iterator[list[Connection]]:
    """Start processes that train the jobs sent to them, and end them on exit."""
    context = multiprocessing.get_context("spawn")
    connections: list[Connection] = []
    processes: list[BaseProcess] = []
    try:
        # Workers inherit ignored signals. Ctrl-C reaches the workers too, and must not end them
        # while they are still importing.
        with _signals_ignored():
            for _ in range(count):
                ours, theirs = context.Pipe()
                process: BaseProcess = context.Process(
                    target=_serve, args=(theirs, checkpoint_every_s), daemon=True
                )
                process.start()
                theirs.close()
                connections.append(ours)
                processes.append(process)
        yield connections
    finally:
        for connection in connections:
            connection.close()
        for process in processes:
            process.join(GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(connection: Connection, checkpoint_every_s: float) -> None:
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
