"""Many training runs, in this process or in parallel processes, each with its own ending."""

import multiprocessing
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from statemix.experiments.groups import Member, grouped, line, train_group
from statemix.settings import RequestError, checked
from statemix.training import Event, RunConfig, config_from_plain, train
from statemix.training.config import SCHEMA, NotNegative
from statemix.training.devices import check_threads
from statemix.training.folder import CONFIG, Status, StoredConfig, read_status, settled
from statemix.training.interrupts import SIGNALS, can_be_handled
from statemix.training.request import check_all_here, request
from statemix.training.run import CHECKPOINT_EVERY_S

# Time for an interrupted run to save a checkpoint; if it fails, the run resumes from an older one.
_GRACE_S = 10.0

Ending = Literal["done", "diverged", "failed", "interrupted"]


@dataclass(frozen=True)
class Job:
    """A run to train, or to resume, in its folder.

    Attributes:
        name: name in displays and tables.
        config: configuration of the run.
        folder: folder of the run.
    """

    name: str
    config: RunConfig
    folder: Path


@dataclass(frozen=True)
class Ended:
    """How a job ended: one row of a sweep's status.

    Attributes:
        job: the job.
        status: "done"; "diverged" (the loss or the gradient was not finite); "failed" (any other
            error); "interrupted" (stopped before its end).
        message: the error in one line; empty if done.
        details: traceback of an unexpected error; otherwise empty.
        started: whether this call trained the run; False if it reports an earlier ending.
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
    replicas: int = 1,
    retry: Collection[Ending] = (),
    fresh: bool = False,
    until: float | None = None,
    on_event: Callable[[Job, Event], None] | None = None,
    on_end: Callable[[Ended], None] | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> list[Ended]:
    """Train all jobs and store the results in their folders. No run stops another.

    Finished runs are not repeated, and interrupted runs are resumed. Runs that diverged or failed
    would do so again: their earlier ending is reported, unless ``retry`` includes it.

    Args:
        jobs: jobs in the order in which they start.
        num_workers: number of processes; with 1, everything runs in this process. Results do not
            depend on the number if the configurations fix the number of threads.
        replicas: jobs of one shape that train as one program, at most; they start together
            (:func:`statemix.training.replicas.train_replicas`). Those that cannot train one by one.
            Results depend on it by rounding.
        retry: earlier endings to try again: "diverged", "failed".
        fresh: remove the jobs' folders first.
        until: time of ``time.monotonic`` at which active runs save a checkpoint and the call
            returns; their status, and that of runs not begun, is "interrupted". None means never.
        on_event: function called in this process with each event of each run.
        on_end: function called with the row of each run as soon as the run has ended.
        checkpoint_every_s: as in :func:`statemix.training.train`.

    Returns:
        One row per job, in the order of the jobs.

    Raises:
        RequestError: if an argument is out of range or has the wrong type, two jobs share a folder,
            or a job cannot run on this machine; then none has started.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once the active runs have saved a checkpoint;
            the same call resumes.
    """
    check_threads("num_workers", checked(int, num_workers, "num_workers"))
    replicas = checked(Annotated[int, Ge(1)], replicas, "replicas")
    if not isinstance(retry, Collection) or any(one not in ("diverged", "failed") for one in retry):
        raise RequestError(f"retry must be among 'diverged' and 'failed', got {retry!r}")
    for name, function in (("on_event", on_event), ("on_end", on_end)):
        if function is not None and not callable(function):
            raise RequestError(f"{name} must be a function or None, got {function!r}")
    checkpoint_every_s = checked(NotNegative, checkpoint_every_s, "checkpoint_every_s")
    folders = [job.folder.resolve() for job in jobs]
    if len(set(folders)) < len(folders):
        raise RequestError("jobs must have distinct folders, got one folder twice")
    fresh = checked(bool, fresh, "fresh")
    # One request that cannot be met is one error, before any process starts.
    check_all_here(job.config for job in jobs if fresh or _ending(job, retry) is None)
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

    tell = _say_nothing if on_event is None else on_event
    due = []
    for job in jobs:
        row = _ended_before(job, retry, tell)
        if row is None:
            due.append(job)
        else:
            note(row)
    groups = grouped(due, replicas)
    # Only other processes can be stopped at a given time.
    if until is None and min(num_workers, len(groups)) <= 1:
        for group in groups:
            _group_here(group, tell, note, checkpoint_every_s)
            if any(ended[job.folder].status == "interrupted" for job in group):
                raise KeyboardInterrupt
    elif due:
        _share_out(groups, min(num_workers, len(groups)), until, checkpoint_every_s, tell, note)
    return [ended[job.folder] for job in jobs]


def _say_nothing(job: Job, event: Event) -> None:
    del job, event


def _check_removable(folder: Path) -> None:
    if not (folder / CONFIG).exists():
        # The remains of a run that was killed as it began may be removed, other files may not.
        settled(folder, StoredConfig(SCHEMA, {}, {}))


def _ending(job: Job, retry: Collection[Ending]) -> Status | None:
    """Return the stored ending of a run that is not to be trained again."""
    before = read_status(job.folder)
    if before is None or before.status in ("running", "interrupted", *retry):
        return None
    return before


def _ended_before(
    job: Job, retry: Collection[Ending], tell: Callable[[Job, Event], None]
) -> Ended | None:
    """Return the ending of a run that is not to be trained again; None if it is to be trained."""
    before = _ending(job, retry)
    if before is None:
        return None
    if before.status == "done":
        # Training returns a finished run at once, so it needs no process.
        row = _here(job, tell, checkpoint_every_s=0.0)
        return replace(row, started=False)
    try:
        settled(job.folder, request(job.config))
    except RequestError:
        # The folder holds another run, which training will report.
        return None
    return Ended(job, before.status, before.message, started=False)  # type: ignore[arg-type]


def _here(job: Job, tell: Callable[[Job, Event], None], checkpoint_every_s: float) -> Ended:
    tree = job.config.to_plain()
    return Ended(job, *_train(tree, job.folder, partial(tell, job), checkpoint_every_s))


def _group_here(
    group: Sequence[Job],
    tell: Callable[[Job, Event], None],
    note: Callable[[Ended], None],
    checkpoint_every_s: float,
) -> None:
    train_group(
        [(job.config.to_plain(), job.folder) for job in group],
        partial(_alone, checkpoint_every_s=checkpoint_every_s),
        lambda place, event: tell(group[place], event),
        lambda place, ending: note(Ended(group[place], *ending)),
        checkpoint_every_s,
    )


def _alone(
    member: Member, on_event: Callable[[Event], None], *, checkpoint_every_s: float
) -> tuple[Ending, str, str]:
    return _train(*member, on_event, checkpoint_every_s)


def _train(
    tree: Mapping[str, Any],
    folder: Path,
    on_event: Callable[[Event], None],
    checkpoint_every_s: float,
) -> tuple[Ending, str, str]:
    """Train one run in this process; always return its status, message and details.

    The configuration is plain data, because reading it imports the user's own modules.
    """
    try:
        config = config_from_plain(tree)
        train(config, folder, on_event=on_event, checkpoint_every_s=checkpoint_every_s)
    except FloatingPointError as error:
        return "diverged", line(error), ""
    except KeyboardInterrupt:
        return "interrupted", "stopped before its end", ""
    except (RequestError, OSError) as error:
        return "failed", line(error), ""
    except Exception as error:  # noqa: BLE001  one failing run must not stop the others
        return "failed", line(error), traceback.format_exc()
    return "done", "", ""


def _share_out(
    groups: Sequence[Sequence[Job]],
    num_workers: int,
    until: float | None,
    checkpoint_every_s: float,
    tell: Callable[[Job, Event], None],
    note: Callable[[Ended], None],
) -> None:
    waiting = list(reversed(groups))
    # Of the group that a worker trains, the jobs that have not ended, by their places.
    busy: dict[Connection, dict[int, Job]] = {}

    def start_next(connection: Connection) -> None:
        if not waiting:
            return
        group = waiting.pop()
        busy[connection] = dict(enumerate(group))
        with suppress(ConnectionError):
            connection.send([(job.config.to_plain(), job.folder) for job in group])

    with _terminable(), _workers(num_workers, checkpoint_every_s) as connections:
        for connection in connections:
            start_next(connection)
        while busy and (until is None or time.monotonic() < until):
            for ready in wait(list(busy), None if until is None else until - time.monotonic()):
                assert isinstance(ready, Connection)
                try:
                    place, message = ready.recv()
                except (EOFError, ConnectionError):
                    # Out of memory, for instance. The other workers train the remaining jobs.
                    for job in busy.pop(ready).values():
                        note(Ended(job, "failed", f"the process training {job.name} died"))
                    continue
                job = busy[ready][place]
                if isinstance(message, Event):
                    tell(job, message)
                    continue
                del busy[ready][place]
                row = Ended(job, *message)
                note(row)
                if row.status == "interrupted":
                    raise KeyboardInterrupt
                if not busy[ready]:
                    del busy[ready]
                    start_next(ready)
    # A worker that is alive has a run until none is waiting, so only the time ends a busy one.
    reason = "the time was up" if busy else "every worker process died"
    for group in busy.values():
        for job in group.values():
            note(Ended(job, "interrupted", reason))
    for jobs in reversed(waiting):
        for job in jobs:
            note(Ended(job, "interrupted", reason, started=False))


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that the workers have time to save."""
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
def _workers(count: int, checkpoint_every_s: float) -> Iterator[list[Connection]]:
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
            process.join(_GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(connection: Connection, checkpoint_every_s: float) -> None:
    """Train one group of jobs after another until the connection is closed."""

    def send(place: int, message: Any) -> None:
        try:
            connection.send((place, message))
        except OSError as error:
            # The parent has closed the connection: end as after Ctrl-C, with a checkpoint.
            raise KeyboardInterrupt from error

    alone = partial(_alone, checkpoint_every_s=checkpoint_every_s)
    with suppress(KeyboardInterrupt, EOFError, ConnectionResetError):
        while True:
            train_group(connection.recv(), alone, send, send, checkpoint_every_s)
