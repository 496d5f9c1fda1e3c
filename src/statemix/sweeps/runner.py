"""Many training runs, in this process or in parallel processes, each with its own ending."""

import multiprocessing
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from statemix.errors import RequestError
from statemix.interrupts import IGNORE_SIGNALS, TERMINABLE, handled
from statemix.training import Event, RunConfig, config_from_plain, train
from statemix.training.config import SCHEMA, Count, NotNegative
from statemix.training.devices import check_here, check_threads
from statemix.training.folder import (
    FolderInUseError,
    Status,
    StoredConfig,
    config_to_resume,
    read_status,
)
from statemix.training.settings import checked, import_modules

# Time for an interrupted run to save a checkpoint; if it fails, the run resumes from an older one.
GRACE_S = 10.0

JobEnding = Literal["done", "diverged", "failed", "interrupted"]

RunEnding = tuple[JobEnding | Literal["in use"], str, str]
"""Status, message and details of a run that has ended. "interrupted" also stops the worker.
"in use": another process trains the run."""


class StudyRun(ABC):
    """A run of a study that ``statemix train`` cannot make, such as that of a language model.

    It is pickled for worker processes.
    """

    seed: int
    num_threads: int | None

    @abstractmethod
    def asked(self) -> dict[str, Any]:
        """Return the request as JSON data, which identifies the run."""

    @abstractmethod
    def train(
        self, folder: Path, on_event: Callable[[Event], None], checkpoint_every_s: float | None
    ) -> None:
        """Train or resume the run in its folder; raise what :func:`statemix.training.fit` does."""

    @abstractmethod
    def seconds(self) -> float | None:
        """Return the predicted seconds of the run on this machine; None if they are not known."""

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return "layers" and "task" of its row in a results store."""

    @abstractmethod
    def results(self, folder: Path) -> dict[str, Any]:
        """Return what the row of a finished run holds further."""

    @abstractmethod
    def ending(self, folder: Path) -> str:
        """Say in a few words what a finished run has achieved."""


Runnable = RunConfig | StudyRun
"""What a job trains."""


def configured(run: Runnable) -> RunConfig:
    """Return a run of a study whose runs are all those of ``statemix train``."""
    assert isinstance(run, RunConfig)
    return run


Work = tuple[Mapping[str, Any] | StudyRun, Path]
"""A run and its folder. A configuration is plain data: reading it imports the user's modules."""


@dataclass(frozen=True)
class Job:
    """A run to train, or to resume, in its folder, with its name in displays and tables."""

    name: str
    config: Runnable
    folder: Path


@dataclass(frozen=True)
class Ended:
    """How a job ended: one row of a sweep's status."""

    job: Job
    status: JobEnding
    """"diverged": the loss or the gradient was not finite; "failed": any other error;
    "interrupted": stopped before its end, or in the hands of another process."""
    message: str = ""
    """The error in one line; empty if done."""
    details: str = ""
    """Traceback of an unexpected error; otherwise empty."""
    started: bool = True
    """Whether this call trained the run, or tried to; False if it reports an earlier ending."""


def run_all(
    jobs: Sequence[Job],
    *,
    num_workers: int | None = None,
    retry: Collection[JobEnding] = (),
    until: float | None = None,
    on_event: Callable[[Job, Event], None] | None = None,
    on_end: Callable[[Ended], None] | None = None,
    checkpoint_every_s: float | None = None,
) -> list[Ended]:
    """Train all jobs and store the results in their folders. No run stops another.

    Finished runs are not repeated, and interrupted runs are resumed. Runs that diverged or failed
    would do so again: their earlier ending is reported, unless ``retry`` includes it. A run that
    another process trains is left to it, as "interrupted": a later call resumes what that leaves.
    If a job cannot run here, none starts. Ctrl-C and SIGTERM save the active runs.

    Args:
        jobs: jobs in the order in which they start, and in which their rows are returned.
        num_workers: number of processes; with 1 or None, everything runs in this process. Results
            do not depend on the number if the configurations fix the number of threads.
        retry: earlier endings to try again: "diverged", "failed".
        until: time of ``time.monotonic`` at which active runs save a checkpoint and the call
            returns; their status, and that of runs not begun, is "interrupted".
        on_event: function called in this process with each event of each run.
        on_end: function called with the row of each run as soon as the run has ended.
        checkpoint_every_s: as in :func:`statemix.training.train`.
    """
    num_workers = checked(Count | None, num_workers, "num_workers")
    if num_workers is not None:
        check_threads("num_workers", num_workers)
    checkpoint_every_s = checked(NotNegative | None, checkpoint_every_s, "checkpoint_every_s")
    folders = [job.folder.resolve() for job in jobs]
    if len(set(folders)) < len(folders):
        raise RequestError("jobs must have distinct folders, got one folder twice")
    # One request that cannot be met is one error, before any process starts.
    for job in jobs:
        if isinstance(job.config, RunConfig) and _ending(job, retry) is None:
            check_here(job.config.resolved().runtime)
    ended: dict[Path, Ended] = {}

    def note(row: Ended) -> None:
        ended[row.job.folder] = row
        if on_end is not None:
            on_end(row)

    tell = on_event or (lambda *_: None)
    due = []
    for job in jobs:
        if row := _ended_before(job, retry, tell):
            note(row)
        else:
            due.append(job)
    num_here = min(num_workers or 1, len(due))
    if due and (until is not None or num_here > 1):
        # Only other processes can be stopped at a given time.
        _share_out(due, worker_processes(num_here, checkpoint_every_s), until, tell, note)
        due = []
    for job in due:
        ending = train_job(_work(job), partial(tell, job), checkpoint_every_s)
        note(_row(job, ending))
        if ending[0] == "interrupted":
            raise KeyboardInterrupt
    return [ended[job.folder] for job in jobs]


def _ending(job: Job, retry: Collection[JobEnding]) -> Status | None:
    """Return the stored ending of a run that is not to be trained again."""
    before = read_status(job.folder)
    again = ("running", "interrupted", *retry)
    return None if before is None or before.status in again else before


def _ended_before(
    job: Job, retry: Collection[JobEnding], tell: Callable[[Job, Event], None]
) -> Ended | None:
    """Return the ending of a run that is not to be trained again; None if it is to be trained."""
    before = _ending(job, retry)
    if before is None:
        return None
    if before.status == "done":
        # Training returns a finished run at once, so it needs no process.
        ending = train_job(_work(job), partial(tell, job), 0.0)
        return replace(_row(job, ending), started=ending[0] != "done")
    try:
        if isinstance(job.config, RunConfig):
            config_to_resume(job.folder, request(job.config))
    except RequestError:
        # The folder holds another run, which training will report.
        return None
    return Ended(job, before.status, before.message, started=False)  # type: ignore[arg-type]


def _row(job: Job, ending: RunEnding) -> Ended:
    status, message, details = ending
    return Ended(job, "interrupted" if status == "in use" else status, message, details)


def _share_out(
    jobs: Sequence[Job],
    workers: AbstractContextManager[list[Connection]],
    until: float | None,
    tell: Callable[[Job, Event], None],
    note: Callable[[Ended], None],
) -> None:
    """Let each worker process train one job after another."""
    waiting, begun = deque(jobs), set()
    busy: dict[Connection, Job] = {}
    # A worker that is alive has a run until none is waiting.
    reason = "every worker process died"
    with handled(TERMINABLE), workers as idle:
        while until is None or time.monotonic() < until:
            while waiting and idle:
                connection, job = idle.pop(0), waiting.popleft()
                busy[connection] = job
                # A process that has died is noticed when it is waited for.
                with suppress(ConnectionError):
                    connection.send(_work(job))
            if not busy:
                break
            for ready in wait(list(busy), None if until is None else until - time.monotonic()):
                assert isinstance(ready, Connection)
                job = busy[ready]
                try:
                    content = ready.recv()
                except (EOFError, ConnectionError):
                    # Out of memory, for instance. The other workers train the remaining jobs.
                    del busy[ready]
                    note(Ended(job, "failed", "its process died"))
                    continue
                if isinstance(content, Event):
                    begun.add(job.folder)
                    tell(job, content)
                    continue
                del busy[ready]
                idle.append(ready)
                note(_row(job, content))
                if content[0] == "interrupted":
                    raise KeyboardInterrupt
        else:
            reason = "the time was up"
    for job in (*busy.values(), *waiting):
        note(Ended(job, "interrupted", reason, started=job.folder in begun))


def _work(job: Job) -> Work:
    config = job.config
    return (config if isinstance(config, StudyRun) else config.to_plain()), job.folder


def train_job(
    work: Work, on_event: Callable[[Event], None], checkpoint_every_s: float | None
) -> RunEnding:
    """Train one run in this process; return its ending, whatever it is."""
    asked, folder = work
    error: Exception
    status: JobEnding | Literal["in use"] = "failed"
    details = ""
    try:
        if isinstance(asked, StudyRun):
            asked.train(folder, on_event, checkpoint_every_s)
        else:
            config = config_from_plain(asked)
            train(config, folder, on_event=on_event, checkpoint_every_s=checkpoint_every_s)
    except KeyboardInterrupt:
        return "interrupted", "stopped before its end", ""
    except FloatingPointError as caught:
        status, error = "diverged", caught
    except FolderInUseError as caught:
        status, error = "in use", caught
    except (RequestError, OSError) as caught:
        error = caught
    except Exception as caught:  # noqa: BLE001  one failing run must not stop the others
        error, details = caught, traceback.format_exc()
    else:
        return "done", "", ""
    return status, " ".join(str(error).split()) or type(error).__name__, details


@contextmanager
def worker_processes(count: int, checkpoint_every_s: float | None) -> Iterator[list[Connection]]:
    """Start processes that receive work and send events; on exit, their runs save a checkpoint."""
    context = multiprocessing.get_context("spawn")
    connections: list[Connection] = []
    workers: list[BaseProcess] = []
    try:
        # Workers inherit ignored signals. Ctrl-C reaches the workers too, and must not end them
        # while they are still importing.
        with handled(IGNORE_SIGNALS):
            for _ in range(count):
                ours, theirs = context.Pipe()
                worker: BaseProcess = context.Process(
                    target=_serve, args=(theirs, checkpoint_every_s), daemon=True
                )
                worker.start()
                theirs.close()
                connections.append(ours)
                workers.append(worker)
        yield connections.copy()
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

    def send(content: Event | RunEnding) -> None:
        try:
            connection.send(content)
        except OSError as error:
            # The parent has closed the connection: end as after Ctrl-C, with a checkpoint.
            raise KeyboardInterrupt from error

    with suppress(KeyboardInterrupt, EOFError, ConnectionResetError):
        while True:
            send(train_job(connection.recv(), send, checkpoint_every_s))


def request(config: RunConfig) -> StoredConfig:
    """Return the request of a run, which identifies it, and its configuration resolved here."""
    import_modules(config.imports)
    return StoredConfig(SCHEMA, config.asked(), config.resolved().to_plain())
