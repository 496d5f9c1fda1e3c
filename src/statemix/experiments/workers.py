"""Many training runs, one after the other or side by side in single-threaded processes."""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from statemix.training import Event, RunConfig, train
from statemix.training.interrupts import can_be_handled

# Time for an interrupted run to save a checkpoint; without it, it resumes from the one before.
_GRACE_S = 10.0


@dataclass(frozen=True)
class Job:
    """A run to be trained, or resumed, in its folder."""

    name: str
    config: RunConfig
    folder: Path


def train_all(
    jobs: Sequence[Job], num_workers: int, on_event: Callable[[Job, Event], None]
) -> None:
    """Train all jobs; the folders hold the results.

    Ctrl-C lets every run under way save a checkpoint; the same call goes on from there. The results
    do not depend on the number of workers if the configurations fix the number of threads.

    Args:
        jobs: in the order in which they are to be started.
        num_workers: processes; with one, everything runs in this process.
        on_event: told, in this process, what happens in which run.

    Raises:
        ValueError: if a job cannot be run as asked, for instance because of what its folder holds.
        OSError: if a folder cannot be written.
        RuntimeError: if a run fails.
        KeyboardInterrupt: after Ctrl-C.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers must be at least 1, got {num_workers}")
    if min(num_workers, len(jobs)) <= 1:
        for job in jobs:
            _train_here(job, on_event)
        return
    with _workers(min(num_workers, len(jobs))) as connections:
        waiting = list(reversed(jobs))
        busy: dict[Connection, Job] = {}

        def start_next(connection: Connection) -> None:
            busy[connection] = waiting.pop()
            with _death_told(busy[connection]):
                connection.send(busy[connection])

        for connection in connections:
            start_next(connection)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                job = busy[ready]
                with _death_told(job):
                    message = ready.recv()
                if isinstance(message, Exception):
                    raise message
                if message is not None:
                    on_event(job, message)
                elif waiting:
                    start_next(ready)
                else:
                    del busy[ready]


def _train_here(job: Job, on_event: Callable[[Job, Event], None]) -> None:
    train(job.config, job.folder, on_event=lambda event: on_event(job, event))


@contextmanager
def _death_told(job: Job) -> Iterator[None]:
    """Say which run it was when the process at the other end turns out to be dead."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise RuntimeError(f"{job.name} must end by itself, but its process died") from error


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if not can_be_handled():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _workers(count: int) -> Iterator[list[Connection]]:
    """Start processes that take jobs from their connection, and end them on the way out."""
    context = multiprocessing.get_context("spawn")
    connections: list[Connection] = []
    processes: list[BaseProcess] = []
    try:
        # What is ignored here is ignored from the first moment of a worker's life: Ctrl-C reaches
        # the workers too, and must not end them while they are still importing.
        with _interrupts_ignored():
            for _ in range(count):
                ours, theirs = context.Pipe()
                process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                connections.append(ours)
                processes.append(process)
        yield connections
    finally:
        for connection in connections:
            connection.close()
        for process in processes:
            process.join(_GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(connection: Connection) -> None:
    """Train one job after the other until the other end is closed."""

    def tell(event: Event) -> None:
        try:
            connection.send(event)
        except OSError as error:
            # Nobody listens any more: end as after Ctrl-C, with a checkpoint.
            raise KeyboardInterrupt from error

    with suppress(KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            job: Job = connection.recv()
            outcome: Exception | None = None
            try:
                train(job.config, job.folder, on_event=tell)
            except (ValueError, TypeError, OSError, RuntimeError, FloatingPointError) as error:
                outcome = error
            except Exception:  # noqa: BLE001  a process has no other way to hand on its error
                reason = traceback.format_exc()
                outcome = RuntimeError(f"{job.name} must train without an error, got:\n{reason}")
            connection.send(outcome)
