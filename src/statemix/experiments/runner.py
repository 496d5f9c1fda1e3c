"""Many training runs, in this process or side by side in single processes, each with its ending."""

import multiprocessing
import shutil
import signal
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

from statemix.settings import RequestError
from statemix.training import Event, RunConfig, train
from statemix.training.folder import CONFIG, read_status, settled
from statemix.training.interrupts import SIGNALS, can_be_handled
from statemix.training.run import request

# Time for an interrupted run to save a checkpoint; without it, it resumes from the one before.
_GRACE_S = 10.0

Ending = Literal["done", "diverged", "failed", "interrupted"]


@dataclass(frozen=True)
class Job:
    """A run to be trained, or resumed, in its folder.

    Attributes:
        name: what displays and tables call it.
        config: the run.
        folder: its folder.
    """

    name: str
    config: RunConfig
    folder: Path


@dataclass(frozen=True)
class Ended:
    """How a job ended: one row of a sweep's status.

    Attributes:
        job: the job.
        status: "done"; "diverged", the loss or the gradient was not finite; "failed", any other
            error; "interrupted", stopped before its end.
        message: the error in one line; empty if done.
        details: the traceback of an unexpected error; otherwise empty.
        started: whether this call trained; False if it only reports how the run ended before.
    """

    job: Job
    status: Ending
    message: str = ""
    details: str = ""
    started: bool = True


def run_all(
    jobs: Sequence[Job],
    *,
    num_workers: int = 1,
    retry: Collection[Ending] = (),
    fresh: bool = False,
    on_event: Callable[[Job, Event], None] | None = None,
    on_end: Callable[[Ended], None] | None = None,
) -> list[Ended]:
    """Train all jobs; the folders hold the results. No run stops another.

    A finished run is never repeated, and an interrupted one is resumed. One that diverged or failed
    before would do so again: it is reported as it ended, unless ``retry`` asks for it.

    Args:
        jobs: in the order in which they start.
        num_workers: processes; with one, everything runs in this process. Results do not depend on
            it if the configurations fix the number of threads.
        retry: which endings of an earlier call to try again: "diverged", "failed".
        fresh: remove the jobs' folders first.
        on_event: told, in this process, what happens in which run.
        on_end: told how each run ended, as soon as it has.

    Returns:
        One row per job, in their order.

    Raises:
        RequestError: if ``num_workers`` or ``retry`` is out of range, or two jobs share a folder.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once the runs under way have saved a checkpoint;
            the same call resumes.
    """
    if num_workers < 1:
        raise RequestError(f"num_workers must be at least 1, got {num_workers}")
    if not set(retry) <= {"diverged", "failed"}:
        raise RequestError(f"retry must be among 'diverged' and 'failed', got {sorted(retry)}")
    folders = [job.folder.resolve() for job in jobs]
    if len(set(folders)) < len(folders):
        raise RequestError("jobs must have a folder each, got one folder twice")
    if fresh:
        for job in jobs:
            _check_removable(job.folder)
        for job in jobs:
            shutil.rmtree(job.folder, ignore_errors=True)
    ended: dict[Path, Ended] = {}

    def note(row: Ended) -> None:
        ended[row.job.folder] = row
        if on_end is not None:
            on_end(row)

    tell = on_event or _say_nothing
    due = []
    for job in jobs:
        row = _ended_before(job, retry, tell)
        if row is None:
            due.append(job)
        else:
            note(row)
    if min(num_workers, len(due)) <= 1:
        for job in due:
            row = _train(job, lambda event, job=job: tell(job, event))  # type: ignore[misc]
            note(row)
            if row.status == "interrupted":
                raise KeyboardInterrupt
    else:
        _share_out(due, min(num_workers, len(due)), tell, note)
    return [ended[job.folder] for job in jobs]


def _say_nothing(job: Job, event: Event) -> None:
    del job, event


def _check_removable(folder: Path) -> None:
    if folder.exists() and not (folder / CONFIG).exists() and any(folder.iterdir()):
        raise RequestError(f"folder must hold a run to be removed, got {folder}")


def _ended_before(
    job: Job, retry: Collection[Ending], tell: Callable[[Job, Event], None]
) -> Ended | None:
    """How a run ended that is not to be tried again; None if it is to be trained."""
    before = read_status(job.folder)
    if before is None or before.status in ("running", "interrupted", *retry):
        return None
    if before.status == "done":
        # Training returns a finished run at once, which is worth no process.
        return replace(_train(job, lambda event: tell(job, event)), started=False)
    try:
        settled(job.folder, request(job.config))
    except RequestError:
        # The folder holds another run, which is what training will say.
        return None
    return Ended(job, before.status, before.message, started=False)  # type: ignore[arg-type]


def _train(job: Job, on_event: Callable[[Event], None]) -> Ended:
    """Train one job here, and say how it ended whatever happens."""
    try:
        train(job.config, job.folder, on_event=on_event)
    except FloatingPointError as error:
        return Ended(job, "diverged", _line(error))
    except KeyboardInterrupt:
        return Ended(job, "interrupted", "stopped before its end")
    except (RequestError, OSError) as error:
        return Ended(job, "failed", _line(error))
    except Exception as error:  # noqa: BLE001  one failing run must not stop the others
        return Ended(job, "failed", _line(error), traceback.format_exc())
    return Ended(job, "done")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _share_out(
    jobs: Sequence[Job],
    num_workers: int,
    tell: Callable[[Job, Event], None],
    note: Callable[[Ended], None],
) -> None:
    waiting = list(reversed(jobs))
    busy: dict[Connection, Job] = {}

    def start_next(connection: Connection) -> None:
        if not waiting:
            return
        busy[connection] = waiting.pop()
        with suppress(ConnectionError):
            connection.send(busy[connection])

    with _terminable(), _workers(num_workers) as connections:
        for connection in connections:
            start_next(connection)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                job = busy[ready]
                try:
                    message = ready.recv()
                except (EOFError, ConnectionError):
                    # Out of memory, for instance. The other workers take over what is left.
                    del busy[ready]
                    note(Ended(job, "failed", f"the process training {job.name} died"))
                    continue
                if isinstance(message, Event):
                    tell(job, message)
                    continue
                del busy[ready]
                note(message)
                if message.status == "interrupted":
                    raise KeyboardInterrupt
                start_next(ready)
    for job in reversed(waiting):
        note(Ended(job, "interrupted", "every worker process died", started=False))


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, with time for the workers to save."""
    if not can_be_handled():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


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
def _workers(count: int) -> Iterator[list[Connection]]:
    """Start processes that train the jobs sent to them, and end them on the way out."""
    context = multiprocessing.get_context("spawn")
    connections: list[Connection] = []
    processes: list[BaseProcess] = []
    try:
        # A worker inherits what is ignored: Ctrl-C reaches the workers too, and must not end them
        # while they are still importing.
        with _signals_ignored():
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
            connection.send(_train(job, tell))
