"""One training run in a worker, and what the worker says about it."""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from statemix.settings import RequestError
from statemix.training import Event, config_from_plain, train
from statemix.training.folder import FolderInUseError

Ending = tuple[Literal["done", "diverged", "failed", "interrupted", "in use"], str, str]
"""Status, message and details of a run that has ended. "interrupted" also stops the worker.
"in use": another process trains the run."""

Work = tuple[Mapping[str, Any], Path]
"""Configuration as plain data, and folder, of a run: reading it imports the user's modules."""

Content = Event | Ending
"""An event of a run, or its ending."""


@dataclass(frozen=True)
class Message:
    """What a worker says about its run.

    Attributes:
        job: number of the run.
        content: an event of the run, or its ending.
    """

    job: int
    content: Content


@dataclass(frozen=True)
class Death:
    """The end of a worker that has not said how its run ended.

    Attributes:
        job: number of the run.
        reason: the error in brackets, if it is known.
    """

    job: int
    reason: str = ""


def train_job(work: Work, on_event: Callable[[Event], None], checkpoint_every_s: float) -> Ending:
    """Train one run in this process; return its ending, whatever it is."""
    tree, folder = work
    try:
        config = config_from_plain(tree)
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
