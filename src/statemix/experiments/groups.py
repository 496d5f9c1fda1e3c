"""Jobs of one shape, trained as replicas of one program, or one by one where that fails."""

import gc
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from statemix.errors import RequestError
from statemix.training import Event, Outcome, RunConfig, config_from_plain, train
from statemix.training.folder import FolderInUseError
from statemix.training.replicas import Result, shape, train_replicas

Ending = tuple[Literal["done", "diverged", "failed", "interrupted", "in use"], str, str]
"""Status, message and details of a run that has ended. "interrupted" is what stops the worker, too;
"in use" that another process holds the run, and concerns no other."""

Member = tuple[Mapping[str, Any], Path]
"""Configuration as plain data, and folder, of a run: reading it imports the user's modules."""


Content = Event | Ending
"""What a worker tells of a run: an event, or the ending."""


@dataclass(frozen=True)
class Message:
    """What a worker tells of a run.

    Attributes:
        group: number of the group that the worker trains.
        place: place of the run in the group.
        content: an event of the run, or its ending.
    """

    group: int
    place: int
    content: Content


@dataclass(frozen=True)
class Death:
    """The end of a worker that has not told how its runs ended.

    Attributes:
        group: number of the group that the worker was training.
        reason: the error in brackets, if it is known.
    """

    group: int
    reason: str = ""


class _Configured(Protocol):
    @property
    def config(self) -> RunConfig: ...


Job = TypeVar("Job", bound=_Configured)


def grouped(jobs: Sequence[Job], at_most: int) -> list[list[Job]]:
    """Return jobs of one shape together, each group in the place of its first job.

    Args:
        jobs: jobs in their order.
        at_most: size of a group.
    """
    if at_most == 1:
        return [[job] for job in jobs]
    groups: list[list[Job]] = []
    unfilled: dict[str, list[Job]] = {}
    for job in jobs:
        name = json.dumps(shape(job.config.resolved()))
        if len(unfilled.get(name, [])) in (0, at_most):
            unfilled[name] = []
            groups.append(unfilled[name])
        unfilled[name].append(job)
    return groups


def train_group(
    members: Sequence[Member],
    on_event: Callable[[int, Event], None],
    on_end: Callable[[int, Ending], None],
    checkpoint_every_s: float,
) -> None:
    """Train runs as replicas, and one by one those that fail as such; tell the ending of each.

    So a failure that no single run has caused, such as memory for one but not for all, costs only
    time.

    Args:
        members: the runs.
        on_event: called with a member's place and each of its events.
        on_end: called once for each place.
        checkpoint_every_s: as in :func:`statemix.training.train`.
    """
    left = dict(enumerate(members))

    def end(place: int, ending: Ending) -> None:
        del left[place]
        on_end(place, ending)

    # Errors of the caller's function, which are not those of a run.
    raised: list[Exception] = []

    def end_replica(place: int, result: Result) -> None:
        try:
            if isinstance(result, Outcome):
                end(place, ("done", "", ""))
            elif isinstance(result, FloatingPointError):
                end(place, ("diverged", line(result), ""))
        except Exception as error:
            raised.append(error)
            raise

    reasons: dict[int, str] = {}
    stopped = False
    if len(members) > 1:
        try:
            results = train_replicas(
                [config_from_plain(tree) for tree, _ in members],
                [folder for _, folder in members],
                on_event=on_event,
                on_end=end_replica,
                checkpoint_every_s=checkpoint_every_s,
            )
            for place, result in enumerate(results):
                if not isinstance(result, Outcome):
                    reasons[place] = line(result)
            del results, result
        except KeyboardInterrupt:
            stopped = True
        except Exception as error:
            if raised:
                raise
            text = f"{len(left)} runs train one by one: {line(error)}"
            on_event(min(left), Event("message", 0, 0, text=text))
        # The tracebacks of errors hold what all replicas needed, which may have been too much.
        gc.collect()
    for place, member in list(left.items()):
        ending: Ending = ("interrupted", "stopped before its end", "")
        if not stopped:
            tell = partial(on_event, place)
            if place in reasons:
                tell(Event("message", 0, 0, text=f"trains alone: {reasons[place]}"))
            ending = train_one(member, tell, checkpoint_every_s)
            stopped = ending[0] == "interrupted"
        end(place, ending)


def train_one(
    member: Member, on_event: Callable[[Event], None], checkpoint_every_s: float
) -> Ending:
    """Train one run in this process; return its ending, whatever it is."""
    tree, folder = member
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
