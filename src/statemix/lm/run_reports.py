"""Reports of language training: the step line, and curves in TensorBoard and Weights & Biases."""

import importlib.util
import math
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statemix.errors import RequestError
from statemix.training.checkpoint import TensorFiles
from statemix.training.loop import Event, Hook, Loop

# Steps whose mean speed the line shows.
_RECENT = 20


@dataclass(eq=False)
class StepLine(Hook):
    """Describes training in the step line, and by its means since the row before in the metrics.

    "utilisation" is FLOP/s over ``matmul_speed``, without evaluations and checkpoints.
    """

    changes_results = False

    batches: Any
    tokens_per_step: int
    flops_per_token: float
    matmul_speed: float
    bytes_per_token: float | None

    def __post_init__(self) -> None:
        # Seconds of steps.
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._since_row: list[float] = []

    def on_start(self, loop: Loop) -> None:
        self._begun = loop.step, time.monotonic()

    def after_step(self, loop: Loop, loss: float) -> None:
        del loop, loss
        time_s = time.monotonic() - self.batches.began
        self._recent.append(time_s)
        self._since_row.append(time_s)

    def row(self, loop: Loop) -> dict[str, Any]:
        del loop
        times_s, self._since_row = self._since_row, []
        return self._speeds(times_s)

    def describe(self, event: Event) -> Event:
        """Return the event of a step with a line about it; others as they are."""
        if event.kind != "step" or event.loss is None:
            return event
        speeds = self._speeds(self._recent)
        bits = event.loss / math.log(2)
        step, begun = self._begun
        # At the speed of this process, with evaluations.
        left_s = (time.monotonic() - begun) / (event.step - step) * (event.num_steps - event.step)
        parts = [
            f"loss {event.loss:.4f}",
            *([f"{bits / size:.3f} bits per byte"] if (size := self.bytes_per_token) else []),
            f"{speeds['tokens_per_s']:,.0f} tokens/s",
            f"utilisation {speeds['utilisation']:.0%}",
            f"about {duration(left_s)} left",
        ]
        return replace(event, text=", ".join(parts))

    def _speeds(self, times_s: Collection[float]) -> dict[str, float]:
        # A resumed run may end without a step.
        tokens_per_s = len(times_s) * self.tokens_per_step / (sum(times_s) or math.inf)
        utilisation = tokens_per_s * self.flops_per_token / self.matmul_speed
        return {"tokens_per_s": tokens_per_s, "utilisation": utilisation}


def duration(seconds: float) -> str:
    """Return a time for a reader, in the largest unit of which there are two."""
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


class CurveLog(Hook):
    """A hook that logs the numbers of the events of a run."""

    changes_results = False

    def note(self, event: Event) -> None:
        """Log the numbers of an event; called after :meth:`on_start`."""
        raise NotImplementedError

    def on_stop(self, loop: Loop) -> None:
        self.on_end(loop)


class TensorBoardCurves(CurveLog):
    """Writes the curves for TensorBoard into a folder; a resumed run has each point once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def on_start(self, loop: Loop) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=loop.step + 1)

    def note(self, event: Event) -> None:
        for name, value in curve_points(event).items():
            self._writer.add_scalar(name, value, event.step)

    def state_dict(self) -> dict[str, Any]:
        # Points before a checkpoint are not logged again.
        if self._writer is not None:
            self._writer.flush()
        return {}

    def on_end(self, loop: Loop) -> None:
        del loop
        if self._writer is not None:
            self._writer.close()


class WandbCurves(CurveLog):
    """Logs the curves of a run's folder to Weights & Biases; a resumed run continues them there."""

    def __init__(self, project: str, folder: Path) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise RequestError("wandb must be installed: pip install wandb")
        self._project, self._folder = project, folder
        self._id = uuid.uuid4().hex
        self._run: Any = None

    def on_start(self, loop: Loop) -> None:
        del loop
        import wandb

        names = {"project": self._project, "id": self._id, "name": self._folder.name}
        try:
            self._run = wandb.init(**names, dir=str(self._folder), resume="allow")
        except wandb.Error as error:
            raise RequestError(f"wandb cannot open {self._project!r}: {error}") from error

    def note(self, event: Event) -> None:
        points = curve_points(event)
        # The points after a checkpoint are there already when a run resumes from it.
        if points and event.step >= self._run.step:
            self._run.log(points, step=event.step)

    def state_dict(self) -> dict[str, Any]:
        return {"wandb_run": self._id}

    def load_state_dict(self, state: Mapping[str, Any], tensors: TensorFiles) -> None:
        del tensors
        self._id = state.get("wandb_run", self._id)

    def on_end(self, loop: Loop) -> None:
        del loop
        if self._run is not None:
            self._run.finish()


def curve_points(event: Event) -> dict[str, float]:
    """Return the numbers of an event by the names of their curves; {} if it has none."""
    if event.kind == "step" and event.loss is not None:
        return {"train/loss": event.loss}
    if event.kind != "evaluated" or event.row is None:
        return {}
    points = {f"held_out/{name}": value for name, value in event.row["scores"].items()}
    for name in ("learning_rate", "tokens_per_s", "utilisation"):
        points[f"training/{name}"] = event.row[name]
    return points
