"""Runs in worker processes of this machine, and what a worker says about its run."""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
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


def work_of(config: Runnable, folder: Path) -> Work:
    """Return what a process is sent to train a run."""
    return (config if isinstance(config, StudyRun) else config.to_plain()), folder


def train_job(
    work: Work, on_event: Callable[[Event], None], checkpoint_every_s: float | None
) -> RunEnding:
    """Train one run in this process; return its ending, whatever it is."""
    asked, folder = work
    error: Exception
    status: Literal["diverged", "in use", "failed"] = "failed"
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
